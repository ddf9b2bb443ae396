"""The kinds and the numbers of a table's columns, from the texts of their cells."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.texts import date_parts, missing_cells
from slipway.components.prepare_data.sources.images import is_image
from slipway.components.prepare_data.sources.source import Misjudged
from slipway.components.prepare_data.sources.values import is_number
from slipway.core.dates import DAYS, MONTHS, PATTERNS, Order
from slipway.core.formatted import NumberFormat, format_of
from slipway.core.tables.batch import Mistake, TableFile
from slipway.core.values import TRUTHS, canonical, is_missing

# A column of texts with more different ones is free text or a key rather than a category, unless it is declared.
MAX_INFERRED = 1000
# The different texts that are counted.
MAX_COUNTED = 20_000
# A key has a different text in nearly every row; texts have this many words on average.
KEY, MIN_KEYS = 0.95, 20
# Texts of so many words are a category if there are few different ones, or each occurs more often than this on average.
MAX_TEXT_REPEATS = 5
# Of a table whose rows are repeated more often than this on average, no key is recognized.
MAX_REPEATED = 20
MIN_WORDS = 4
IDENTIFIER = re.compile(r"(^|[_\W])(id|ID|Id)$|[a-z]I[dD]$|^(?i:index|row_?number)$")
MAX_MARKERS = 5
# Names of columns that are no inputs, and why: of an index without a name that pandas wrote, and of other columns that
# have none in the first line.
NAMELESS = (
    (re.compile(r"__index_level_\d+__|Unnamed: 0"), "is an index that pandas wrote, the number of the row"),
    (re.compile(r"Unnamed: \d+"), "has no name"),
)
# Of fewer different numbers beside one other text, such as 1 to 5 and 6+, a column is a category.
FEWEST_NUMBERS = 10
HALVES_OF_DAY = re.compile(r".*\d ?[AaPp]\.?[Mm]\.?")
ZONE = re.compile(r":\d{2}(?:\.\d+)? ?(Z|UTC|[+-]\d{2}:?\d{2})\s*$")
LEADING_ZERO = "^0[0-9]+$"


@dataclass
class InferredColumn:
    """A column's kind, by its cells, and why it is no input unless data.inputs names it; "" if it is one.

    `texts` are its different ones, in order of appearance, up to a limit; `missing` counts its cells without a value.
    `written` is the format of its numbers, if these are not plain, by which data.number_format would read them; `doubt`
    is why it is not of the kind number although it has nearly only numbers, or what of its dates is not read, or "";
    `empty` counts its empty cells.
    """

    kind: Kind
    excluded: str
    texts: list[str]
    missing: int
    rows: int
    written: NumberFormat | None = None
    doubt: str = ""
    empty: int = 0

    @property
    def spellings(self) -> dict[str, str]:
        """Truth values that the column writes in several ways, such as TRUE and true, and the one text of each."""
        if self.kind.name != "category":
            return {}
        truths = {text: truth for text in self.texts if (truth := canonical(text)) in TRUTHS}
        return truths if len({*truths.values()}) < len(truths) else {}


class Cells:
    """What the cells of a column have in common."""

    def __init__(self, name: str, item: str) -> None:
        self._name = name
        self._item = item  # what a row is counted by
        self._no_number = ("", 0)  # the first cell that is none, and its line
        self._numeric, self._any_number, self._zeros = True, False, False
        self._orders = dict.fromkeys(PATTERNS, True)
        self._dot = False
        self._texts: dict[str, None] = {}
        self._rows, self._missing, self._counted_rows, self._words = 0, 0, 0, 0
        self._empty = self.rows_compared = 0
        self.are_repeated_keys = False

    @property
    def different(self) -> int:
        """The number of different cells, up to a limit."""
        return len(self._texts)

    @property
    def are_keys(self) -> bool:
        """Whether nearly every row, or every different row, has another cell."""
        return self.are_repeated_keys or self.different >= max(KEY * max(self._counted_rows, 1), MIN_KEYS)

    @property
    def may_be_keys(self) -> bool:
        """Whether the cells are keys if rows are repeated; `rows_compared` are those with the different cells."""
        is_named = not self._numeric or IDENTIFIER.search(self._name)
        are_words = self._words < MIN_WORDS * self.different and self._date is None
        fewest = max(KEY * self._counted_rows / MAX_REPEATED, MIN_KEYS)
        return bool(is_named and are_words and fewest <= self.different < KEY * self._counted_rows)

    @property
    def are_many_numbers(self) -> bool:
        """Whether all cells are numbers or missing, and so many that only a cell that is not would change the kind."""
        return self._numeric and not self._zeros and len(self._texts) > MAX_INFERRED

    def add(self, column: pyarrow.StringArray, lines: Sequence[int]) -> None:
        """Count a batch of cells."""
        self._rows += len(column)
        self._empty += pyarrow.compute.sum(pyarrow.compute.equal(column, "")).as_py() or 0
        if self._numeric:
            self._numeric, count = _are_numbers(column)
            self._any_number |= self._numeric and count > 0
            if not self._numeric:
                numbered = zip(column.to_pylist(), lines, strict=True)
                self._no_number = next(cell for cell in numbered if not (is_missing(cell[0]) or is_number(cell[0])))
        else:
            count = len(column) - (pyarrow.compute.sum(missing_cells(column)).as_py() or 0)
        self._missing += len(column) - count
        if len(self._texts) > (MAX_INFERRED if self._numeric else MAX_COUNTED):
            return
        different = column.unique()
        present = different.filter(pyarrow.compute.invert(missing_cells(different)))
        self._texts |= dict.fromkeys(present.to_pylist())
        self._counted_rows, self.rows_compared = self._rows - self._missing, self._rows
        if self._numeric:
            zeros = pyarrow.compute.match_substring_regex(present, LEADING_ZERO)
            self._zeros |= bool(pyarrow.compute.any(zeros).as_py())
            return
        words = pyarrow.compute.list_value_length(pyarrow.compute.utf8_split_whitespace(present))
        self._words += pyarrow.compute.sum(words).as_py() or 0
        for order, possible in self._orders.items():
            self._orders[order] = possible and self._are_dates(present, order)

    def _are_dates(self, texts: pyarrow.StringArray, order: Order) -> bool:
        parts = date_parts(texts, order)
        if parts is None:
            return False
        self._dot |= any("." in text for text in texts[:1].to_pylist())
        return bool((parts["month"] <= MONTHS).all() and (parts["day"] <= DAYS).all())

    @property
    def _date(self) -> Kind | None:
        """The kind of a column of dates; a day that could be a month is before it if points separate them."""
        possible = [order for order, are_dates in self._orders.items() if are_dates and self._texts]
        if self._numeric or not possible:
            return None
        order = "mdy" if "mdy" in possible and ("dmy" not in possible or not self._dot) else possible[0]
        return Kind("date" if order == "ymd" else f"date_{order}")

    @property
    def _kind(self) -> tuple[Kind | None, str]:
        """The kind, None if the texts are paths of images, and why the column is no input."""
        different, rows = len(self._texts), max(self._counted_rows, 1)
        are_keys = self.are_keys
        if self._numeric and self._any_number:
            if self._zeros:
                return Kind("category"), ""
            is_key = are_keys and IDENTIFIER.search(self._name) and all(text.strip().isdigit() for text in self._texts)
            return Kind("number"), "is probably an identifier, since nearly every row has another one" if is_key else ""
        if date := self._date:
            return date, ""
        if self._texts and all(is_image(text.encode()) for text in self._texts):
            return None, ""
        unread = self._unread_numbers
        repeats = MAX_TEXT_REPEATS if different >= MIN_KEYS else 2
        if self._words >= MIN_WORDS * different > 0 and (different > MAX_INFERRED or different > rows / repeats):
            return Kind("text"), ""
        if are_keys and not unread:
            return Kind("text"), "is probably an identifier, since nearly every row has another text"
        return Kind("category" if different <= MAX_INFERRED or different < rows / 2 else "text"), unread

    @property
    def _written(self) -> NumberFormat | None:
        """The format of numbers that are not plain; None if they are, or are none."""
        return None if self._numeric or self._date else format_of(self._texts)

    @property
    def _several_zones(self) -> str:
        """The doubt of a column of dates whose times have several offsets, which are ignored; or ""."""
        zones = sorted({match[1] for text in self._texts if (match := ZONE.search(text))}) if self._date else []
        named = ", ".join(zones[:MAX_MARKERS])
        return f"has times of several zones ({named}), which are ignored; write them in one zone" if zones[1:] else ""

    @property
    def _unread_numbers(self) -> str:
        """Why a column of nearly only numbers is none: the cells that are none, or how they are formatted; or ""."""
        unparsed = [text for text in self._texts if not is_number(text)]
        if written := self._written:
            formats = shlex.quote(f"data.number_format={json.dumps({self._name: written}, ensure_ascii=False)}")
            return f"has numbers with separators or signs, such as {unparsed[0]!r}: --set {formats}"
        if unparsed and all(HALVES_OF_DAY.fullmatch(text) for text in unparsed):
            return f"has times with AM or PM, such as {unparsed[0]!r:.80}; write them as 14:30, with a date before them"
        numbers = len(self._texts) - len(unparsed)
        is_typo = len(unparsed) == 1 and numbers >= FEWEST_NUMBERS
        if unparsed and (is_typo or len(unparsed) <= (1 - KEY) * len(self._texts)):
            text, line = self._no_number
            markers = shlex.quote(f"data.missing_values={json.dumps(unparsed[:MAX_MARKERS], ensure_ascii=False)}")
            return (
                f"has {numbers:,} different numbers, but {self._item} {line} has {text!r:.80}; empty such cells, or "
                f"--set {markers}"
            )
        return ""

    def inferred(self, mistake: Mistake, *, refuse_images: bool) -> InferredColumn:
        """Return what the cells show."""
        kind, excluded = self._kind
        if kind is None and not refuse_images:
            kind, excluded = Kind("image"), "has paths of images"
        if kind is None:
            raise mistake(
                f"The column {self._name} has paths of images.",
                fix=f"--set data.image={self._name}, or name the inputs without it: --set 'data.inputs=[COLUMN, …]'",
            )
        excluded = next((why for pattern, why in NAMELESS if pattern.fullmatch(self._name)), excluded)
        doubt = "" if self._numeric else self._several_zones or self._unread_numbers
        texts = list(self._texts)
        return InferredColumn(kind, excluded, texts, self._missing, self._rows, self._written, doubt, self._empty)


def count_cells(table: TableFile, columns: Mapping[str, int], whole: Collection[str]) -> dict[str, Cells]:
    """Return what the cells of columns have in common.

    Of a column whose first rows have many different numbers, the others are not read, unless it is one of `whole`:
    whoever reads them raises `Misjudged` if one is not a number.

    Args:
        table: The table.
        columns: The position of each column.
        whole: The columns of which all rows are read.
    """
    cells = {name: Cells(name, table.item) for name in columns}
    unread = set(range(len(table.names))) - {*columns.values()}
    for batch in table.batches(but=unread):
        for name, index in columns.items():
            if index not in unread:
                cells[name].add(batch.columns[index], batch.lines)
                if name not in whole and cells[name].are_many_numbers:
                    unread.add(index)
        if len(unread) == len(table.names):
            break
    return cells


def infer_kinds(
    table: TableFile,
    columns: Mapping[str, int],
    mistake: Mistake,
    *,
    cells: Mapping[str, Cells] | None = None,
    refuse_images: bool = True,
) -> dict[str, InferredColumn]:
    """Infer the kinds of columns.

    A column is numbers, if every cell is a number or missing and none has a leading zero, such as a zip code; else
    dates, texts of several words, or categories. One with another text in nearly every row is probably a key.

    Args:
        table: The table.
        columns: The position of each column.
        mistake: Returns the error with a message, and `fix`.
        cells: The cells of these columns, and maybe of others, as `count_cells` counts them; of all rows if None.
        refuse_images: Whether a column may not have paths of images; else these are excluded.

    Raises:
        UserError: A column has paths of images.
    """
    counted = count_cells(table, columns, columns) if cells is None else cells
    cells = {name: counted[name] for name in columns}
    _find_repeated_keys(table, columns, cells)
    inferred = {name: column.inferred(mistake, refuse_images=refuse_images) for name, column in cells.items()}
    for name in inferred.keys() & {*table.indexes}:
        inferred[name].excluded = inferred[name].excluded or "is the index of the DataFrame that was saved"
    return inferred


def _find_repeated_keys(table: TableFile, columns: Mapping[str, int], cells: Mapping[str, Cells]) -> None:
    """Find columns that have another text for nearly every different row of a table whose rows are repeated.

    The other columns must tell these rows apart, too: a shop that has one region is not the key of it.
    """
    for column in cells.values():
        column.are_repeated_keys = False
    possible = {name: columns[name] for name, column in cells.items() if column.may_be_keys}
    remaining = [columns[name] for name, column in cells.items() if name not in possible and not column.are_keys]
    if not possible or not remaining:
        return
    most = max(cells[name].rows_compared for name in possible)
    parts: dict[str, list[NDArray[np.int64]]] = {name: [] for name in possible}
    beside: list[NDArray[np.int64]] = []
    rows = 0
    for batch in table.batches():
        beside.append(_hashes(pyarrow.compute.binary_join_element_wise(*(batch.columns[at] for at in remaining), "\0")))
        for name, at in possible.items():
            parts[name].append(_hashes(batch.columns[at]))
        rows += len(batch)
        if rows >= most:
            break
    for name, column_parts in parts.items():
        texts = np.concatenate(column_parts)[: cells[name].rows_compared]
        around = np.concatenate(beside)[: len(texts)]
        different = len(np.unique(texts * np.int64(3) ^ around))
        is_told_apart = 2 * len(np.unique(around)) >= cells[name].different
        cells[name].are_repeated_keys = is_told_apart and cells[name].different >= KEY * different


def _hashes(texts: pyarrow.StringArray) -> NDArray[np.int64]:
    return np.fromiter(map(hash, texts.to_pylist()), np.int64, len(texts))


def _are_numbers(column: pyarrow.StringArray) -> tuple[bool, int]:
    """Return whether every cell is a number or missing, and how many are not missing."""
    numbers = _plain_numbers(column, gaps=True)
    if numbers is not None and np.isfinite(numbers).any() and not np.isinf(numbers).any():
        return True, len(numbers) - int(np.isnan(numbers).sum())
    present = column.filter(pyarrow.compute.invert(missing_cells(column)))
    return all(map(is_number, present.unique().to_pylist())), len(present)


def has_underscores(column: pyarrow.StringArray) -> bool:
    """Whether a cell has an underscore, which `float` accepts between digits."""
    return bool(pyarrow.compute.any(pyarrow.compute.match_substring(column, "_")).as_py())


def numbers_in(column: pyarrow.StringArray, *, gaps: bool = False, judged: bool = False) -> NDArray[np.float64] | None:
    """Return the cells as `float` reads them, or None if one is no number; with `gaps`, missing ones as NaN.

    Raises:
        Misjudged: The column is `judged`, and has a cell that `infer_kinds` does not take for a number.
    """
    numbers = _plain_numbers(column, gaps=gaps)
    if numbers is None or np.isinf(numbers).any():  # Python accepts more, such as +1, 1_000 and ٣
        if judged and not _are_numbers(column)[0]:
            raise Misjudged("A column whose first rows are numbers has a cell that is not.")
        cells = column.to_pylist()
        try:
            return np.array([np.nan if gaps and is_missing(cell) else float(cell) for cell in cells], np.float64)
        except ValueError:
            return None
    return numbers


def _plain_numbers(column: pyarrow.StringArray, *, gaps: bool) -> NDArray[np.float64] | None:
    """Return the cells as Arrow reads them, or None if it cannot read one; it accepts less than `float`."""
    try:
        return pyarrow.compute.cast(column, pyarrow.float64()).to_numpy()
    except pyarrow.ArrowInvalid:
        if not gaps:
            return None
    missing = missing_cells(column)
    try:
        nullable = pyarrow.compute.if_else(missing, None, column)
        return pyarrow.compute.cast(nullable, pyarrow.float64()).to_numpy(zero_copy_only=False)
    except pyarrow.ArrowInvalid:
        return None
