"""Temporary files of sources that can only be read sequentially.

The spool file is written while the source is listed and read by the shard writers. Keys that occur
twice and equal rows are found with the listing's external merge sort: memory use does not grow with their number.
"""

from __future__ import annotations

import hashlib
import itertools
import marshal
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

from slipway.components.prepare_data.listing import index
from slipway.components.prepare_data.listing.index import Run, append_run, merge_runs

LENGTH = struct.Struct("<I")
BUFFER_BYTES = 1 << 20
# The number of a key's line, and the length of the key.
NUMBER = struct.Struct(">Q")
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
    """Rows sorted in the temporary file `path`, which is deleted at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[bytes] = []
        self._runs: list[Run] = []

    def __enter__(self) -> Self:
        self._file: BinaryIO = self._path.open("w+b")
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._path.unlink()

    def _add(self, row: bytes) -> None:
        self._rows.append(row)
        if len(self._rows) == index.MOST_ROWS_LISTED:
            self._write_run()

    def _sorted(self) -> Iterator[bytes]:
        self._write_run()
        return merge_runs(self._file, self._runs)

    def _write_run(self) -> None:
        self._runs.append(append_run(self._file, sorted(self._rows)))
        self._rows.clear()


class UniqueKeys(SortedRows):
    """Keys and their line numbers."""

    def add(self, key: bytes, line: int) -> None:
        """Add a key and its line number."""
        self._add(NUMBER.pack(len(key)) + key + NUMBER.pack(line))

    def twice(self) -> tuple[bytes, int, int] | None:
        """Return the first of the shortest duplicate keys, with its first two lines, or None."""
        key = slice(NUMBER.size, -NUMBER.size)
        for one, other in itertools.pairwise(self._sorted()):
            if one[key] == other[key]:
                lines = (NUMBER.unpack(row[-NUMBER.size :])[0] for row in (one, other))
                return one[key], *lines
        return None


class EqualRows(SortedRows):
    """Rows of a table, or examples without a key, by a hash of their values."""

    def add(self, values: bytes, about: tuple[Any, ...]) -> None:
        """Add a row with these values; `about` is returned with it."""
        digest = hashlib.blake2b(values, digest_size=DIGEST_BYTES).digest()
        self._add(digest + marshal.dumps(about))

    def keyed(self) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
        """Yield a key of each row, unique by a number where rows are equal, and what was added with it."""
        last, number = b"", 0
        for row in self._sorted():
            digest = row[:DIGEST_BYTES]
            number = number + 1 if digest == last else 1
            last = digest
            copy = b" copy %d" % number if number > 1 else b""
            yield b"row " + digest.hex().encode() + copy, marshal.loads(row[DIGEST_BYTES:])
