"""Temporary files of sources that can only be read sequentially.

The spool file is written while the source is listed and read by the shard writers. Keys that occur twice and equal rows
are found by SQLite, which sorts on disk: memory use does not grow with their number.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import marshal
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from slipway.components.prepare_data.listing.index import database

LENGTH = struct.Struct("<I")
BUFFER_BYTES = 1 << 20
# Of a row's values.
DIGEST_BYTES = 8


class Spool:
    """Appends examples to the spool file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0

    def __enter__(self) -> Spool:
        self._file = self._path.open("wb", buffering=BUFFER_BYTES)
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, data: bytes, further: Iterable[tuple[bytes, bytes]] | None = None) -> int:
        """Append an example's bytes and additional features; return their offset."""
        place = self._place
        self._place += self._file.write(data)
        if further is not None:
            packed = marshal.dumps(list(further))
            self._place += self._file.write(LENGTH.pack(len(packed))) + self._file.write(packed)
        return place


class SpoolReader:
    """Reads a file written by `Spool`."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def data(self, place: int, size: int) -> bytes:
        """Return the bytes of an example."""
        return read_at(self._descriptor, place, size)

    def further(self, place: int) -> list[tuple[bytes, bytes]]:
        """Return the additional features at offset `place`, after the example's bytes."""
        (length,) = LENGTH.unpack(os.pread(self._descriptor, LENGTH.size, place))
        found: list[tuple[bytes, bytes]] = marshal.loads(os.pread(self._descriptor, length, place + LENGTH.size))
        return found


def read_at(descriptor: int, place: int, size: int) -> bytes:
    """Return `size` bytes at offset `place` of an open file, or fewer at its end."""
    data = os.pread(descriptor, size, place)
    while 0 < len(data) < size and (more := os.pread(descriptor, size - len(data), place + len(data))):
        data += more
    return data


class SortedRows:
    """Keys and values, sorted in the temporary file `path`, which is deleted at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._path.unlink, missing_ok=True)
        self._rows = self._stack.enter_context(database(self._path))
        self._rows.execute("CREATE TABLE rows (key BLOB, value)")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _add(self, key: bytes, value: object) -> None:
        self._rows.execute("INSERT INTO rows VALUES (?, ?)", (key, value))

    def _sorted(self) -> Iterator[tuple[bytes, Any]]:
        return self._rows.execute("SELECT key, value FROM rows ORDER BY length(key), key, value")


class UniqueKeys(SortedRows):
    """Keys and their line numbers."""

    def add(self, key: bytes, line: int) -> None:
        """Add a key and its line number."""
        self._add(key, line)

    def twice(self) -> tuple[bytes, int, int] | None:
        """Return the first of the shortest duplicate keys, with its first two lines, or None."""
        for (one, line), (other, next_line) in itertools.pairwise(self._sorted()):
            if one == other:
                return one, line, next_line
        return None


class EqualRows(SortedRows):
    """Rows of a table, or examples without a key, by a hash of their values."""

    def add(self, values: bytes, about: tuple[Any, ...]) -> None:
        """Add a row with these values; `about` is returned with it."""
        self._add(hashlib.blake2b(values, digest_size=DIGEST_BYTES).digest(), marshal.dumps(about))

    def keyed(self) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
        """Yield a key of each row, unique by a number where rows are equal, and what was added with it."""
        for digest, equal in itertools.groupby(self._sorted(), key=lambda row: row[0]):
            for number, (_, about) in enumerate(equal, 1):
                copy = b" copy %d" % number if number > 1 else b""
                yield b"row " + digest.hex().encode() + copy, marshal.loads(about)
