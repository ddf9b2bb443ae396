"""Read a Parquet file in batches of columns, whose cells are the texts that the same table has as a CSV file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import IO

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from slipway.core.tables.batch import SIMPLE, Batch, Mistake, Section, TableFile

BATCH_ROWS = 8192
# Bytes of a column that are read at a time.
BUFFER_BYTES = 1 << 20
LISTS = (pyarrow.types.is_list, pyarrow.types.is_large_list, pyarrow.types.is_fixed_size_list)
# Types without a text.
REFUSED = {
    "bytes": (pyarrow.types.is_binary, pyarrow.types.is_large_binary, pyarrow.types.is_fixed_size_binary),
    "structs": (pyarrow.types.is_struct, pyarrow.types.is_map),
}


class ParquetFile(TableFile):
    """A Parquet file. A list is the texts of its values, separated by spaces.

    Args:
        file: The open file.
        path: Its path, for messages.
        mistake: Returns the error of a file with this message.

    Raises:
        UserError: It is not a Parquet file, or has columns without a text.
    """

    item = "row"

    def __init__(self, file: IO[bytes], path: object, mistake: Mistake) -> None:
        self._path = path
        self._mistake = mistake
        self.header = str(path)
        try:
            self._file = pyarrow.parquet.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False)
        except pyarrow.ArrowInvalid as error:
            raise self._damaged(error) from None
        schema = self._file.schema_arrow
        self.names = [name.strip() for name in schema.names]
        for name, kind in zip(self.names, schema.types, strict=True):
            self._check(name, kind)
        self._remaining: Iterator[pyarrow.RecordBatch] = iter(())
        self._rest: pyarrow.RecordBatch | None = None
        self._next = -1

    def _check(self, name: str, kind: pyarrow.DataType) -> None:
        inner = kind.value_type if any(is_kind(kind) for is_kind in LISTS) else kind
        nested = any(is_kind(inner) for is_kind in LISTS)
        found = "lists of lists" if nested else None
        found = found or next((what for what, rows in REFUSED.items() if any(is_kind(inner) for is_kind in rows)), None)
        if found:
            raise self._mistake(
                f"The column {name} of {self._path} has {found}: {kind}.",
                fix="remove the column, or write its values as numbers, texts or lists of these",
            )

    def _damaged(self, error: Exception) -> Exception:
        reason = str(error).splitlines()[0].rstrip(".")
        return self._mistake(f"{self._path} is not a Parquet file, or damaged: {reason}.")

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self._file.metadata.num_rows)

    def divided(self, size: int) -> Iterator[Section]:
        for start in range(0, self.rows, size):
            end = min(start + size, self.rows)
            yield Section(start, end, end - start, start)

    def batches(self, section: Section | None = None, but: Collection[int] = ()) -> Iterator[Batch]:
        """Yield the rows, or those of a section; what follows the last section is not read again from the start.

        Raises:
            UserError: The file is damaged, or a text has a zero byte.
        """
        start, end = (section.start, section.end) if section else (0, self.rows)
        self._seek(start)
        while start < end:
            found = self._following(end - start)
            columns = [
                None if number in but else self._cells(column, start) for number, column in enumerate(found.columns)
            ]
            simple = all(_is_simple(column) for column in columns if column is not None)
            yield Batch(range(start + 1, start + 1 + len(found)), columns, simple)
            start += len(found)

    def _seek(self, row: int) -> None:
        """Let the next batch begin with a row; only from a row before the current one, read its row group again."""
        if row < self._next or self._next < 0:
            first, group = 0, 0
            counts = [self._file.metadata.row_group(index).num_rows for index in range(self._file.num_row_groups)]
            while group < len(counts) - 1 and first + counts[group] <= row:
                first += counts[group]
                group += 1
            groups = list(range(group, len(counts)))
            self._remaining = self._file.iter_batches(BATCH_ROWS, row_groups=groups, use_threads=False)
            self._rest, self._next = None, first
        while self._next < row:
            self._following(row - self._next)

    def _following(self, most: int) -> pyarrow.RecordBatch:
        """Return up to `most` of the next rows."""
        try:
            batch = self._rest if self._rest is not None else next(self._remaining)
        except (StopIteration, OSError, pyarrow.ArrowException) as error:
            raise self._damaged(error) from None
        self._rest = batch.slice(most) if len(batch) > most else None
        found = batch.slice(0, most)
        self._next += len(found)
        return found

    def _cells(self, column: pyarrow.Array, before: int) -> pyarrow.StringArray:
        """Return a column's texts; a missing value is an empty cell, as in a CSV file."""
        if pyarrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if any(is_kind(column.type) for is_kind in LISTS):
            texts = column.cast(pyarrow.list_(pyarrow.string()))
            cells = pyarrow.compute.binary_join(texts, " ")
        else:
            cells = column.cast(pyarrow.string())
        if cells.null_count:
            cells = cells.fill_null("")
        if not _is_text(column.type):
            return cells
        with_zero = pyarrow.compute.match_substring(cells, "\0")
        if pyarrow.compute.any(with_zero).as_py():
            row = before + 1 + with_zero.to_pylist().index(True)
            raise self._mistake(f"Row {row} of {self._path} contains a zero byte.")
        return pyarrow.compute.utf8_trim_whitespace(cells)


def _is_text(kind: pyarrow.DataType) -> bool:
    inner = kind.value_type if any(is_kind(kind) for is_kind in LISTS) else kind
    return bool(pyarrow.types.is_string(inner) or pyarrow.types.is_large_string(inner))


def _is_simple(column: pyarrow.Array) -> bool:
    """Return whether all cells consist of the characters `SIMPLE`."""
    _, offsets, data = column.buffers()
    if data is None:
        return True
    first, last = np.frombuffer(offsets, np.int32)[[column.offset, column.offset + len(column)]]
    return not bytes(data[int(first) : int(last)]).translate(None, SIMPLE)
