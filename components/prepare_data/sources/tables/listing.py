"""List and read the rows of a table, many at a time."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from slipway.components.prepare_data.encoding.features import LARGEST_FLOAT
from slipway.components.prepare_data.encoding.table_rows import PLAIN, Coded, RowFile, Rows, RowSpool, TableLayout
from slipway.components.prepare_data.encoding.texts import missing_cells
from slipway.components.prepare_data.examples import LABEL_SEPARATOR, SPLIT_FOLDERS, Unusable
from slipway.components.prepare_data.sorting import DIGEST_BYTES
from slipway.components.prepare_data.sources.precision import Precision
from slipway.components.prepare_data.sources.source import Ignored, ListedRows, RowReader
from slipway.components.prepare_data.sources.tables.header import LABEL
from slipway.components.prepare_data.sources.tables.inference import has_underscores, numbers_in
from slipway.components.prepare_data.sources.tables.row_checks import RowChecks
from slipway.components.prepare_data.sources.values import SEPARATOR, is_list, label_cell
from slipway.core.tables.batch import Batch
from slipway.core.values import is_missing, stored_name


class Columns(NamedTuple):
    """The columns of a batch: its numbers, the others, and those of the latter that are numbers, as lists."""

    numbers: Mapping[str, NDArray[np.float64]]
    coded: Mapping[str, Coded]
    lists: Mapping[str, NDArray[np.float64]]


class TableLister:
    """Lists the rows of a table.

    Args:
        checks: The checks of rows that may be unusable, with the schema of the table.
    """

    def __init__(self, checks: RowChecks) -> None:
        schema = checks.schema
        self._layout = schema.layout
        self._checks = checks
        self._task, self._header, self._inputs = schema.task, checks.header, schema.inputs
        self._judged = {stored_name(name): name for name in schema.judged}
        self._spellings = schema.spellings
        self._positions = {stored_name(name): at for name, at in self._header.additional.items()}
        self._positions[LABEL] = self._header.columns[LABEL]
        self._number_bytes = len(self._layout.numbers) * len(PLAIN.encode(0.0))

    def rows(
        self, batches: Iterable[Batch], ignored: Ignored, spool: RowSpool | None
    ) -> Iterator[tuple[Batch, ListedRows]]:
        """Write the rows to the spool; yield them, and record those that are skipped, and what is known of numbers."""
        for batch, columns in self._read(batches, ignored):
            yield batch, self._listed(batch, columns, ignored.precision, spool)

    def _read(self, batches: Iterable[Batch], ignored: Ignored) -> Iterator[tuple[Batch, Columns]]:
        """Yield the batches with their columns, without the rows that cannot be used."""
        for batch in batches:
            parsed = self._parsed(batch)
            ignored.missing += self._missing(batch, parsed)
            try:
                yield batch, self._columns(batch, parsed)
            except Unusable:  # each row must be validated
                usable = self._checks.usable(batch, ignored)
                if len(usable):
                    yield usable, self._columns(usable, self._parsed(usable), validated=True)

    def _parsed(self, batch: Batch) -> dict[str, NDArray[np.float64] | None]:
        """Return the columns of numbers; None for one that has a cell that is not a number.

        Raises:
            Misjudged: That is unlike its first rows.
        """
        return {
            name: numbers_in(
                batch.columns[self._positions[name]], gaps=self._may_be_missing(name), judged=name in self._judged
            )
            for name in self._layout.numbers
        }

    def _missing(self, batch: Batch, parsed: Mapping[str, NDArray[np.float64] | None]) -> Counter[str]:
        """Return the numbers of missing cells of the columns of which only the first rows were read."""
        missing = Counter[str]()
        for name, column in self._judged.items():
            numbers = parsed[name]
            is_missing = missing_cells(batch.columns[self._positions[name]]) if numbers is None else np.isnan(numbers)
            missing[column] = int(np.count_nonzero(is_missing))
        return missing

    def _columns(
        self, batch: Batch, parsed: Mapping[str, NDArray[np.float64] | None], *, validated: bool = False
    ) -> Columns:
        """Return the columns of a batch, of which the numbers are `parsed`.

        Raises:
            Unusable: A row cannot be used, or may be so.
        """
        if not validated and not all(self._are_valid(use, batch.columns[at])
                                     for use, at in self._header.columns.items()):  # fmt: skip
            raise Unusable
        numbers = {name: self._numbers(name, batch, column, validated=validated) for name, column in parsed.items()}
        coded, lists = {}, {}
        for name in self._layout.coded:
            encoded = batch.columns[self._positions[name]].dictionary_encode()
            texts, index = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
            coded[name] = Coded([self._feature(name, text) for text in texts], index)
            kind = self._layout.kinds[name]
            if kind.name == "number" and name in self._inputs and len(texts):
                lists[name] = np.array([kind.from_text(text) for text in texts], np.float64)[index]
        return Columns(numbers, coded, lists)

    def _may_be_missing(self, name: str) -> bool:
        return self._checks.gaps and name in self._inputs and name != LABEL

    def _numbers(
        self, name: str, batch: Batch, numbers: NDArray[np.float64] | None, *, validated: bool
    ) -> NDArray[np.float64]:
        column, is_target = batch.columns[self._positions[name]], name == LABEL
        if numbers is None:
            raise Unusable
        if not validated:
            large = np.abs(numbers) > LARGEST_FLOAT
            refused = np.isfinite(numbers) & large
            if is_target:
                refused |= large
            if not self._may_be_missing(name):
                refused |= np.isnan(numbers)
            if refused.any() or (is_target and has_underscores(column)):
                raise Unusable
        return numbers

    def _feature(self, name: str, text: str) -> bytes:
        """Return the Feature of a cell.

        Raises:
            Unusable: It is not of the column's kind.
        """
        if name == LABEL:
            _, feature = label_cell(self._task, text, name)
            assert feature is not None
            return feature
        kind = self._layout.kinds[name]
        if kind.name in ("number", "integer") and name in self._inputs and is_missing(text):
            raise Unusable
        return self._checks.encode(kind, self._spellings.get(name, {}).get(text, text))

    def _are_valid(self, use: str, column: pyarrow.StringArray) -> bool:
        if use == "order" or (use == LABEL and self._task == "regression"):
            return True
        cells = column.unique().to_pylist()
        if use == LABEL and self._task == "multilabel":
            return all(cell.isprintable() for cell in cells)
        if use == LABEL:
            return all(cell and cell.isprintable() and SEPARATOR not in cell and not is_list(cell) for cell in cells)
        return all(cell.lower() in SPLIT_FOLDERS for cell in cells) if use == "split" else all(cells)

    @cached_property
    def _learned(self) -> list[int]:
        """The columns of `Header.content` that are inputs or the label."""
        learned = {self._positions[name] for name in (*self._inputs, LABEL) if name in self._positions}
        return [at for at in self._header.content if at in learned]

    def _digests(self, batch: Batch, positions: Sequence[int]) -> NDArray[np.uint64]:
        """Return the hash of each row that its key has: of the repr of the list of its cells."""
        columns = [batch.columns[at] for at in positions]
        if batch.simple:
            start = b"['"
            last = pyarrow.compute.binary_join_element_wise(columns[-1], "']", "")
            joined = pyarrow.compute.binary_join_element_wise(*columns[:-1], last, "', '")
            texts = joined.cast(pyarrow.binary()).to_pylist()
        else:
            start = b""
            rows = zip(*(column.to_pylist() for column in columns), strict=True)
            texts = [repr(list(cells)).encode() for cells in rows]
        fresh = hashlib.blake2b(start, digest_size=DIGEST_BYTES).copy  # faster than a new one for each row
        hashes = []
        for text in texts:
            hashed = fresh()
            hashed.update(text)
            hashes.append(hashed.digest())
        return np.frombuffer(b"".join(hashes), ">u8")

    def _listed(self, batch: Batch, columns: Columns, precision: Precision, spool: RowSpool | None) -> ListedRows:
        """Write rows to the spool, and count their numbers."""
        rows = len(batch.lines)
        for name, values in (*columns.numbers.items(), *columns.lists.items()):
            if name in self._inputs or name == LABEL:
                precision.add_all(self._header.names[self._positions[name]], values)
        sizes = np.full(rows, self._number_bytes, np.int64)
        for column in columns.coded.values():
            sizes += np.array([*map(len, column.features)], np.int64)[column.rows]
        offsets = np.zeros(rows, np.int64)
        if spool:
            offsets += spool.add(rows, columns.numbers, columns.coded) + np.arange(rows)
        labels, label = self._labels(batch)
        splits, split = self._splits(batch)
        used, group = np.unique(label * len(splits) + split, return_inverse=True)
        groups = [(splits[code % len(splits)], labels[code // len(splits)]) for code in used.tolist()]
        names: set[str] = set()
        if self._task == "multilabel":
            cells = batch.columns[self._positions[LABEL]].unique().to_pylist()
            names.update(*(label_cell(self._task, cell, LABEL)[0].split(LABEL_SEPARATOR) for cell in cells))
        content, bundles, order = self._header.content, self._texts(batch, "group"), self._texts(batch, "order")
        digests = self._digests(batch, content)
        is_all = "image" in self._header.columns or self._learned == content
        learned = digests if is_all else self._digests(batch, self._learned)
        bundles = bundles or ([b""], np.zeros(rows, np.int64))
        return ListedRows(digests, groups, group, sizes, offsets, *bundles, names - {""}, learned, order=order)

    def _labels(self, batch: Batch) -> tuple[list[str], NDArray[np.int64]]:
        """Return the classes, and the index of each row's."""
        if self._task != "classification":
            return [""], np.zeros(len(batch.lines), np.int64)
        encoded = batch.columns[self._positions[LABEL]].dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)

    def _splits(self, batch: Batch) -> tuple[list[str | None], NDArray[np.int64]]:
        """Return the splits, and the index of each row's."""
        if "split" not in self._header.columns:
            return [None], np.zeros(len(batch.lines), np.int64)
        encoded = batch.columns[self._header.columns["split"]].dictionary_encode()
        names = [SPLIT_FOLDERS[cell.lower()] for cell in encoded.dictionary.to_pylist()]
        splits = sorted(set(names))
        index = np.array([splits.index(name) for name in names], np.int64)
        return [*splits], index[encoded.indices.to_numpy()]

    def _texts(self, batch: Batch, use: str) -> tuple[list[bytes], NDArray[np.int64]] | None:
        """Return the different texts of the column with this use, and the index of each row's; None without one."""
        if use not in self._header.columns:
            return None
        encoded = batch.columns[self._header.columns[use]].dictionary_encode()
        return [text.encode() for text in encoded.dictionary.to_pylist()], encoded.indices.to_numpy()


class TableReader(RowReader):
    """Reads the rows of a table from their spool files.

    Args:
        rows: The rows.
        layout: What a row consists of.
    """

    def __init__(self, rows: RowFile, layout: TableLayout) -> None:
        self.layout = layout
        self._rows = rows

    def additional(self, offset: int) -> Iterable[tuple[bytes, bytes]]:
        return self._rows.features(offset)

    def entries(self, offsets: NDArray[np.int64]) -> NDArray[np.void]:
        return self._rows.entries(offsets)

    def rows(self, entries: NDArray[np.void]) -> Rows:
        return self._rows.rows(entries)
