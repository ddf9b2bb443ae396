"""Cells of a table as plain numbers and empty cells, where it has formatted numbers and markers of missing values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import pyarrow
import pyarrow.compute

from slipway.core.formatted import NumberFormat, plain_number, spellings
from slipway.core.tables.batch import Batch, Section, TableFile


def plain_cells(
    column: pyarrow.StringArray, written: NumberFormat | None, markers: Collection[str]
) -> pyarrow.StringArray:
    """Return a column with plain numbers, and empty cells in place of markers of missing values."""
    if not (written or markers):
        return column
    coded = column.dictionary_encode()
    texts = ["" if text in markers else text for text in coded.dictionary.to_pylist()]
    if written:
        texts = [plain_number(text, written) for text in texts]
    return pyarrow.array(texts, pyarrow.string()).take(coded.indices)


class PlainTable(TableFile):
    """A table whose formatted numbers are plain, and whose markers of missing values are empty cells.

    Args:
        table: The table.
        formats: How numbers are written, by column.
        markers: The markers.
    """

    def __init__(self, table: TableFile, formats: Mapping[str, NumberFormat], markers: Collection[str]) -> None:
        self._table = table
        self._markers = spellings(markers)
        self._formats = [formats.get(name) for name in table.names]
        self.names, self.header, self.indexes = table.names, table.header, table.indexes
        self.item = table.item  # type: ignore[misc]

    def batches(self, section: Section | None = None, but: Collection[int] = ()) -> Iterator[Batch]:
        for batch in self._table.batches(section, but):
            columns = [
                column if column is None else plain_cells(column, written, self._markers)
                for column, written in zip(batch.columns, self._formats, strict=True)
            ]
            yield Batch(batch.lines, columns, batch.simple, batch.faults)

    def divided(self, size: int) -> Iterator[Section]:
        return self._table.divided(size)
