"""Tables as they are read: many rows at a time, each column an array of the texts of its cells."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import pyarrow

from slipway.core.errors import UserError

# What quoting, escapes in a repr, and whitespace other than spaces do not concern.
SIMPLE = bytes(set(range(0x20, 0x7F)) - set(b"\"'\\"))
# More take minutes and gigabytes, as each column is an input with statistics of its own.
MAX_COLUMNS = 1 << 15
# Returns the error with a message, and `fix`.
Mistake = Callable[..., UserError]


@dataclass(frozen=True)
class Batch:
    """Consecutive rows.

    Attributes:
        lines: The number of each row: of its last line in a file of text.
        columns: The cells of each column, without whitespace around them; "" if a cell is missing.
        simple: Whether all cells consist of the characters `SIMPLE`.
        faults: Why rows cannot be read, by their index in the batch; their cells are empty.
    """

    lines: Sequence[int]
    columns: list[pyarrow.StringArray]
    simple: bool
    faults: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def rows(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield each row with its line."""
        return zip(self.lines, zip(*(column.to_pylist() for column in self.columns), strict=True), strict=True)

    def take(self, kept: Sequence[int]) -> Batch:
        """Return the batch of some of the rows, none of which has a fault."""
        index = pyarrow.array(kept, pyarrow.int64())
        return Batch([self.lines[row] for row in kept], [column.take(index) for column in self.columns], self.simple)

    def part(self, start: int, stop: int) -> Batch:
        """Return the rows from `start` to before `stop`."""
        columns = [column.slice(start, stop - start) for column in self.columns]
        faults = {index - start: fault for index, fault in self.faults.items() if start <= index < stop}
        return Batch(self.lines[start:stop], columns, self.simple, faults)

    def followed_by(self, other: Batch) -> Batch:
        """Return these rows and those of another batch."""
        pairs = zip(self.columns, other.columns, strict=True)
        faults = {**self.faults, **{len(self) + index: fault for index, fault in other.faults.items()}}
        columns = [pyarrow.concat_arrays(pair) for pair in pairs]
        return Batch([*self.lines, *other.lines], columns, self.simple and other.simple, faults)


class Section(NamedTuple):
    """Consecutive rows of a file: where they start and end (a byte, or a row), their number, and that before them."""

    start: int
    end: int
    rows: int
    before: int


class TableFile(ABC):
    """An open file with a table.

    Attributes:
        item: What a row is counted by: a line, or a row.
        names: The names of the columns.
        header: What messages call the place of the names.
        indexes: The columns that are the index of the DataFrame of which the file was written, if it says so.
    """

    item: ClassVar[str]
    names: list[str]
    header: str
    indexes: Collection[str] = ()

    @abstractmethod
    def batches(self, section: Section | None = None, but: Collection[int] = ()) -> Iterator[Batch]:
        """Yield the rows, or those of a section.

        Args:
            section: The section.
            but: The positions of columns that may be None, because they are not needed; asked for each batch.

        Raises:
            UserError: The file is damaged, or has a row that cannot be read.
        """

    @abstractmethod
    def divided(self, size: int) -> Iterator[Section]:
        """Yield sections of `size` rows; the last one may have fewer."""


def check_columns(names: Sequence[str], path: object, mistake: Mistake) -> None:
    """Raise UserError if a table has too many columns."""
    if len(names) > MAX_COLUMNS:
        raise mistake(
            f"{path} has {len(names):,} columns; a table may have {MAX_COLUMNS:,}, of which the last is "
            f"{names[MAX_COLUMNS - 1]!r:.80}.",
            fix="write its numbers as one column of lists of the same length, in a Parquet file",
        )


def regrouped(batches: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Yield the rows in batches of a multiple of `size` rows; the last one may have any number."""
    rest: Batch | None = None
    for batch in batches:
        joined = batch if rest is None else rest.followed_by(batch)
        whole = len(joined) // size * size
        if whole:
            yield joined.part(0, whole)
        rest = joined.part(whole, len(joined)) if whole < len(joined) else None
    if rest is not None:
        yield rest
