"""CSV files in sections, and rows that cannot be read."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest

from slipway.core.errors import UserError
from slipway.core.tables import csv_file, lines
from slipway.core.tables.batch import MAX_COLUMNS, Batch, regrouped
from slipway.core.tables.csv_file import CsvFile

PLAIN = b"a,b\n" + b"".join(b"%d,x\n" % number for number in range(10))
FILES = {
    "plain": PLAIN,
    "without a last line end": PLAIN[:-1],
    "windows": PLAIN.replace(b"\n", b"\r\n"),
    "byte order mark": b"\xef\xbb\xbf" + PLAIN,
    "empty lines": PLAIN.replace(b"3,x\n", b"\n\n3,x\n\n") + b"\n\n",
    "quoted lines": PLAIN.replace(b"4,x", b'"4\n4",x').replace(b"9,x", b'9,"\n\n"'),
    "short cells": b"a,b\n" + b",\n" * 7,
    "one column": b"a\n" + b"1\n2\n\n3\n" * 3,
    "only a header": b"a,b\n",
    "only a header and empty lines": b"a,b\n\n\n",
}


def opened(content: bytes, *, keep_faults: bool = True) -> CsvFile:
    return CsvFile(io.BytesIO(content), "it.csv", UserError, keep_faults=keep_faults)


def rows(table: CsvFile, *sections: object) -> list[tuple[int, tuple[str, ...]]]:
    return [row for section in sections or (None,) for batch in table.batches(section) for row in batch.rows()]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [1, 3, 4, 100])
@pytest.mark.parametrize("block", [1, 30, 1 << 20])
def test_sections_are_the_file(name: str, size: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_file, "BATCH_BYTES", block)
    monkeypatch.setattr(csv_file, "FEWEST_ROWS", 1)
    table = opened(FILES[name])
    expected = [
        [cell.strip() for cell in row] for row in csv.reader(io.StringIO(FILES[name].decode("utf-8-sig"))) if row
    ]
    assert [list(row) for _, row in rows(table)] == expected[1:]
    sections = list(table.divided(size))
    assert [section.rows for section in sections[:-1]] == [size] * (len(sections) - 1)
    assert sum(section.rows for section in sections) == len(expected) - 1
    whole = rows(table)
    assert rows(table, *sections) == whole
    assert rows(table, *reversed(sections)) == [
        row for section in reversed(sections) for row in rows(opened(FILES[name]), section)
    ]


def test_lines_are_those_of_the_file_in_every_section() -> None:
    table = opened(FILES["quoted lines"])
    assert [line for line, _ in rows(table, *table.divided(2))] == [2, 3, 4, 5, 7, 8, 9, 10, 11, 14]


def test_rows_that_cannot_be_read_are_faults_or_errors() -> None:
    content = b"a,b\n1,2\n1\n\xff,3\n\xc3\xa4,4\n1,2,3\n"
    (batch,) = opened(content).batches()
    assert batch.lines == [2, 3, 4, 5, 6]
    assert batch.faults == {
        1: "The line has 1 columns; line 1 has 2",
        2: "The line is not valid UTF-8",
        4: "The line has 3 columns; line 1 has 2",
    }
    assert [list(row) for _, row in batch.rows()][::3] == [["1", "2"], ["ä", "4"]]
    with pytest.raises(UserError, match=r"Line 3 of it.csv has 1 columns; line 1 has 2"):
        list(opened(content, keep_faults=False).batches())
    with pytest.raises(UserError, match=r"Line 4 of it.csv is not valid UTF-8"):
        list(opened(content.replace(b"1\n\xff", b"1,1\n\xff"), keep_faults=False).batches())


@pytest.mark.parametrize("keep_faults", [True, False])
def test_a_file_that_is_not_csv_is_an_error(keep_faults: bool) -> None:
    with pytest.raises(UserError, match=r"Line 3 of it.csv is not CSV"):
        list(opened(b'a,b\n1,2\n"x"y,3\n', keep_faults=keep_faults).batches())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_regrouped_rows_are_whole_groups_with_their_faults(size: int) -> None:
    content = b"a,b\n" + b"".join(b"%d\n" % n if n % 4 == 1 else b"%d,x\n" % n for n in range(11))
    table = opened(content)
    parts = [batch for section in table.divided(3) for batch in table.batches(section)]
    found = list(regrouped(parts, size))
    assert all(len(batch) % size == 0 for batch in found[:-1])
    assert [line for batch in found for line in batch.lines] == list(range(2, 13))
    assert _faulty(found) == _faulty(parts) == [3, 7, 11]


def _faulty(batches: list[Batch]) -> list[int]:
    return [batch.lines[index] for batch in batches for index in batch.faults]


@pytest.mark.parametrize("content", [b"a,b,c\n1,2,3\n4, 5 ,6\n", b'a,b,c\n1,"2",3\n4,5,6\n'])
def test_columns_that_are_not_needed_may_be_missing(content: bytes) -> None:
    (batch,) = opened(content).batches(but={0, 2})
    assert batch.columns[1].to_pylist() == ["2", "5"]
    assert (batch.columns[0] is None) == batch.simple
    with pytest.raises(UserError, match="Line 3 of it has 2 columns"):
        list(CsvFile(io.BytesIO(content[:-3] + b"\n"), "it", UserError).batches(but={0, 2}))


class Endless(io.RawIOBase):
    """A file that begins with `start` and repeats `repeated` without an end; `end` is the last byte that was read."""

    def __init__(self, start: bytes, repeated: bytes) -> None:
        self.start, self.repeated = start, repeated
        self.position = self.end = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.position = offset + (self.position if whence else 0)
        return self.position

    def readinto(self, buffer: Any) -> int:
        before = max(0, self.position - len(self.start)) % len(self.repeated)
        many = (self.repeated * (len(buffer) // len(self.repeated) + 2))[before:]
        buffer[:] = (self.start[self.position :] + many)[: len(buffer)]
        self.position += len(buffer)
        self.end = max(self.end, self.position)
        return len(buffer)


@pytest.mark.parametrize(
    ("start", "repeated"),
    [
        (b"", b"a"),
        (b"", b"a,"),
        (b"a,b\n", b"1"),
        (b"a,b\n1,", b"a "),
        (b"a,b\n1,", b"\xc3\xa4"),
        (b'a,b\n1,"', b'x","\n'),
    ],
    ids=["name", "names", "cell", "spaces", "letters", "cells of a row"],
)
@pytest.mark.parametrize("work", [rows, lambda table: [*table.divided(10)]], ids=["rows", "divided"])
def test_an_endless_line_or_row_is_refused_before_it_is_whole(
    start: bytes, repeated: bytes, work: Callable[[CsvFile], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE", 1 << 20)
    monkeypatch.setattr(csv_file, "BATCH_BYTES", 1 << 16)
    file = Endless(start, repeated)
    with pytest.raises(UserError, match=r"it\.csv has a line or row of more than 1 MB\.") as refused:
        work(CsvFile(io.BufferedReader(file), "it.csv", UserError))
    assert refused.value.fix == "check its line breaks and quotes: head -c 1000 it.csv"
    assert file.end < 2 << 20


def test_a_quote_that_is_never_closed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Endless(b'a,b\n1,"', b"text\n")
    with pytest.raises(UserError, match=r"^Line \d+ of it.csv is not CSV: field larger than field limit"):
        rows(CsvFile(io.BufferedReader(file), "it.csv", UserError))
    assert file.end < 3 * csv_file.MAX_CELL


def test_too_many_columns_are_refused() -> None:
    names = [f"g{number}" for number in range(MAX_COLUMNS + 1)]
    assert len(opened(",".join(names[1:]).encode()).names) == MAX_COLUMNS
    message = r"^it\.csv has 32,769 columns; a table may have 32,768, of which the last is 'g32767'\."
    with pytest.raises(UserError, match=message):
        opened(",".join(names).encode())
