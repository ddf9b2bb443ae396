"""The fake of Cloud Storage with google.cloud.storage: permissions, generations, resumable uploads, owners."""

from __future__ import annotations

from typing import Any

import pytest

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import status_of
from tests.fakes.google import NUMBER, PROJECT, REGION, SUBMITTER, FakeGoogle


@pytest.fixture
def client(google: FakeGoogle) -> Any:
    return Connection(PROJECT, REGION, google.endpoints).storage


@pytest.fixture
def bucket(google: FakeGoogle, client: Any) -> Any:
    made = client.bucket("slipway-test-runs")
    made.iam_configuration.uniform_bucket_level_access_enabled = True
    return client.create_bucket(made, location=REGION)


def test_a_bucket_has_its_place_and_its_project(google, client, bucket):
    found = client.get_bucket("slipway-test-runs")
    assert (found.location, found.location_type, found.project_number) == ("EUROPE-WEST4", "region", NUMBER)
    assert found.iam_configuration.uniform_bucket_level_access_enabled
    assert [b.name for b in client.list_buckets(project=str(NUMBER))] == ["slipway-test-runs"]
    with pytest.raises(Exception, match="already own it") as error:
        client.create_bucket("slipway-test-runs")
    assert status_of(error.value) == 409


@pytest.mark.parametrize("chunk", [None, 256 * 1024])
def test_what_goes_up_comes_down(bucket, chunk):
    content = bytes(range(256)) * 4096
    bucket.blob("a folder/ä.bin", chunk_size=chunk).upload_from_string(content)
    found = bucket.get_blob("a folder/ä.bin")
    assert found.size == len(content)
    assert found.download_as_bytes() == content
    assert [blob.name for blob in bucket.list_blobs(prefix="a folder/")] == ["a folder/ä.bin"]


def test_generations_are_held_against_what_is_there(bucket):
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


def test_rights_are_asked_for_in_the_services_words(google, bucket):
    bucket.blob("state").upload_from_string("1")
    google.world.owners.clear()
    with pytest.raises(Exception, match=r"does not have storage\.objects\.get access") as error:
        bucket.blob("state").download_as_bytes()
    assert status_of(error.value) == 403
    assert bucket.test_iam_permissions(["storage.objects.get", "storage.objects.create"]) == []
    member = f"serviceAccount:{SUBMITTER}"
    policy = google.world.policy("buckets/slipway-test-runs")
    policy["bindings"].append({"role": "roles/storage.objectUser", "members": [member]})
    google.world.set_policy("buckets/slipway-test-runs", policy)
    assert bucket.blob("state").download_as_bytes() == b"1"
    assert bucket.test_iam_permissions(["storage.objects.get", "storage.buckets.get"]) == ["storage.objects.get"]


def test_a_stale_policy_is_refused(google, bucket):
    stale = bucket.get_iam_policy(requested_policy_version=3)
    google.world.set_policy("buckets/slipway-test-runs", google.world.policy("buckets/slipway-test-runs"))
    with pytest.raises(Exception, match="pre-conditions") as error:
        bucket.set_iam_policy(stale)
    assert status_of(error.value) == 412


def test_what_is_not_there_is_said(client, bucket):
    assert bucket.get_blob("nothing") is None
    with pytest.raises(Exception, match="bucket does not exist"):
        client.get_bucket("no-such-bucket")


def test_only_what_changes_something_is_a_write(google, bucket):
    before = google.world.writes.copy()
    bucket.blob("large", chunk_size=256 * 1024).upload_from_string(b"0" * 600_000)
    bucket.blob("large").download_as_bytes()
    list(bucket.list_blobs())
    assert google.world.writes - before == {"object": 1}
