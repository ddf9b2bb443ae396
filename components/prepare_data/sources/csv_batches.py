"""The kinds and the numbers of a table's columns, from the texts of their cells."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
from slipway.core.tables.batch import Mistake, TableFile
from slipway.core.values import TRUTHS, canonical, is_missing

# A column of texts with more different ones is free text or a key rather than a category, unless it is declared.
MAX_INFERRED = 1000
# The different texts that are counted.
MAX_COUNTED = 20_000
# A key has a different text in nearly every row; texts have this many words on average.
KEY, MIN_KEYS = 0.95, 20
MIN_WORDS = 4
IDENTIFIER = re.compile(r"(^|[_\W])(id|ID|Id)$|[a-z]I[dD]$")
# How pandas names an index without a name, in Parquet and when it reads a CSV file.
PANDAS_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+")
# Numbers as people write them: thousands separators, decimal commas, currency and percent signs.
FORMATTED = re.compile(r"[$€£¥]? ?[+-]?[$€£¥]?(\d{1,3}([,.' ]\d{3})+|\d+)([.,]\d+)? ?[%$€£¥]?")
LEADING_ZERO = "^0[0-9]+$"


@dataclass
class InferredColumn:
    """A column's kind, by its cells, and why it is no input unless data.inputs names it; "" if it is one.

    `texts` are its different ones, in order of appearance, up to a limit; `missing` counts its cells without a value.
    """

    kind: Kind
    excluded: str
    texts: list[str]
    missing: int
    rows: int

    @property
    def spellings(self) -> dict[str, str]:
        """Truth values that the column writes in several ways, such as TRUE and true, and the one text of each."""
        truths = {text: canonical(text) for text in self.texts if canonical(text) in TRUTHS}
        return truths if self.kind.name == "category" and len({*truths.values()}) < len(truths) else {}


class _Cells:
    """What the cells of a column have in common."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._numeric, self._any_number, self._zeros = True, False, False
        self._orders = dict.fromkeys(PATTERNS, True)
        self._dot = False
        self._texts: dict[str, None] = {}
        self._rows, self._missing, self._counted_rows, self._words = 0, 0, 0, 0

    @property
    def are_many_numbers(self) -> bool:
        """Whether all cells are numbers or missing, and so many that only a cell that is not would change the kind."""
        return self._numeric and not self._zeros and len(self._texts) > MAX_INFERRED

    def add(self, column: pyarrow.StringArray) -> None:
        """Count a batch of cells."""
        self._rows += len(column)
        if self._numeric:
            self._numeric, count = _are_numbers(column)
            self._any_number |= self._numeric and count > 0
        else:
            count = len(column) - (pyarrow.compute.sum(missing_cells(column)).as_py() or 0)
        self._missing += len(column) - count
        if len(self._texts) > (MAX_INFERRED if self._numeric else MAX_COUNTED):
            return
        different = column.unique()
        given = different.filter(pyarrow.compute.invert(missing_cells(different)))
        self._texts |= dict.fromkeys(given.to_pylist())
        self._counted_rows = self._rows - self._missing
        if self._numeric:
            zeros = pyarrow.compute.match_substring_regex(given, LEADING_ZERO)
            self._zeros |= bool(pyarrow.compute.any(zeros).as_py())
            return
        words = pyarrow.compute.list_value_length(pyarrow.compute.utf8_split_whitespace(given))
        self._words += pyarrow.compute.sum(words).as_py() or 0
        for order, possible in self._orders.items():
            self._orders[order] = possible and self._are_dates(given, order)

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
        are_keys = different >= max(KEY * rows, MIN_KEYS)
        if self._numeric and self._any_number:
            if self._zeros:
                return Kind("category"), ""
            is_key = are_keys and IDENTIFIER.search(self._name) and all(text.strip().isdigit() for text in self._texts)
            return Kind("number"), "is probably an identifier, since nearly every row has another one" if is_key else ""
        if date := self._date:
            return date, ""
        if self._texts and all(is_image(text.encode()) for text in self._texts):
            return None, ""
        if self._words >= MIN_WORDS * different and (different > MAX_INFERRED or different > rows / 2) and different:
            return Kind("text"), ""
        if are_keys:
            identifier = "is probably an identifier, since nearly every row has another text"
            return Kind("text"), self._mostly_numbers or identifier
        return Kind("category" if different <= MAX_INFERRED or different < rows / 2 else "text"), ""

    @property
    def _mostly_numbers(self) -> str:
        """Why a column of nearly only numbers is none: the cells that are none, or how they are formatted; or ""."""
        others = [text for text in self._texts if not is_number(text)]
        if others and all(FORMATTED.fullmatch(text) for text in others):
            return f"has numbers with separators or signs, such as {others[0]!r}; write them as 1234.56"
        if len(others) <= (1 - KEY) * len(self._texts):
            numbers = len(self._texts) - len(others)
            return f"has {numbers:,} different numbers, but also {others[0]!r:.80}; empty the cells without a number"
        return ""

    def inferred(self, mistake: Mistake) -> InferredColumn:
        """Return what the cells show."""
        kind, excluded = self._kind
        if kind is None:
            raise mistake(
                f"The column {self._name} has paths of images.",
                fix=f"--set data.image={self._name}, or name the inputs without it: --set 'data.inputs=[COLUMN, …]'",
            )
        if PANDAS_INDEX.fullmatch(self._name):
            excluded = "is an index that pandas wrote, the number of the row"
        return InferredColumn(kind, excluded, list(self._texts), self._missing, self._rows)


