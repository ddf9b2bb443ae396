"""Objects in Cloud Storage without a mount: one client, one request for each, retried as the service documents."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.api_core.exceptions import PreconditionFailed
from google.cloud.storage.exceptions import DataCorruption

from slipway.components.cloud import objects
from slipway.core import buckets
from slipway.core.errors import UserError
from tests.fakes.errors import ServiceError
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.http_service import Raw, Request

BUCKET = "slipway-test-objects"
CONTENT = bytes(range(256)) * 40


@pytest.fixture
def bucket(google: FakeGoogle, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGoogle]:
    monkeypatch.setenv("API_ENDPOINT_OVERRIDE", f"https://{google.endpoints['storage']}")
    google.storage.add_bucket(BUCKET, google.world.projects[PROJECT], REGION)
    google.storage.write(BUCKET, "folder/a b%20c.bin", CONTENT)
    objects._client.cache_clear()
    yield google
    objects._client.cache_clear()


def test_an_object_or_a_part_of_it_is_read(bucket: FakeGoogle, tmp_path: Path) -> None:
    uri = f"gs://{BUCKET}/folder/a b%20c.bin"
    assert objects.read(uri) == CONTENT
    assert objects.read(uri, 300, 17) == CONTENT[300:317]
    assert objects.read(uri, 0, 5) == CONTENT[:5]
    assert objects.read(uri, 10_000, 1000) == CONTENT[10_000:]
    assert objects.read(uri, 5, 0) == b""
    assert objects.read(uri, len(CONTENT), 10) == b""
    objects.download(uri, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT


def test_an_uploaded_object_replaces_the_earlier_one(bucket: FakeGoogle, tmp_path: Path) -> None:
    large = CONTENT * 1000  # sent in a resumable upload
    (tmp_path / "file").write_bytes(large)
    for _ in range(2):
        objects.upload(tmp_path / "file", f"gs://{BUCKET}/set/shard")
        assert bucket.storage.read(BUCKET, "set/shard")[0] == large


def test_threads_share_a_client_and_each_keeps_its_connection(
    bucket: FakeGoogle, caplog: pytest.LogCaptureFixture
) -> None:
    together = threading.Barrier(buckets.THREADS, timeout=180)

    def gate(request: Request) -> None:
        if "alt=media" in request.target:
            together.wait()  # passes only if all requests are made at once

    bucket.http["storage"].gate = gate
    for _ in range(3):
        read = [buckets.threads().submit(objects.read, f"gs://{BUCKET}/folder/a b%20c.bin") for _ in range(32)]
        assert {len(found.result()) for found in read} == {len(CONTENT)}
    assert "discarding connection" not in caplog.text  # urllib3, of a session with fewer


def test_a_damaged_answer_is_read_again_and_never_used(bucket: FakeGoogle) -> None:
    """The client compares whole objects with their checksum, and Slipway the answers to two requests for a range."""
    uri, left = f"gs://{BUCKET}/folder/a b%20c.bin", [0]

    def damage(request: Request) -> Raw | None:
        if "alt=media" not in request.target or not left[0]:
            return None
        left[0] -= 1
        answer = bucket.storage._pass_on(request)
        return Raw(bytes([left[0]]) + answer.body[1:], answer.status, answer.headers)

    bucket.http["storage"].gate = damage
    left[0] = 1
    with objects.open_object(uri, 1000) as file:
        assert file.read(2000) == CONTENT[:2000]
        assert file.seek(-5, 2) == len(CONTENT) - 5
        assert (file.read(), left) == (CONTENT[-5:], [0])
    left[0] = 100
    with objects.open_object(uri, 1000) as file, pytest.raises(OSError, match="for the same bytes differ"):
        file.read(10)
    with pytest.raises(DataCorruption):
        objects.read(uri)


def test_transient_errors_are_retried(bucket: FakeGoogle) -> None:
    for status in (503, 429, 500):
        bucket.faults.plan("GET /download/storage/v1/b/slipway-test-objects/o/", ServiceError(status, "try again"))
    assert objects.read(f"gs://{BUCKET}/folder/a b%20c.bin") == CONTENT
    assert bucket.faults.struck.total() == 3


def test_a_missing_object_and_missing_rights_are_told_apart(bucket: FakeGoogle) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        objects.read(f"gs://{BUCKET}/folder/none")
    assert missing.value.strerror == "No such file or directory"
    bucket.world.owners.clear()
    with pytest.raises(
        UserError, match=r"Access to gs://slipway-test-objects/folder/none is denied: .*objects\.get"
    ) as e:
        objects.read(f"gs://{BUCKET}/folder/none")
    assert e.value.fix == f"grant the account of the workers roles/storage.objectUser on gs://{BUCKET}"


def test_another_error_of_an_upload_is_raised(bucket: FakeGoogle, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    bucket.faults.plan(f"POST /upload/storage/v1/b/{BUCKET}/o", ServiceError(412, "the bucket is locked"))
    with pytest.raises(PreconditionFailed, match="the bucket is locked"):
        objects.upload(tmp_path / "file", f"gs://{BUCKET}/set/shard")
