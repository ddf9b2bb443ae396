"""List and read the rows of a table of numbers, categories and texts, many at a time."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute
from numpy.typing import NDArray

from slipway.components.prepare_data.encoding.features import LARGEST_FLOAT
from slipway.components.prepare_data.encoding.messages import features_of, field
from slipway.components.prepare_data.encoding.table_rows import TableLayout
from slipway.components.prepare_data.examples import SPLIT_FOLDERS, stored_name
from slipway.components.prepare_data.sorting import ExampleKeys
from slipway.components.prepare_data.sources.csv_batches import has_underscores, numbers_in
from slipway.components.prepare_data.sources.precision import Precision
from slipway.components.prepare_data.sources.source import Entry, RowReader, Rows
from slipway.components.prepare_data.sources.spool import Spool
from slipway.components.prepare_data.sources.values import SEPARATOR
from slipway.core.manifest import TaskName
from slipway.core.tables.batch import Batch

Numbers = dict[str, NDArray[np.float64]]


class Header(NamedTuple):
    """The first line: all columns, and the positions of the columns with a use and of the additional ones."""

    names: list[str]
    columns: dict[str, int]
    additional: dict[str, int]

    @property
    def content(self) -> list[int]:
        """The columns that are part of a row's key, in order: all but the split, by name."""
        columns = set(range(len(self.names))) - {self.columns.get("split")}
        return sorted(columns, key=self.names.__getitem__)


class TableLister:
    """Lists the rows of a table.

    Args:
        layout: How its rows are encoded.
        task: classification or regression.
        header: The columns.
        usable: Returns a batch without the rows that cannot be used, or raises the error of its first mistake.
    """

    def __init__(self, layout: TableLayout, task: TaskName, header: Header, usable: Callable[[Batch], Batch]) -> None:
        self._layout = layout
        self._task = task
        self._header = header
        features = {stored_name(name): at for name, at in header.additional.items()}
        if task == "regression":
            features["label"] = header.columns["label"]
        self._numbers = {name: at for name, at in features.items() if layout.kinds[name].name == "number"}
        self._texts = {name: at for name, at in features.items() if name not in self._numbers}
        self._counted = frozenset(layout.numbers)
        self._content = header.content
        self._usable = usable

    def entries(
        self, batches: Iterable[Batch], precision: Precision, spool: Spool, keys: ExampleKeys
    ) -> Iterator[Entry]:
        """Yield the entries of all rows, and count their numbers in `precision`."""
        for batch in batches:
            numbers = self._numbers_of(batch)
            if numbers is None:
                batch = self._usable(batch)
                numbers = {name: self._read(name, batch.columns[at]) for name, at in self._numbers.items()}
            for name, at in self._numbers.items():
                if name in self._counted:
                    precision.add_all(self._header.names[at], numbers[name])
            keys.add_contents(zip(self._contents(batch), self._entries_of(batch, numbers, spool), strict=True))
        for key, entry in keys.by_content():
            yield key, *entry

    def _numbers_of(self, batch: Batch) -> Numbers | None:
        """Return the columns of numbers, or None if each row must be validated."""
        for use, at in self._header.columns.items():
            if (use != "label" or self._task == "classification") and not self._are_valid(use, batch.columns[at]):
                return None
        found: Numbers = {}
        for name, at in self._numbers.items():
            gaps = self._may_miss(name)
            numbers = numbers_in(batch.columns[at], gaps=gaps)
            if numbers is None or (not gaps and np.isnan(numbers).any()):
                return None
            too_large = numbers[np.abs(numbers) > LARGEST_FLOAT]
            is_target = name == "label"
            if np.isfinite(too_large).any() or (is_target and (len(too_large) or has_underscores(batch.columns[at]))):
                return None
            found[name] = numbers
        return found

    def _may_miss(self, name: str) -> bool:
        return self._layout.gaps and name in self._counted and name != "label"

    def _read(self, name: str, column: pyarrow.StringArray) -> NDArray[np.float64]:
        numbers = numbers_in(column, gaps=self._may_miss(name))
        assert numbers is not None  # each row was validated
        return numbers

    @staticmethod
    def _are_valid(use: str, column: pyarrow.StringArray) -> bool:
        cells = column.unique().to_pylist()
        if use == "label":
            return all(cell and cell.isprintable() and SEPARATOR not in cell for cell in cells)
        return all(cell.lower() in SPLIT_FOLDERS for cell in cells) if use == "split" else all(cells)

    def _contents(self, batch: Batch) -> Iterator[bytes]:
        """Yield the text of each row that its key is a hash of: the repr of the list of its cells."""
        columns = [batch.columns[at] for at in self._content]
        if batch.simple:
            joined = pyarrow.compute.binary_join_element_wise(*columns, "', '").cast(pyarrow.binary())
            return (b"['%b']" % cells for cells in joined.to_pylist())
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return (repr(list(cells)).encode() for cells in rows)

    def _entries_of(self, batch: Batch, numbers: Numbers, spool: Spool) -> Iterator[tuple[object, ...]]:
        """Write the rows to the spool; yield their entries without their keys."""
        texts = {name: batch.columns[at] for name, at in self._texts.items()}
        count = len(batch.lines)
        encoded = self._layout.encode(numbers, texts, count)
        offsets = spool.add(encoded.data) + np.cumsum(encoded.lengths) - encoded.lengths
        cells = {use: batch.columns[at] for use, at in self._header.columns.items()}
        labels = cells["label"].to_pylist() if self._task == "classification" else [""] * count
        splits: list[str | None] = [None] * count
        if "split" in cells:
            splits = [SPLIT_FOLDERS[cell.lower()] for cell in cells["split"].to_pylist()]
        groups = [cell.encode() for cell in cells["group"].to_pylist()] if "group" in cells else [b""] * count
        return zip(labels, splits, encoded.sizes.tolist(), [0] * count, offsets.tolist(), groups, strict=True)


class TableReader(RowReader):
    """Reads the rows of a table from the spool file.

    Args:
        spool: The spool file.
        layout: How its rows are encoded.
    """

    def __init__(self, spool: Path, layout: TableLayout) -> None:
        with spool.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._layout = layout

    def additional(self, offset: int) -> Iterable[tuple[bytes, bytes]]:
        entries = b"".join(self._layout.decode(self._data, [offset])[2][0])
        return features_of(field(1, len(entries)) + entries).items()

    def rows(self, offsets: Sequence[int]) -> Rows:
        numbers, categories, features = self._layout.decode(self._data, offsets)
        return Rows(
            dict(zip(self._layout.numbers, numbers.T, strict=True)),
            dict(zip(self._layout.categories, zip(*categories, strict=True), strict=True)),
            not (np.isinf(numbers) if self._layout.gaps else ~np.isfinite(numbers)).any(),
            features,
        )