def infer_kinds(
    table: TableFile, columns: Mapping[str, int], mistake: Mistake, *, judged: set[str] | None = None
) -> dict[str, InferredColumn]:
    """Infer the kinds of columns from all rows.

    A column is numbers, if every cell is a number or missing and none has a leading zero, such as a zip code; else
    dates, texts of several words, or categories. One with another text in nearly every row is probably a key.

    Args:
        table: The table.
        columns: The position of each column.
        mistake: Returns the error with a message, and `fix`.
        judged: Receives the columns of which the first rows have many different numbers. The others are then not read;
            whoever reads them raises `Misjudged` if one is not a number. If None, all rows of all columns are read.

    Raises:
        UserError: A column has paths of images.
    """
    cells = {name: _Cells(name) for name in columns}
    unread = set(range(len(table.names))) - {*columns.values()}
    for batch in table.batches(but=unread):
        for name, index in columns.items():
            if index not in unread:
                cells[name].add(batch.columns[index])
                if judged is not None and cells[name].are_many_numbers:
                    judged.add(name)
                    unread.add(index)
        if len(unread) == len(table.names):
            break
    return {name: found.inferred(mistake) for name, found in cells.items()}


def _are_numbers(column: pyarrow.StringArray) -> tuple[bool, int]:
    """Return whether every cell is a number or missing, and how many are not missing."""
    numbers = _plain_numbers(column, gaps=True)
    if numbers is not None and np.isfinite(numbers).any() and not np.isinf(numbers).any():
        return True, len(numbers) - int(np.isnan(numbers).sum())
    given = column.filter(pyarrow.compute.invert(missing_cells(column)))
    return all(map(is_number, given.unique().to_pylist())), len(given)


def has_underscores(column: pyarrow.StringArray) -> bool:
    """Whether a cell has an underscore, which `float` accepts between digits."""
    return bool(pyarrow.compute.any(pyarrow.compute.match_substring(column, "_")).as_py())


def numbers_in(column: pyarrow.StringArray, *, gaps: bool = False, judged: bool = False) -> NDArray[np.float64] | None:
    """Return the cells as `float` reads them, or None if one is no number; with `gaps`, missing ones as NaN.

    Raises:
        Misjudged: The column is `judged`, and has a cell that `infer_kinds` does not take for a number.
    """
    found = _plain_numbers(column, gaps=gaps)
    if found is None or np.isinf(found).any():  # Python accepts more, such as +1, 1_000 and ٣
        if judged and not _are_numbers(column)[0]:
            raise Misjudged("A column whose first rows are numbers has a cell that is not.")
        cells = column.to_pylist()
        try:
            return np.array([np.nan if gaps and is_missing(cell) else float(cell) for cell in cells], np.float64)
        except ValueError:
            return None
    return found


def _plain_numbers(column: pyarrow.StringArray, *, gaps: bool) -> NDArray[np.float64] | None:
    """Return the cells as Arrow reads them, or None if it cannot read one; it accepts less than `float`."""
    try:
        return pyarrow.compute.cast(column, pyarrow.float64()).to_numpy()
    except pyarrow.ArrowInvalid:
        if not gaps:
            return None
    missing = missing_cells(column)
    try:
        given = pyarrow.compute.if_else(missing, None, column)
        return pyarrow.compute.cast(given, pyarrow.float64()).to_numpy(zero_copy_only=False)
    except pyarrow.ArrowInvalid:
        return None
