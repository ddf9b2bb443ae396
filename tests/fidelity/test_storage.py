"""Cloud Storage's rules that the fake enforces, with google.cloud.storage."""

from __future__ import annotations

from typing import Any

import pytest

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import status_of
from tests.fakes.google import NUMBER, PROJECT, REGION, SUBMITTER, FakeGoogle

NAME = "slipway-test-runs"


@pytest.fixture
def client(google: FakeGoogle) -> Any:
    return Connection(PROJECT, REGION, google.endpoints).storage


@pytest.fixture
def bucket(google: FakeGoogle, client: Any) -> Any:
    made = client.bucket(NAME)
    made.iam_configuration.uniform_bucket_level_access_enabled = True
    return client.create_bucket(made, location=REGION)


def grant(google: FakeGoogle, role: str) -> None:
    """Take the caller's ownership away and grant one role on the bucket."""
    google.world.owners.clear()
    policy = google.world.policy(f"buckets/{NAME}")
    policy["bindings"].append({"role": role, "members": [f"serviceAccount:{SUBMITTER}"]})
    google.world.set_policy(f"buckets/{NAME}", policy)


@pytest.mark.parametrize(
    ("location", "kind"), [(REGION, "region"), ("EU", "multi-region"), ("EUR4", "dual-region"), ("Europe", None)]
)
def test_a_location_is_a_region_a_multi_region_or_a_dual_region(client, location, kind):
    """Anything else is refused with status 400. Source (read): https://cloud.google.com/storage/docs/locations"""
    if kind is None:
        with pytest.raises(Exception, match="location constraint is not valid") as error:
            client.create_bucket(NAME, location=location)
        assert status_of(error.value) == 400
        return
    client.create_bucket(NAME, location=location)
    found = client.get_bucket(NAME)
    assert (found.location, found.location_type, found.project_number) == (location.upper(), kind, NUMBER)


def test_a_bucket_is_described_with_what_was_not_asked_for(client):
    """Access is uniform and locked after 90 days, deleted objects are kept for a week.

    Source (recorded): k8s-config-connector, storagebucket, commit 070531408b.
    """
    for location, special in ((REGION, ("satisfiesPZI", True)), ("EU", ("rpo", "DEFAULT"))):
        made = client.bucket(f"{NAME}-{location.lower()}")
        made.iam_configuration.uniform_bucket_level_access_enabled = True
        found = client.create_bucket(made, location=location)._properties
        assert found["selfLink"].endswith(f"/b/{found['id']}")
        assert found["softDeletePolicy"]["retentionDurationSeconds"] == "604800"
        assert found["generation"].isdecimal()
        access = found["iamConfiguration"]
        assert access["uniformBucketLevelAccess"] == access["bucketPolicyOnly"]
        assert access["uniformBucketLevelAccess"].keys() == {"enabled", "lockedTime"}
        assert access["publicAccessPrevention"] == "inherited"
        assert special in found.items()


@pytest.mark.parametrize("name", ["ab", "Capitals", "b" * 64])
def test_a_bucket_name_has_3_to_63_lower_case_characters(client, name):
    """Source (read): https://cloud.google.com/storage/docs/buckets#naming"""
    with pytest.raises(Exception, match="Invalid bucket name") as error:
        client.create_bucket(name, location=REGION)
    assert status_of(error.value) == 400


def test_a_bucket_name_is_taken_once_worldwide(google, client, bucket):
    """A second creation is refused with status 409, which says whether the bucket is one's own.

    Source (read): https://cloud.google.com/storage/docs/troubleshooting (bucket already exists).
    """
    with pytest.raises(Exception, match="already own it") as own:
        client.create_bucket(NAME, location=REGION)
    google.world.buckets[NAME]["projectNumber"] = "1"
    with pytest.raises(Exception, match="shared by all users of the system") as other:
        client.create_bucket(NAME, location=REGION)
    assert status_of(own.value) == status_of(other.value) == 409


