"""Files in a bucket where it is not mounted, as on Dataflow's machines: read and written through Apache Beam."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from slipway.components.prepare_data.encoding.unusable import Unusable

CLOUD_MOUNT = "/gcs"
PIECE_BYTES = 1 << 20


def is_remote(path: Path) -> bool:
    """Whether `path` lies in a bucket that is not mounted here."""
    return path.is_relative_to(CLOUD_MOUNT) and not is_mounted()


def is_mounted() -> bool:
    """Whether buckets are mounted on this machine, as on those of Vertex AI."""
    return Path(CLOUD_MOUNT).is_dir()


def uri(path: Path) -> str:
    """The gs:// URI of a path below the mount."""
    return f"gs://{path.relative_to(CLOUD_MOUNT).as_posix()}"


def open_remote(path: Path) -> Any:
    """A file object of bytes, which can seek."""
    from apache_beam.io.filesystem import CompressionTypes
    from apache_beam.io.filesystems import FileSystems

    return FileSystems.open(uri(path), compression_type=CompressionTypes.UNCOMPRESSED)


def fetch(path: Path, target: Path) -> None:
    """Copy a file that may be remote to the local `target`."""
    with open_remote(path) if is_remote(path) else path.open("rb") as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, PIECE_BYTES)


def store(source: Path, target: Path) -> None:
    """Copy a local file to `target`, which may be remote; it is there whole or not at all."""
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
    """Reads the files below a folder of a bucket."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, key: bytes, place: int, size: int) -> bytes:  # noqa: ARG002
        try:
            with open_remote(self._root / os.fsdecode(key)) as file:
                data: bytes = file.read()
        except OSError as error:  # Beam's own errors are of this kind, without a number
            raise Unusable(f"it cannot be read: {error}") from None
        if len(data) != size:
            raise Unusable(f"it has {len(data):,} bytes, {size:,} when it was listed")
        return data

    def further(self, place: int) -> tuple[()]:  # noqa: ARG002
        return ()
