"""Read a CSV file in batches of columns, by Arrow where it reads what the csv module reads, else by the csv module.

Both read the same of lines of printable ASCII without quotes, which most tables of numbers have. Where a batch has
anything else (quoted cells, other alphabets, empty lines, mistakes), the csv module reads it.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.csv
from numpy.typing import NDArray

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.sources.images import is_image
from slipway.components.prepare_data.sources.values import is_number
from slipway.core.errors import UserError
from slipway.core.values import MISSING, is_missing

BATCH_BYTES = 1 << 20
# A batch of a wide table has about this many rows.
FEWEST_ROWS = 32
# What quoting, escapes in a repr, and whitespace other than spaces do not concern.
SIMPLE = bytes(set(range(0x20, 0x7F)) - set(b"\"'\\")) + b"\r\n"
# A column with more different texts than this is a key or free text rather than a category, unless it is declared.
MAX_INFERRED = 1000
# Returns the error with a message, and `fix`.
Mistake = Callable[..., UserError]


@dataclass(frozen=True)
class Batch:
    """Consecutive rows.

    Attributes:
        lines: The number of each row's last line.
        columns: The cells of each column, without whitespace around them.
        simple: Whether all cells consist of the characters `SIMPLE`.
    """

    lines: Sequence[int]
    columns: list[pyarrow.StringArray]
    simple: bool

    def rows(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield each row with its line."""
        return zip(self.lines, zip(*(column.to_pylist() for column in self.columns), strict=True), strict=True)

    def take(self, kept: Sequence[int]) -> Batch:
        """Return the batch of some of the rows."""
        index = pyarrow.array(kept, pyarrow.int64())
        return Batch([self.lines[row] for row in kept], [column.take(index) for column in self.columns], self.simple)


class CsvFile:
    """A CSV file: its header, then its rows in batches; empty lines are skipped.

    Attributes:
        names: The cells of the first line.

    Args:
        file: The open file.
        path: Its path, for messages.
        mistake: Returns the error of a file with this message.

    Raises:
        UserError: The file is not CSV in UTF-8.
    """

    def __init__(self, file: BinaryIO, path: object, mistake: Mistake) -> None:
        self._file = file
        self._path = path
        self._mistake = mistake
        self._line = 0
        rows = self._read_rows(iter(file))
        self._line, names = next(rows, (1, []))
        self.names = [name.strip() for name in names]
        self._batch_bytes = max(BATCH_BYTES, FEWEST_ROWS * sum(map(len, names)))

    def batches(self) -> Iterator[Batch]:
        """Yield the rows after the header.

        Raises:
            UserError: A line is not CSV in UTF-8, or has another number of columns than the first.
        """
        while block := self._file.read(self._batch_bytes) + self._file.readline():
            lines = block.count(b"\n") + (not block.endswith(b"\n"))
            found = self._simple_batch(block, lines)
            if found is None:
                yield from self._batches_by_row(block, lines)
            else:
                yield found
                self._line += lines

    def _simple_batch(self, block: bytes, lines: int) -> Batch | None:
        """Return the rows of a block of whole lines, or None if the csv module must read it."""
        if block.translate(None, SIMPLE) or block.count(b"\r") != block.count(b"\r\n"):
            return None
        try:
            table = pyarrow.csv.read_csv(
                pyarrow.BufferReader(block),
                pyarrow.csv.ReadOptions(use_threads=False, block_size=len(block) + 1, autogenerate_column_names=True),
                pyarrow.csv.ParseOptions(quote_char=False),
                pyarrow.csv.ConvertOptions(
                    column_types={f"f{number}": pyarrow.string() for number in range(len(self.names))}
                ),
            )
        except pyarrow.ArrowInvalid:
            return None
        if table.num_columns != len(self.names) or table.num_rows != lines:  # there are empty lines
            return None
        columns = [column.combine_chunks() for column in table.columns]
        longest = max(pyarrow.compute.max(pyarrow.compute.binary_length(column)).as_py() for column in columns)
        if longest > csv.field_size_limit():
            return None
        trimmed = [pyarrow.compute.ascii_trim(column, " ") for column in columns]
        return Batch(range(self._line + 1, self._line + 1 + lines), trimmed, simple=True)

    def _batches_by_row(self, block: bytes, count: int) -> Iterator[Batch]:
        """Yield the rows of a block of `count` whole lines, and of those after it that belong to its last row."""
        end = self._line + count
        lines: list[int] = []
        rows: list[list[str]] = []
        error = None
        try:
            for line, row in self._read_rows(itertools.chain(io.BytesIO(block), self._file)):
                if len(row) != len(self.names):
                    raise self._mistake(
                        f"Line {line} of {self._path} has {len(row)} columns; line 1 has {len(self.names)}."
                    )
                lines.append(line)
                rows.append([cell.strip() for cell in row])
                if line >= end:
                    break
        except UserError as found:
            error = found  # after those of the rows before it
        if rows:
            columns = [pyarrow.array(column, pyarrow.string()) for column in zip(*rows, strict=True)]
            yield Batch(lines, columns, simple=False)
        if error:
            raise error
        self._line = max(end, lines[-1] if lines else 0)

    def _read_rows(self, lines: Iterable[bytes]) -> Iterator[tuple[int, list[str]]]:
        """Yield each row of these lines with the number of its last line; skip empty lines."""
        before = self._line
        reader = csv.reader(self._decoded(lines, before + 1), strict=True)
        try:
            for row in reader:
                if row:
                    yield before + reader.line_num, row
        except csv.Error as error:
            raise self._mistake(f"Line {before + reader.line_num} of {self._path} is not CSV: {error}.") from None

    def _decoded(self, lines: Iterable[bytes], first: int) -> Iterator[str]:
        for number, line in enumerate(lines, first):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise self._mistake(
                    f"Line {number} of {self._path} is not valid UTF-8.", fix="save the file as UTF-8"
                ) from None
            if "\0" in text:
                raise self._mistake(f"Line {number} of {self._path} contains a zero byte.")
            yield text