@pytest.mark.parametrize("chunk", [None, 256 * 1024])
def test_an_object_comes_back_as_uploaded_in_one_part_or_several(google, bucket, chunk):
    """Only what changes something counts as a write.

    Source (read): https://cloud.google.com/storage/docs/resumable-uploads
    """
    before = google.world.writes.copy()
    content = bytes(range(256)) * 4096
    bucket.blob("a folder/ä.bin", chunk_size=chunk).upload_from_string(content)
    found = bucket.get_blob("a folder/ä.bin")
    assert found.size == len(content)
    assert found.download_as_bytes() == content
    assert [blob.name for blob in bucket.list_blobs(prefix="a folder/")] == ["a folder/ä.bin"]
    assert google.world.writes - before == {"object": 1}


def test_a_generation_that_does_not_match_is_refused(bucket):
    """ifGenerationMatch=0 means that there must be no object; a mismatch is status 412, a lost generation 404.

    Source (read): https://cloud.google.com/storage/docs/request-preconditions
    """
    blob = bucket.blob("state")
    blob.upload_from_string("1", if_generation_match=0)
    first = blob.generation
    with pytest.raises(Exception, match="pre-conditions") as error:
        bucket.blob("state").upload_from_string("2", if_generation_match=0)
    assert status_of(error.value) == 412
    bucket.blob("state").upload_from_string("2", if_generation_match=first)
    assert bucket.blob("state").download_as_bytes() == b"2"
    with pytest.raises(Exception, match="No such object"):
        bucket.blob("state", generation=first).download_as_bytes()


def test_reading_an_object_requires_storage_objects_get(google, bucket):
    """A refusal names the permission, and testIamPermissions lists those that the caller has.

    Source (read): https://cloud.google.com/storage/docs/access-control/iam-json
    """
    bucket.blob("state").upload_from_string("1")
    google.world.owners.clear()
    with pytest.raises(Exception, match=r"does not have storage\.objects\.get access") as error:
        bucket.blob("state").download_as_bytes()
    assert status_of(error.value) == 403
    assert bucket.test_iam_permissions(["storage.objects.get", "storage.objects.create"]) == []
    grant(google, "roles/storage.objectUser")
    assert bucket.blob("state").download_as_bytes() == b"1"
    assert bucket.test_iam_permissions(["storage.objects.get", "storage.buckets.get"]) == ["storage.objects.get"]


def test_overwriting_an_object_requires_storage_objects_delete(google, bucket):
    """A role that only creates objects (storage.objectCreator) cannot replace one.

    Source (read): https://cloud.google.com/storage/docs/access-control/iam-json (objects.insert).
    """
    grant(google, "roles/storage.objectCreator")
    bucket.blob("state").upload_from_string("1")
    with pytest.raises(Exception, match=r"does not have storage\.objects\.delete access"):
        bucket.blob("state").upload_from_string("2")


def test_a_stale_etag_of_a_policy_is_status_412(google, bucket):
    """Other services answer with 409. Source (read):
    https://cloud.google.com/storage/docs/json_api/v1/buckets/setIamPolicy"""
    stale = bucket.get_iam_policy(requested_policy_version=3)
    google.world.set_policy(f"buckets/{NAME}", google.world.policy(f"buckets/{NAME}"))
    with pytest.raises(Exception, match="pre-conditions") as error:
        bucket.set_iam_policy(stale)
    assert status_of(error.value) == 412


def test_a_lost_bucket_or_object_is_status_404(client, bucket):
    """Source (read): https://cloud.google.com/storage/docs/json_api/v1/status-codes"""
    assert bucket.get_blob("nothing") is None
    with pytest.raises(Exception, match="bucket does not exist") as error:
        client.get_bucket("no-such-bucket")
    assert status_of(error.value) == 404


def test_the_body_of_an_error_lists_reasons_and_has_no_status(client, bucket):
    """An error of Cloud Storage has `errors` instead of google.rpc's name in `status`.

    Source (recorded): k8s-config-connector, storagebucket, commit 070531408b.
    """
    with pytest.raises(Exception, match="bucket does not exist") as missing:
        client.get_bucket("no-such-bucket")
    body = missing.value.response.json()["error"]
    assert body.keys() == {"code", "message", "errors"}
    assert body["errors"] == [{"domain": "global", "reason": "notFound", "message": body["message"]}]
