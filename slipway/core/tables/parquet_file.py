"""Read a Parquet file in batches of columns, whose cells are the texts that the same table has as a CSV file."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import IO

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from slipway.core.tables.batch import SIMPLE, Batch, Mistake, Section, TableFile, check_columns

BATCH_ROWS = 8192
# Bytes of a batch in memory, of one row, and of a column of a row group that is compressed to less than a thousandth.
MAX_BATCH_BYTES, MAX_ROW_BYTES, MAX_INFLATED, MAX_RATIO = 64 << 20, 64 << 20, 1 << 30, 1000
NUMBER_BYTES = 8
# Bytes of a column that are read at a time.
BUFFER_BYTES = 1 << 20
LISTS = (pyarrow.types.is_list, pyarrow.types.is_large_list, pyarrow.types.is_fixed_size_list)
# Floats of these sizes have the same text in Arrow and in Python, but for the .0 of whole ones.
PLAIN = (1e-4, 1e9)
# What Arrow's text of a time has and pandas' has not, and what replaces it.
FRACTION = r"(?:\.0+|(\.[0-9]*[1-9])0*)(Z|[+-][0-9]{4})?$"
ZONES = (("Z$", "+00:00"), ("([+-][0-9]{2})([0-9]{2})$", r"\1:\2"))
MIDNIGHT = ((" 00:00:00$", ""),)
# Types without a text.
REFUSED = {
    "bytes": (pyarrow.types.is_binary, pyarrow.types.is_large_binary, pyarrow.types.is_fixed_size_binary),
    "structs": (pyarrow.types.is_struct, pyarrow.types.is_map),
}


class ParquetFile(TableFile):
    """A Parquet file. A list of numbers is their texts, separated by spaces; a list of texts is written as Python does.

    Args:
        file: The open file.
        path: Its path, for messages.
        mistake: Returns the error of a file with this message.
        keep_faults: As of `CsvFile`; a file has no row that cannot be read.

    Raises:
        UserError: It is not a Parquet file, or has columns without a text.
    """

    item = "row"

    def __init__(self, file: IO[bytes], path: object, mistake: Mistake, *, keep_faults: bool = False) -> None:  # noqa: ARG002
        self._path = path
        self._mistake = mistake
        self.header = str(path)
        try:
            self._file = pyarrow.parquet.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False)
        except pyarrow.ArrowInvalid as error:
            raise self._damaged(error) from None
        self._source = file
        schema = self._file.schema_arrow
        check_columns(schema.names, path, mistake)
        self.names = [name.strip() for name in schema.names]
        indexes = (schema.pandas_metadata or {}).get("index_columns", [])
        self.indexes = [name.strip() for name in indexes if isinstance(name, str)]  # others are ranges
        for name, kind in zip(self.names, schema.types, strict=True):
            self._check(name, kind)
        self._remaining: Iterator[pyarrow.RecordBatch] = iter(())
        self._rest: pyarrow.RecordBatch | None = None
        self._next = -1

    def _check(self, name: str, kind: pyarrow.DataType) -> None:
        inner = kind.value_type if any(is_kind(kind) for is_kind in LISTS) else kind
        nested = any(is_kind(inner) for is_kind in LISTS)
        problem = "lists of lists" if nested else None
        problem = problem or next(
            (refused for refused, rows in REFUSED.items() if any(is_kind(inner) for is_kind in rows)), None
        )
        if problem:
            raise self._mistake(
                f"The column {name} of {self._path} has {problem}: {kind}.",
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
            batch = self._following(end - start)
            columns = [
                None if number in but else self._cells(column, start) for number, column in enumerate(batch.columns)
            ]
            simple = all(_is_simple(column) for column in columns if column is not None)
            yield Batch(range(start + 1, start + 1 + len(batch)), columns, simple)
            start += len(batch)

    def _seek(self, row: int) -> None:
        """Let the next batch begin with a row; only from a row before the current one, read its row group again."""
        if row < self._next or self._next < 0:
            first, group = 0, 0
            counts = [self._file.metadata.row_group(index).num_rows for index in range(self._file.num_row_groups)]
            while group < len(counts) - 1 and first + counts[group] <= row:
                first += counts[group]
                group += 1
            self._remaining = self._from_group(group)
            self._rest, self._next = None, first
        while self._next < row:
            self._following(row - self._next)

    def _from_group(self, first: int) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows from a row group on, in batches whose texts cannot use up the memory."""
        for is_small, groups in itertools.groupby(range(first, self._file.num_row_groups), self._is_small):
            if is_small:
                yield from self._file.iter_batches(BATCH_ROWS, row_groups=[*groups], use_threads=False)
                continue
            for group in groups:
                yield from self._file.iter_batches(self._batch_rows(group), row_groups=[group], use_threads=False)

    def _chunks(self, group: int) -> list[pyarrow.parquet.ColumnChunkMetaData]:
        """Return the columns of a row group, without those of which every row has one number."""
        metadata = self._file.metadata.row_group(group)
        chunks = (metadata.column(number) for number in range(metadata.num_columns))
        return [
            chunk for chunk in chunks if "BYTE_ARRAY" in chunk.physical_type or chunk.num_values != metadata.num_rows
        ]

    def _is_small(self, group: int) -> bool:
        """Return whether no batch of a row group can be large, as no cell has more bytes than its column."""
        return bool(sum(chunk.total_uncompressed_size for chunk in self._chunks(group)) * BATCH_ROWS <= MAX_BATCH_BYTES)

    def _batch_rows(self, group: int) -> int:
        """Return the number of rows of a row group that are read at once.

        A dictionary has a long text once, which many rows can name.

        Raises:
            UserError: A row, or a compressed column, is too large.
        """
        rows, row_bytes = max(1, self._file.metadata.row_group(group).num_rows), 0.0
        chunks = self._chunks(group)
        longest = self._longest_texts(group, [chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page])
        for chunk in chunks:
            name, inflated = chunk.path_in_schema, chunk.total_uncompressed_size
            if inflated > max(MAX_INFLATED, MAX_RATIO * chunk.total_compressed_size):
                raise self._mistake(
                    f"The column {name} of {self._path} has {inflated:,} bytes, compressed to "
                    f"{chunk.total_compressed_size:,}.",
                    fix="write the file again, with smaller row groups or without the column",
                )
            values = max(1, chunk.num_values)
            cell_bytes = values / rows * max(NUMBER_BYTES, longest.get(name, 0), inflated / values)
            if cell_bytes > MAX_ROW_BYTES:
                raise self._mistake(
                    f"The column {name} of {self._path} has cells of {cell_bytes:,.0f} bytes; a row may have "
                    f"{MAX_ROW_BYTES:,}.",
                    fix="write the file without the column, or with shorter values",
                )
            row_bytes += cell_bytes
        return min(BATCH_ROWS, max(1, int(MAX_BATCH_BYTES / max(1.0, row_bytes))))

    def _longest_texts(self, group: int, names: Sequence[str]) -> dict[str, int]:
        """Return the bytes of the longest text in the dictionary of each of these columns of a row group."""
        if not names:
            return {}
        file = pyarrow.parquet.ParquetFile(
            self._source,
            metadata=self._file.metadata,
            read_dictionary=names,
            buffer_size=BUFFER_BYTES,
            pre_buffer=False,
        )
        longest = {}
        for name in names:
            batch = next(file.iter_batches(1, row_groups=[group], columns=[name], use_threads=False), None)
            column = pyarrow.nulls(0) if batch is None else batch.column(0)
            while any(is_kind(column.type) for is_kind in LISTS):
                column = column.values
            if pyarrow.types.is_dictionary(column.type) and len(column.dictionary):
                lengths = pyarrow.compute.binary_length(column.dictionary)
                longest[name] = pyarrow.compute.max(lengths).as_py() or 0
        return longest

    def _following(self, most: int) -> pyarrow.RecordBatch:
        """Return up to `most` of the next rows."""
        try:
            batch = self._rest if self._rest is not None else next(self._remaining)
        except (StopIteration, OSError, pyarrow.ArrowException) as error:
            raise self._damaged(error) from None
        self._rest = batch.slice(most) if len(batch) > most else None
        part = batch.slice(0, most)
        self._next += len(part)
        return part

    def _cells(self, column: pyarrow.Array, before: int) -> pyarrow.StringArray:
        """Return a column's texts; a missing value is an empty cell, as in a CSV file."""
        if pyarrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        cells = _list_texts(column) if any(is_kind(column.type) for is_kind in LISTS) else _texts(column)
        if cells.null_count:
            cells = cells.fill_null("")
        if not _is_text(column.type):
            return cells
        with_zero = pyarrow.compute.match_substring(cells, "\0")
        if pyarrow.compute.any(with_zero).as_py():
            row = before + 1 + with_zero.to_pylist().index(True)
            raise self._mistake(f"Row {row} of {self._path} contains a zero byte.")
        return pyarrow.compute.utf8_trim_whitespace(cells)


