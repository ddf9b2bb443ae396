"""Objects in Cloud Storage while Google's own test bench for its clients fails calls and breaks answers off.

The test bench is https://github.com/googleapis/storage-testbench, which has to run: `python testbench_run.py localhost 9000
10`, and SLIPWAY_STORAGE_TESTBENCH=http://localhost:9000. Without it, the tests are skipped.
"""  # noqa: E501 (an address)

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from slipway.components.cloud import objects
from slipway.components.cloud.connection import Connection
from slipway.components.train.tpu.bucket import BucketFolder

HOST = os.environ.get("SLIPWAY_STORAGE_TESTBENCH", "")
BUCKET, NAME = "slipway-outside", "folder/object"
SIZE = 1_500_000
CONTENT = random.Random(7).randbytes(SIZE)
# Faults of one call, which another try does not meet.
TRANSIENT = (*(f"return-{status}" for status in (408, 429, 500, 502, 503, 504)), "return-reset-connection")
BROKEN = ("return-broken-stream", "return-broken-stream-after-256K", "stall-for-1s-after-256K")

pytestmark = pytest.mark.skipif(not HOST, reason="SLIPWAY_STORAGE_TESTBENCH does not name a running test bench")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[storage.Client]:
    """The client of `objects`, of a bucket with one object."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", HOST)
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.02")
    made = storage.Client("slipway-test", AnonymousCredentials())
    bucket = made.bucket(BUCKET)
    if not bucket.exists():
        bucket.create()
    bucket.blob(NAME).upload_from_string(CONTENT)
    monkeypatch.setattr(objects, "_client", lambda: made)
    yield made


@pytest.fixture
def folder(client: storage.Client) -> BucketFolder:
    connection = Connection("slipway-test", "europe-west4")
    connection.__dict__["storage"] = client
    return BucketFolder(connection, BUCKET, "folder")


def plan(client: storage.Client, method: str, *faults: str) -> Callable[[], bool]:
    """Let calls fail in this order; return a function that says whether all of the faults were met."""
    body = {"instructions": {method: list(faults)}, "transport": "HTTP"}
    test = requests.post(f"{HOST}/retry_test", json=body, timeout=60).json()["id"]
    client._http.headers["x-retry-test-id"] = test
    return lambda: bool(requests.get(f"{HOST}/retry_test/{test}", timeout=60).json()["completed"])


@pytest.mark.parametrize("fault", [*TRANSIENT, *BROKEN])
def test_an_object_is_read_whole(client: storage.Client, fault: str) -> None:
    met = plan(client, "storage.objects.get", fault)
    assert objects.read(f"gs://{BUCKET}/{NAME}") == CONTENT
    assert met()


@pytest.mark.parametrize("fault", [*TRANSIENT, *BROKEN])
def test_a_range_is_read(client: storage.Client, fault: str) -> None:
    met = plan(client, "storage.objects.get", fault)
    assert objects.read(f"gs://{BUCKET}/{NAME}", 100_000, 900_000) == CONTENT[100_000:1_000_000]
    assert met()


@pytest.mark.parametrize("fault", [*TRANSIENT, *BROKEN])
def test_an_object_is_opened_and_read_in_parts(client: storage.Client, fault: str) -> None:
    faults = [fault, fault] if fault in TRANSIENT else [fault]  # the first for the object's metadata
    met = plan(client, "storage.objects.get", *faults)
    with objects.open_object(f"gs://{BUCKET}/{NAME}", 400_000) as file:
        parts = [file.read(700_000), file.read()]
    assert b"".join(parts) == CONTENT
    assert met()


@pytest.mark.parametrize("fault", [*TRANSIENT, *BROKEN])
def test_an_object_is_copied_to_a_file(client: storage.Client, fault: str, tmp_path: Path) -> None:
    met = plan(client, "storage.objects.get", fault)
    objects.download(f"gs://{BUCKET}/{NAME}", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT
    assert met()


@pytest.mark.parametrize("fault", TRANSIENT)
def test_a_file_is_copied_to_an_object(client: storage.Client, fault: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT[::-1])
    met = plan(client, "storage.objects.insert", fault)
    objects.upload(tmp_path / "file", f"gs://{BUCKET}/{NAME}")
    assert met()
    assert client.bucket(BUCKET).blob(NAME).download_as_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("fault", TRANSIENT)
def test_a_folder_of_a_bucket_is_listed_written_and_read(
    client: storage.Client, folder: BucketFolder, fault: str
) -> None:
    met = plan(client, "storage.objects.insert", fault, fault)
    folder.write("state.json", b"{}")
    assert met()
    met = plan(client, "storage.objects.list", fault)
    assert folder.names() == ["object", "state.json"]
    assert met()
    met = plan(client, "storage.objects.get", fault, "return-broken-stream")
    assert folder.read("object") == CONTENT
    assert met()


def test_a_range_at_the_end_is_empty_and_no_error(client: storage.Client) -> None:
    assert objects.read(f"gs://{BUCKET}/{NAME}", SIZE, 10) == b""
    assert objects.read(f"gs://{BUCKET}/{NAME}", SIZE - 3, 10) == CONTENT[-3:]


def test_what_does_not_exist_is_no_file(client: storage.Client, folder: BucketFolder) -> None:
    with pytest.raises(FileNotFoundError):
        objects.read(f"gs://{BUCKET}/nothing")
    assert folder.read("nothing") is None


def test_damaged_content_is_not_returned(client: storage.Client) -> None:
    """The test bench changes the bytes of each answer, as a faulty network card would."""
    client._http.headers["x-goog-emulator-instructions"] = "return-corrupted-data"
    with pytest.raises(Exception, match=r"(?i)checksum|differ|mismatch"):
        objects.read(f"gs://{BUCKET}/{NAME}")