def infer_kinds(batches: Iterable[Batch], columns: Mapping[str, int], mistake: Mistake) -> dict[str, Kind]:
    """Infer the kinds of columns from all rows: number if every cell is a number or missing, else category.

    Args:
        batches: The rows.
        columns: The position of each column.
        mistake: Returns the error with a message, and `fix`.

    Raises:
        UserError: A column is neither.
    """
    numeric = dict.fromkeys(columns, True)
    some = dict.fromkeys(columns, False)
    texts: dict[str, dict[str, None]] = {name: {} for name in columns}
    for batch in batches:
        for name, index in columns.items():
            column = batch.columns[index]
            if numeric[name]:
                numeric[name], any_number = _are_numbers(column)
                some[name] |= any_number
            if len(texts[name]) <= MAX_INFERRED:
                texts[name].update(dict.fromkeys(column.unique().to_pylist()))
                texts[name] = dict.fromkeys(itertools.islice(texts[name], MAX_INFERRED + 1))
    found = {}
    for name in columns:
        if numeric[name] and some[name]:
            found[name] = Kind("number")
            continue
        given = texts[name].keys() - {""}
        if given and all(is_image(text.encode()) for text in given):
            raise mistake(
                f"The column {name} has paths of images.",
                fix=f"--set data.image={name}, or name the inputs without it: --set 'data.inputs=[COLUMN, …]'",
            )
        if len(texts[name]) > MAX_INFERRED:
            raise mistake(
                f"The column {name} has more than {MAX_INFERRED:,} different texts; a category has fewer.",
                fix=f"name the inputs without it, --set 'data.inputs=[COLUMN, …]', or "
                f"--set data.features.{name}=category",
            )
        found[name] = Kind("category")
    return found


def _are_numbers(column: pyarrow.StringArray) -> tuple[bool, bool]:
    """Return whether every cell is a number or missing, and whether any is a number."""
    numbers = numbers_in(column)
    if numbers is not None and np.isfinite(numbers).all() and not has_underscores(column):
        return True, len(numbers) > 0
    given = [cell for cell in column.unique().to_pylist() if not is_missing(cell)]
    return all(map(is_number, given)), bool(given)


def has_underscores(column: pyarrow.StringArray) -> bool:
    """Whether a cell has an underscore, which `float` accepts between digits."""
    return bool(pyarrow.compute.any(pyarrow.compute.match_substring(column, "_")).as_py())


def numbers_in(column: pyarrow.StringArray, *, gaps: bool = False) -> NDArray[np.float64] | None:
    """Return the cells as `float` reads them, or None if one is no number; with `gaps`, missing ones as NaN."""
    if gaps:
        missing = pyarrow.compute.is_in(pyarrow.compute.utf8_lower(column), pyarrow.array(sorted(MISSING)))
        column = pyarrow.compute.if_else(missing, None, column)
    try:
        found = pyarrow.compute.cast(column, pyarrow.float64()).to_numpy(zero_copy_only=False)
    except pyarrow.ArrowInvalid:
        found = None
    if found is None or np.isinf(found).any():  # Python accepts more, such as +1, 1_000 and ٣
        try:
            found = np.array([np.nan if cell is None else float(cell) for cell in column.to_pylist()], np.float64)
        except ValueError:
            return None
    return found