def _texts(column: pyarrow.Array) -> pyarrow.StringArray:
    """Return the texts that pandas writes to a CSV file; of a time at midnight only the date."""
    kind = column.type
    if pyarrow.types.is_boolean(kind):
        return pyarrow.compute.if_else(column, "True", "False")
    if pyarrow.types.is_floating(kind):
        return _float_texts(column)
    texts = column.cast(pyarrow.string())
    if pyarrow.types.is_timestamp(kind):
        texts = pyarrow.compute.replace_substring_regex(texts, FRACTION, r"\1\2")
        for pattern, replacement in ZONES if kind.tz else MIDNIGHT:
            texts = pyarrow.compute.replace_substring_regex(texts, pattern, replacement)
    return texts


def _float_texts(column: pyarrow.Array) -> pyarrow.StringArray:
    """Return the texts of floats as Python writes them; NaN is a missing value."""
    column = pyarrow.compute.if_else(pyarrow.compute.is_nan(column), None, column)
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
    sizes = np.abs(numbers)
    with np.errstate(invalid="ignore"):
        is_whole = numbers == np.trunc(numbers)
    is_plain = ((sizes >= PLAIN[0]) & (sizes < PLAIN[1])) | (sizes == 0)
    texts = column.cast(pyarrow.string())
    whole = pyarrow.array(is_whole & is_plain)
    texts = pyarrow.compute.if_else(whole, pyarrow.compute.binary_join_element_wise(texts, ".0", ""), texts)
    if is_plain.all():
        return texts
    python_texts = pyarrow.array(
        [None if plain else str(number) for plain, number in zip(is_plain, numbers, strict=True)]
    )
    return pyarrow.compute.if_else(pyarrow.array(is_plain), texts, python_texts)


def _list_texts(column: pyarrow.Array) -> pyarrow.StringArray:
    if _is_text(column.type):
        return pyarrow.array([None if value is None else str(value) for value in column.to_pylist()], pyarrow.string())
    texts = column.cast(pyarrow.list_(pyarrow.string()))
    return pyarrow.compute.binary_join(texts, " ")


def _is_text(kind: pyarrow.DataType) -> bool:
    inner = kind.value_type if any(is_kind(kind) for is_kind in LISTS) else kind
    inner = inner.value_type if pyarrow.types.is_dictionary(inner) else inner
    return bool(pyarrow.types.is_string(inner) or pyarrow.types.is_large_string(inner))


def _is_simple(column: pyarrow.Array) -> bool:
    """Return whether all cells consist of the characters `SIMPLE`."""
    _, offsets, data = column.buffers()
    if data is None:
        return True
    first, last = np.frombuffer(offsets, np.int32)[[column.offset, column.offset + len(column)]]
    return not bytes(data[int(first) : int(last)]).translate(None, SIMPLE)
