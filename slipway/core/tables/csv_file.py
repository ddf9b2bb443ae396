"""Read a CSV file in batches of columns, by Arrow where it reads what the csv module reads, else by the csv module.

Columns are separated by commas, or by semicolons or tabs if the first line has no comma. Excel's line `sep=;` before it
is skipped.
Both read the same of lines of printable ASCII without quotes, which most tables of numbers have. Where a batch has
anything else (quoted cells, other alphabets, empty lines, mistakes), the csv module reads it.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.csv
from numpy.typing import NDArray

from slipway.core.errors import UserError
from slipway.core.tables.batch import SIMPLE, Batch, Mistake, Section, TableFile, check_columns
from slipway.core.tables.lines import MAX_LINE, Lines

BATCH_BYTES = 1 << 20
# A wide table's batch is larger, by a factor for each so many columns: each column of a batch has a cost of its own.
WIDE_COLUMNS, LARGEST_FACTOR = 128, 16
# A batch of a table with long names of columns has about this many rows.
FEWEST_ROWS = 32
NEWLINE = ord("\n")
SIMPLE_LINES = SIMPLE + b"\r\n"
# Characters of a cell; the csv module's own limit is 131,072.
MAX_CELL = 1 << 24
csv.field_size_limit(MAX_CELL)
SEPARATORS = ",;\t"
SEPARATOR_LINE = re.compile(rb"(?:\xef\xbb\xbf)?\"?sep=([,;\t])\"?\r?\n")
QUOTED = re.compile(rb'"[^"]*"')
UTF_16, WINDOWS, TRAILING = "UTF-16", "not UTF-8", "a separator at the end of each row"
# What is wrong with a file, partly in the csv module's words, and the command that makes it CSV in UTF-8; FILE and NEW
# stand for its name and a new one, MARK for the separator.
COMMANDS = {
    "new-line character seen in unquoted field": r"tr '\r' '\n' < FILE > NEW",
    UTF_16: "iconv -f UTF-16 -t UTF-8 FILE > NEW",
    WINDOWS: "iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW",
    TRAILING: "sed 's/MARK\\r\\?$//' FILE > NEW",
    "expected after '\"'": """sed 's/\\\\"/""/g' FILE > NEW""",
}


class CsvFile(TableFile):
    """A CSV file: its header, then its rows in batches; empty lines are skipped.

    Args:
        file: The open file.
        path: Its path, for messages.
        mistake: Returns the error of a file with this message.
        keep_faults: Whether a row that cannot be read is a fault of its batch; otherwise, it is an error.

    Raises:
        UserError: The file is not CSV in UTF-8.
    """

    item = "line"

    def __init__(self, file: IO[bytes], path: object, mistake: Mistake, *, keep_faults: bool = False) -> None:
        self._file = Lines(file, path, mistake)
        self._path = path
        self._mistake = mistake
        self._line = 0
        self._keep_faults = False  # of the header
        self._separator = self._find_separator()
        self.header = f"Line {self._line + 1} of {path}"
        rows = self._read_rows(self._file)
        self._line, names = next(rows, (1, []))
        check_columns(names, path, mistake)
        self._header_line = self._line
        # As pandas names them.
        self.names = [name.strip() or f"Unnamed: {index}" for index, name in enumerate(names)]
        factor = min(max(1, len(names) // WIDE_COLUMNS), LARGEST_FACTOR)
        self._batch_bytes = max(factor * BATCH_BYTES, min(FEWEST_ROWS * sum(map(len, names)), MAX_LINE))
        self._keep_faults = keep_faults
        self._first = file.tell(), self._line

    def _find_separator(self) -> str:
        """Return what separates the columns; skip a line that says so."""
        line = self._file.readline()
        if match := SEPARATOR_LINE.fullmatch(line):
            self._line = 1
            return match[1].decode()
        self._file.seek(0)
        header = QUOTED.sub(b"", line)
        return next((mark for mark in SEPARATORS if mark.encode() in header), ",")

    def batches(self, section: Section | None = None, but: Collection[int] = ()) -> Iterator[Batch]:
        """Yield the rows after the header, or those of a section, as `TableFile` says.

        Raises:
            UserError: A line is not CSV. Unless faults are kept: it is not UTF-8, or has another number of columns than
                the first.
        """
        start, self._line = (section.start, section.before) if section else self._first
        self._file.seek(start)
        while block := self._block(section.end if section else None):
            lines = block.count(b"\n") + (not block.endswith(b"\n"))
            batch = self._simple_batch(block, lines, but)
            if batch is None:
                yield from self._batches_by_row(block, lines)
            else:
                yield batch
                self._line += lines

    def _block(self, end: int | None = None) -> bytes:
        """Return the next whole lines, b"" at the end."""
        size = self._batch_bytes if end is None else max(0, min(self._batch_bytes, end - self._file.tell()))
        block = self._file.read(size)
        return block if not block or block.endswith(b"\n") else block + self._file.readline()

    def _simple_batch(self, block: bytes, lines: int, but: Collection[int]) -> Batch | None:
        """Return the rows of a block of whole lines, or None if the csv module must read it."""
        if block.translate(None, SIMPLE_LINES + self._separator.encode()):
            return None
        if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
            return None
        names = [*map(str, range(len(self.names)))]
        read = [number for number in range(len(names)) if number not in but]
        try:
            table = pyarrow.csv.read_csv(
                pyarrow.BufferReader(block),
                pyarrow.csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
                pyarrow.csv.ParseOptions(delimiter=self._separator, quote_char=False),
                pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pyarrow.string()),
                    include_columns=[names[number] for number in read],
                    null_values=[],
                    check_utf8=False,  # it is ASCII
                ),
            )
        except pyarrow.ArrowInvalid:
            return None
        if table.num_rows != lines:  # there are empty lines
            return None
        columns: list[pyarrow.StringArray | None] = [None] * len(names)
        for number, chunks in zip(read, table.columns, strict=True):
            cells = chunks.combine_chunks()
            if len(block) > csv.field_size_limit() < pyarrow.compute.max(pyarrow.compute.binary_length(cells)).as_py():
                return None
            columns[number] = pyarrow.compute.ascii_trim(cells, " ") if b" " in block else cells
        return Batch(range(self._line + 1, self._line + 1 + lines), columns, simple=True)

    def _batches_by_row(self, block: bytes, count: int) -> Iterator[Batch]:
        """Yield the rows of a block of `count` whole lines, and of those after it that belong to its last row."""
        end = self._line + count
        lines: list[int] = []
        rows: list[list[str]] = []
        faults: dict[int, str] = {}
        error = None
        try:
            for line, row in self._read_rows(itertools.chain(io.BytesIO(block), self._file)):
                if fault := self._fault(line, row):
                    faults[len(rows)] = fault
                    row = [""] * len(self.names)
                lines.append(line)
                rows.append([cell.strip() for cell in row])
                if line >= end:
                    break
        except UserError as failure:
            error = failure  # after those of the rows before it
        if rows:
            columns = [pyarrow.array(column, pyarrow.string()) for column in zip(*rows, strict=True)]
            yield Batch(lines, columns, simple=False, faults=faults)
        if error:
            raise error
        self._line = max(end, lines[-1] if lines else 0)

    def _fault(self, line: int, row: list[str]) -> str | None:
        """Return why a row cannot be used, or raise that as an error unless faults are kept."""
        if len(row) != len(self.names):
            if self._keep_faults:
                return f"The line has {len(row)} columns; line {self._header_line} has {len(self.names)}"
            is_trailing = len(row) == len(self.names) + 1 and not row[-1]
            raise self._mistake(
                f"Line {line} of {self._path} has {len(row)} columns; line {self._header_line} has {len(self.names)}.",
                fix=self._command(TRAILING) if is_trailing else None,
            )
        if self._keep_faults:
            try:
                "".join(row).encode()
            except UnicodeEncodeError:
                return "The line is not valid UTF-8"
        return None

    def _read_rows(self, lines: Iterable[bytes]) -> Iterator[tuple[int, list[str]]]:
        """Yield each row of these lines with the number of its last line; skip empty lines."""
        before, size = self._line, 0

        def sized() -> Iterator[bytes]:
            nonlocal size
            for line in lines:
                size += len(line)
                self._file.check_row(size)
                yield line

        reader = csv.reader(
            self._decoded(sized(), before + 1), delimiter=self._separator, skipinitialspace=True, strict=True
        )
        try:
            for row in reader:
                size = 0
                if row:
                    yield before + reader.line_num, row
        except csv.Error as error:
            message = f"Line {before + reader.line_num} of {self._path} is not CSV: {str(error).partition(' - ')[0]}."
            raise self._mistake(message, fix=self._command(str(error))) from None

    def _command(self, error: str) -> str | None:
        """Return the command that writes the file as CSV, if one is known."""
        command = next((command for text, command in COMMANDS.items() if text in error), None)
        if command is None or not isinstance(self._path, Path):
            return None
        new = self._path.with_stem(f"{self._path.stem}-fixed")
        names = {"FILE": shlex.quote(str(self._path)), "NEW": shlex.quote(str(new)), "MARK": self._separator}
        return re.sub("FILE|NEW|MARK", lambda match: names[match[0]], command)

    def _decoded(self, lines: Iterable[bytes], first: int) -> Iterator[str]:
        errors = "surrogateescape" if self._keep_faults else "strict"
        for number, line in enumerate(lines, first):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8", errors)
            except UnicodeDecodeError:
                kind = UTF_16 if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else WINDOWS
                fix = self._command(kind) or "save the file as UTF-8"
                raise self._mistake(f"Line {number} of {self._path} is not valid UTF-8.", fix=fix) from None
            if "\0" in text:
                raise self._mistake(f"Line {number} of {self._path} contains a zero byte.")
            yield text

    def divided(self, size: int) -> Iterator[Section]:
        """Yield sections of `size` rows; the last one may have fewer.

        Raises:
            UserError: A line is not CSV.
        """
        start, before = self._first
        self._file.seek(start)
        self._line, rows, end = before, 0, start
        for ends, lines in self._row_ends():
            taken = 0
            while rows + len(ends) - taken >= size:
                taken += size - rows
                end = int(ends[taken - 1])
                yield Section(start, end, size, before)
                start, before, rows = end, int(lines[taken - 1]), 0
            rows += len(ends) - taken
            end = int(ends[-1])
        if rows:
            yield Section(start, end, rows, before)

    def _row_ends(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the byte after each of some rows, and the number of its last line."""
        position = self._file.tell()
        while block := self._block():
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == NEWLINE) + 1
            if not block.endswith(b"\n"):
                ends = np.append(ends, len(block))
            if b'"' not in block and np.diff(ends, prepend=0).min() > len(b"\r\n"):
                lines = self._line + np.arange(1, len(ends) + 1)
                yield ends + position, lines
                self._line = int(lines[-1])
            else:  # there are quoted cells, or empty lines
                yield from self._row_ends_by_row(block, len(ends), position)
            position = self._file.tell()

    def _row_ends_by_row(
        self, block: bytes, count: int, position: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        def counted() -> Iterator[bytes]:
            nonlocal position
            for line in itertools.chain(io.BytesIO(block), self._file):
                position += len(line)
                yield line

        end = self._line + count
        row_ends = []
        for line, _ in self._read_rows(counted()):
            row_ends.append((position, line))
            if line >= end:
                break
        self._line = max(end, row_ends[-1][1] if row_ends else 0)
        if row_ends:
            ends, lines = np.array(row_ends, np.int64).T
            yield ends, lines
