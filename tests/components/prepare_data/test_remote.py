"""Examples in buckets that are not mounted: one request for each, many at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.components.cloud import objects
from slipway.components.prepare_data import remote
from slipway.components.prepare_data.examples import Example, Unusable
from slipway.components.prepare_data.remote import ReadAhead, RemoteFiles
from slipway.core import buckets
from slipway.core.errors import UserError
from tests.fakes.google import PROJECT, REGION, FakeGoogle

BUCKET = "slipway-test-images"
ROOT = Path("/gcs", BUCKET, "images")


@pytest.fixture
def bucket(google: FakeGoogle, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGoogle]:
    """A bucket with 100 files of 1 to 100 bytes."""
    monkeypatch.setenv("API_ENDPOINT_OVERRIDE", f"https://{google.endpoints['storage']}")
    google.storage.add_bucket(BUCKET, google.world.projects[PROJECT], REGION)
    for number in range(100):
        google.storage.write(BUCKET, f"images/a/{number}.png", bytes(number + 1))
    objects._client.cache_clear()
    yield google
    objects._client.cache_clear()


def examples(count: int) -> list[Example]:
    return [(f"a/{number}.png".encode(), 0, number + 1, 0) for number in range(count)]


def test_an_image_costs_one_request(bucket: FakeGoogle) -> None:
    files = RemoteFiles(ROOT)
    read = [files.read(key, offset, size) for key, _, size, offset in files.ahead(examples(100))]
    assert read == [bytes(number + 1) for number in range(100)]
    calls = {name: count for name, count in bucket.faults.calls.items() if f"/b/{BUCKET}" in name}
    # Google's client reads the bucket's metadata once for its traces.
    assert calls.pop(f"storage GET /storage/v1/b/{BUCKET}", 1) == 1
    assert calls == {f"storage GET /download/storage/v1/b/{BUCKET}/o/images/a/{number}.png": 1 for number in range(100)}


def test_a_missing_image_is_unusable_and_a_changed_one_stops_the_run(bucket: FakeGoogle) -> None:
    files = RemoteFiles(ROOT)
    listed: list[Example] = [*examples(3), (b"a/none.png", 0, 5, 0), (b"/data/b.png", 0, 5, 0), (b"a/7.png", 0, 5, 0)]
    bucket.storage.write(BUCKET, "images/b.png", b"b")
    listed.append((f"/gcs/{BUCKET}/images/b.png".encode(), 0, 1, 0))
    found: list[object] = []
    for key, _, size, offset in files.ahead(listed):
        try:
            found.append(files.read(key, offset, size))
        except (Unusable, UserError) as error:
            found.append(str(error).splitlines()[0])
    assert found == [
        b"\0",
        b"\0\0",
        b"\0\0\0",
        "it cannot be read: No such file or directory",
        "it cannot be read: /data/b.png is not in a bucket",
        f"gs://{BUCKET}/images/a/7.png changed while the data set was prepared: it has 8 bytes, not 5.",
        b"b",
    ]


class Slow:
    """Counts reads; each waits until `expected` of them are made at once."""

    def __init__(self, expected: int) -> None:
        self.barrier = threading.Barrier(expected, timeout=20)
        self.started: list[bytes] = []

    def read(self, key: bytes, offset: int, size: int) -> bytes:
        self.started.append(key)
        self.barrier.wait()
        return key


def test_as_many_examples_are_read_at_once_as_there_are_threads() -> None:
    slow = Slow(remote.IN_FLIGHT)
    reads = ReadAhead(slow.read)
    listed = [(str(number).encode(), 0, 1, 0) for number in range(2 * remote.IN_FLIGHT)]
    found = [reads.read(key, offset, size) for key, _, size, offset in reads.ahead(listed)]
    assert found == [key for key, *_ in listed]


def test_large_examples_do_not_fill_the_memory() -> None:
    slow = Slow(1)
    reads = ReadAhead(slow.read)
    sizes = [int(part * remote.AHEAD_BYTES) for part in (0.4, 0.4, 0.4, 5, 0.4)]
    ahead = reads.ahead([(str(number).encode(), 0, size, 0) for number, size in enumerate(sizes)])
    for number, at_most in enumerate([3, 3, 3, 3, 5]):
        key, _, size, offset = next(ahead)
        assert int(key) == number
        assert len(slow.started) <= at_most  # the largest one is read when it is needed
        assert reads.read(key, offset, size) == key


def test_reads_that_are_no_longer_needed_are_cancelled() -> None:
    begun, free = threading.Event(), threading.Event()
    started: list[bytes] = []

    def read(key: bytes, offset: int, size: int) -> bytes:
        started.append(key)
        begun.set()
        free.wait(20)
        return key

    busy = [buckets.threads().submit(free.wait, 20) for _ in range(buckets.THREADS - 1)]
    reads = ReadAhead(read)
    ahead = reads.ahead([(str(number).encode(), 0, 1, 0) for number in range(40)])
    next(ahead)
    assert begun.wait(20)
    ahead.close()
    free.set()
    for waiting in busy:
        waiting.result()
    assert buckets.threads().submit(lambda: len(started)).result() == 1


def test_a_remote_file_is_read_in_large_pieces(bucket: FakeGoogle) -> None:
    content = b"".join(b"line %d\n" % number for number in range(2000))
    bucket.storage.write(BUCKET, "table.csv", content)
    with remote.open_file(ROOT.with_name("table.csv"), 8192) as file:
        assert file.readline() == b"line 0\n"
        assert (file.seek(0, 2), file.read(1)) == (len(content), b"")
        assert file.seek(9) == 9
        assert file.read(5) + file.readline() == content[9:14] + content[14:].partition(b"\n")[0] + b"\n"
        assert file.read() == content[content.index(b"line 3\n") :]
    calls = bucket.faults.calls[f"storage GET /download/storage/v1/b/{BUCKET}/o/table.csv"]
    assert calls < 10  # two for a piece
    with pytest.raises(FileNotFoundError):
        remote.open_file(ROOT / "none", 8192)
