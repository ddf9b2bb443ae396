"""Examples per second of a shard whose images are in a bucket: `python -m benchmarks.bucket_reads`.

One process writes a shard of 256x256 JPEG files, as a Beam worker does, from a server on loopback that speaks the part
of Cloud Storage's JSON API that reading needs and answers every request `--latency` milliseconds late. The variants
take turns; the median of the rounds counts. Slipway is compared with Beam's own `FileSystems.open` for each image,
which it used before, and with one client that reads one image after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import multiprocessing
import os
import pickle
import statistics
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import google_crc32c

from benchmarks.photographs import make_jpegs
from slipway.components.cloud import objects
from slipway.components.prepare_data.listing.lists import ROW_AFTER_RANK
from slipway.components.prepare_data.remote import RemoteFiles
from slipway.components.prepare_data.sources.images import ImagesSource
from slipway.components.prepare_data.sources.source import PlainReader, Reader
from slipway.components.prepare_data.writing.shards import ShardTask, ShardWriter

BUCKET = "images"
OBJECT = "/storage/v1/b/images/o/"


def main() -> None:
    """Measure all variants in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=50, help="milliseconds before each answer")
    parser.add_argument("--count", type=int, default=2000, help="images; a variant reads at most as many as in 10 s")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_jpegs(folder / "images", arguments.count)
        here, there = multiprocessing.Pipe()
        server = multiprocessing.Process(
            target=serve, args=(folder / "images", arguments.latency / 1e3, there), daemon=True
        )
        server.start()
        os.environ["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{here.recv()}"
        rates: dict[str, list[float]] = {variant: [] for variant in READERS}
        for _ in range(arguments.rounds):
            for variant, found in rates.items():
                found.append(rate(folder, variant, arguments.latency))
        server.kill()
    medians = {variant: statistics.median(found) for variant, found in rates.items()}
    first = next(iter(medians.values()))
    for variant, found in medians.items():
        print(f"{variant:45} {found:8.1f} images/s  {found / first:6.1f}")
    print(json.dumps(medians))


class ByBeam(PlainReader):
    """Reads each image through Beam's file systems."""

    def __init__(self) -> None:
        from apache_beam.io.filesystems import FileSystems

        self._open = FileSystems.open

    def read(self, key: bytes, offset: int, size: int) -> bytes:  # noqa: ARG002
        from apache_beam.io.filesystem import CompressionTypes

        name = f"gs://{BUCKET}/{os.fsdecode(key)}"
        with self._open(name, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            data: bytes = file.read()
        return data


class OneByOne(PlainReader):
    """Reads one image after the other with one client."""

    def read(self, key: bytes, offset: int, size: int) -> bytes:  # noqa: ARG002
        return objects.read(f"gs://{BUCKET}/{os.fsdecode(key)}")


READERS: dict[str, Callable[[], Reader]] = {
    "FileSystems.open of Beam": ByBeam,
    "one client, one image after the other": OneByOne,
    f"Slipway: one client, {objects.THREADS} images at once": lambda: RemoteFiles(Path("/gcs", BUCKET)),
}


class InBucket(ImagesSource):
    """A folder of images that is read from the bucket."""

    def __init__(self, folder: Path, variant: str) -> None:
        super().__init__(str(folder), f"images:{folder}")
        self._variant = variant

    def reader(self, scratch: Path) -> Reader:  # noqa: ARG002
        return READERS[self._variant]()


def rate(folder: Path, variant: str, latency: float) -> float:
    """Return the examples per second of one shard."""
    images = folder / "images"
    slow = variant != list(READERS)[-1]
    files = sorted(images.rglob("*.jpg"))[: max(20, int(10 / (3 * latency / 1e3))) if slow and latency else None]
    labels = sorted({file.parent.name for file in files})
    rows = []
    for number, file in enumerate(files):
        key = os.fsencode(file.relative_to(images))
        row = ROW_AFTER_RANK.pack(number, file.stat().st_size, 0, 0, len(key))
        rows.append(row + key + labels.index(file.parent.name).to_bytes(4))
    (folder / "list").write_bytes(pickle.dumps(rows))
    task = ShardTask(
        path=folder / "shard",
        examples=folder / "list",
        result=folder / "result",
        decoded_below=1 << 64,
        refuse_damaged=False,
        gray=False,
        resize=None,
        images=[],
        max_skipped_named=0,
    )
    source = InBucket(images, variant)
    # Clients are created, and Beam looks for credentials, for up to half a minute.
    source.reader(folder).read(os.fsencode(files[0].relative_to(images)), 0, files[0].stat().st_size)
    writer = ShardWriter(source, folder, labels)
    started = time.monotonic()
    result = writer(task, lambda _: None)
    assert result.tally.examples == len(files)
    return len(files) / (time.monotonic() - started)


def serve(folder: Path, latency: float, port: Connection) -> None:
    """Serve the files of a folder as the objects of a bucket, each answer `latency` seconds late."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.readline():
            while (await reader.readline()).strip():
                pass
            await asyncio.sleep(latency)
            target = urllib.parse.urlsplit(request.split()[1].decode())
            head, body = response(folder, urllib.parse.unquote(target.path), target.query)
            writer.write(f"HTTP/1.1 200 OK\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def response(folder: Path, path: str, query: str) -> tuple[str, bytes]:
    """Return headers and body: the bytes of an object, its resource, or that of the bucket."""
    if OBJECT not in path:
        return "Content-Type: application/json\r\n", json.dumps({"name": BUCKET, "location": "US"}).encode()
    name = path.partition(OBJECT)[2]
    content = (folder / name).read_bytes()
    checksum = base64.b64encode(google_crc32c.Checksum(content).digest()).decode()
    if "alt=media" in query:
        return f"Content-Type: image/jpeg\r\nX-Goog-Hash: crc32c={checksum}\r\n", content
    about = {"name": name, "bucket": BUCKET, "size": str(len(content)), "crc32c": checksum}
    return "Content-Type: application/json\r\n", json.dumps(about).encode()


if __name__ == "__main__":
    main()
