"""The temporary file of a source that can only be read sequentially: the shard writers read it by example."""

from __future__ import annotations

import marshal
import os
import struct
from collections.abc import Iterable
from pathlib import Path

LENGTH = struct.Struct("<I")
BUFFER_BYTES = 1 << 20


class Spool:
    """Appends examples to the spool file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def __enter__(self) -> Spool:
        self._file = self._path.open("wb", buffering=BUFFER_BYTES)
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, data: bytes, additional: Iterable[tuple[bytes, bytes]] | None = None) -> int:
        """Append an example's bytes and additional features; return their offset."""
        offset = self._offset
        self._offset += self._file.write(data)
        if additional is not None:
            packed = marshal.dumps(list(additional))
            self._offset += self._file.write(LENGTH.pack(len(packed))) + self._file.write(packed)
        return offset


class SpoolReader:
    """Reads a file written by `Spool`."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def data(self, offset: int, size: int) -> bytes:
        """Return the bytes of an example."""
        return read_at(self._descriptor, offset, size)

    def additional(self, offset: int) -> list[tuple[bytes, bytes]]:
        """Return the additional features at `offset`, after the example's bytes."""
        (length,) = LENGTH.unpack(os.pread(self._descriptor, LENGTH.size, offset))
        features: list[tuple[bytes, bytes]] = marshal.loads(os.pread(self._descriptor, length, offset + LENGTH.size))
        return features


def read_at(descriptor: int, offset: int, size: int) -> bytes:
    """Return `size` bytes at `offset` of an open file, or fewer at its end."""
    data = os.pread(descriptor, size, offset)
    while 0 < len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data
