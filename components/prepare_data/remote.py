"""Read and write files in buckets that are not mounted (for example on Dataflow workers), through Apache Beam."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from slipway.components.prepare_data.examples import Unusable

CLOUD_MOUNT = "/gcs"
PIECE_BYTES = 1 << 20


def is_remote(path: Path) -> bool:
    """Whether `path` is in a bucket that is not mounted on this machine."""
    return path.is_relative_to(CLOUD_MOUNT) and not is_mounted()


def is_mounted() -> bool:
    """Whether buckets are mounted on this machine, as they are on Vertex AI."""
    return Path(CLOUD_MOUNT).is_dir()


def uri(path: Path) -> str:
    """Return the gs:// URI of a path below the mount point."""
    return f"gs://{path.relative_to(CLOUD_MOUNT).as_posix()}"


def open_remote(path: Path) -> Any:
    """Open a remote file as a seekable binary file object."""
    from apache_beam.io.filesystem import CompressionTypes
    from apache_beam.io.filesystems import FileSystems

    return FileSystems.open(uri(path), compression_type=CompressionTypes.UNCOMPRESSED)


def fetch(path: Path, target: Path) -> None:
    """Copy a local or remote file to the local `target`."""
    with open_remote(path) if is_remote(path) else path.open("rb") as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, PIECE_BYTES)


def store(source: Path, target: Path) -> None:
    """Copy a local file to `target`, which may be remote, atomically."""
    if is_remote(target):
        from apache_beam.io.filesystem import CompressionTypes
        from apache_beam.io.filesystems import FileSystems

        with (
            source.open("rb") as content,
            FileSystems.create(uri(target), compression_type=CompressionTypes.UNCOMPRESSED) as copy,
        ):
            shutil.copyfileobj(content, copy, PIECE_BYTES)
        return
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, beside)
    beside.replace(target)


class RemoteFiles:
    """Reads files below a folder in a bucket."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, key: bytes, offset: int, size: int) -> bytes:  # noqa: ARG002
        try:
            with open_remote(self._root / os.fsdecode(key)) as file:
                data: bytes = file.read()
        except OSError as error:  # Beam's own errors are OSErrors without errno
            raise Unusable(f"it cannot be read: {error}") from None
        if len(data) != size:
            raise Unusable(f"it has {len(data):,} bytes; it had {size:,} when it was listed")
        return data

    def additional(self, offset: int) -> tuple[()]:  # noqa: ARG002
        return ()
