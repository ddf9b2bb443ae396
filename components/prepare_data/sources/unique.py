"""Check that keys are unique with an external merge sort."""

from __future__ import annotations

import heapq
import itertools
import marshal
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

MOST_ROWS = 8192
PIECE_ROWS = 256
Row = tuple[bytes, int]


class UniqueKeys:
    """Keys and their line numbers, stored in the temporary file `path`, which is deleted at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[Row] = []
        self._runs: list[list[int]] = []

    def __enter__(self) -> UniqueKeys:
        self._file: BinaryIO = self._path.open("w+b")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._path.unlink()

    def add(self, key: bytes, line: int) -> None:
        """Add a key and its line number."""
        self._rows.append((key, line))
        if len(self._rows) == MOST_ROWS:
            self._write_run()

    def twice(self) -> tuple[bytes, int, int] | None:
        """Return the first duplicate key in sort order, with its first two lines, or None."""
        self._write_run()
        merged = heapq.merge(*(self._read_run(places) for places in self._runs))
        for (key, line), (other, other_line) in itertools.pairwise(merged):
            if key == other:
                return key, line, other_line
        return None

    def _write_run(self) -> None:
        self._rows.sort()
        places: list[int] = []
        for start in range(0, len(self._rows), PIECE_ROWS):
            places.append(self._file.seek(0, 2))
            marshal.dump(self._rows[start : start + PIECE_ROWS], self._file)
        self._runs.append(places)
        self._rows.clear()

    def _read_run(self, places: list[int]) -> Iterator[Row]:
        for place in places:
            self._file.seek(place)
            yield from marshal.load(self._file)
