"""Parquet files: the same texts as in a CSV file, sections, and what they cannot have."""

from __future__ import annotations

import io
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from slipway.core.errors import UserError
from slipway.core.tables import parquet_file
from slipway.core.tables.batch import Section
from slipway.core.tables.parquet_file import ParquetFile

ROWS = 20
COLUMNS = {
    "integer": (pyarrow.array(range(ROWS)), "7"),
    "float": (pyarrow.array([0.1 * number for number in range(ROWS)]), "0.7000000000000001"),
    "single": (pyarrow.array([0.1] * ROWS, pyarrow.float32()), "0.1"),
    "whole": (pyarrow.array([3.0] * ROWS), "3.0"),
    "tiny": (pyarrow.array([1.5e-6] * ROWS), "1.5e-06"),
    "huge": (pyarrow.array([1e16] * ROWS), "1e+16"),
    "long": (pyarrow.array([28594126179.066216] * ROWS), "28594126179.066216"),
    "nan": (pyarrow.array([float("nan")] * ROWS), ""),
    "null": (pyarrow.nulls(ROWS), ""),
    "gaps": (pyarrow.array([1.5, None] * (ROWS // 2)), ""),
    "text": (pyarrow.array([" Zürich "] * ROWS), "Zürich"),
    "large": (pyarrow.array(["x"] * ROWS, pyarrow.large_string()), "x"),
    "category": (pyarrow.array(["b", "a"] * (ROWS // 2)).dictionary_encode(), "a"),
    "truth": (pyarrow.array([True] * ROWS), "True"),
    "decimal": (pyarrow.array([Decimal("1.50")] * ROWS), "1.50"),
    "day": (pyarrow.array([datetime(2026, 11, 24)] * ROWS, pyarrow.timestamp("ns")), "2026-11-24"),
    "time": (pyarrow.array([datetime(2026, 11, 24, 8)] * ROWS, pyarrow.timestamp("ns")), "2026-11-24 08:00:00"),
    "zone": (pyarrow.array([datetime(2026, 1, 24, 8)] * ROWS, pyarrow.timestamp("us", "Europe/Berlin")),
             "2026-01-24 09:00:00+01:00"),
    "date": (pyarrow.array([date(2026, 11, 24)] * ROWS), "2026-11-24"),
    "list": (pyarrow.array([[0.5, 2.0]] * ROWS), "0.5 2"),
    "vector": (pyarrow.array([[0.5, 2.0]] * ROWS, pyarrow.list_(pyarrow.float32(), 2)), "0.5 2"),
    "cities": (pyarrow.array([["New York", "Rome"]] * ROWS), "['New York', 'Rome']"),
    "words": (pyarrow.array([["a", "b"], None] * (ROWS // 2)), ""),
}  # fmt: skip


def content(columns: dict[str, pyarrow.Array], **options: Any) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file, **options)
    return file.getvalue()


def opened(data: bytes) -> ParquetFile:
    return ParquetFile(io.BytesIO(data), "it.parquet", UserError)


@pytest.mark.parametrize("name", COLUMNS)
def test_cells_are_texts_as_in_a_csv_file(name: str) -> None:
    column, expected = COLUMNS[name]
    table = opened(content({name: column}))
    assert table.names == [name]
    rows = [row for batch in table.batches() for row in batch.rows()]
    assert len(rows) == ROWS
    assert rows[7] == (8, (expected,))


@pytest.mark.parametrize("size", [1, 6, 100])
@pytest.mark.parametrize("group", [1, 7, 100])
def test_sections_are_the_file_in_any_order(size: int, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_file, "BATCH_ROWS", 5)
    table = opened(content({"n": pyarrow.array(range(ROWS))}, row_group_size=group))

    def rows(section: Section) -> list[int]:
        return [int(text) for batch in table.batches(section) for _, (text,) in batch.rows()]

    sections = list(table.divided(size))
    assert [row for section in sections for row in rows(section)] == list(range(ROWS))
    for section in (sections[-1], sections[0], sections[len(sections) // 2]):
        assert rows(section) == list(range(section.start, section.end))


def test_sections_one_after_the_other_read_the_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(content({"n": pyarrow.array(range(ROWS))}))
    opened_groups = []
    read = pyarrow.parquet.ParquetFile.iter_batches

    def counted(file: pyarrow.parquet.ParquetFile, *given: object, **more: object) -> object:
        opened_groups.append(more["row_groups"])
        return read(file, *given, **more)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", counted)
    for section in list(table.divided(3))[::2]:
        list(table.batches(section))
    assert opened_groups == [[0]]


def test_simple_cells_are_recognized() -> None:
    for text, simple in {"plain 1.5": True, "it's": False, "ä": False, "a\nb": False, "": True}.items():
        (batch,) = opened(content({"a": pyarrow.array(["x", text])})).batches()
        assert batch.simple is simple, text


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (pyarrow.array([b"\x89PNG"]), "the column a of it.parquet has bytes: binary"),
        (pyarrow.array([{"x": 1}]), "the column a of it.parquet has structs: struct"),
        (pyarrow.array([[[1.0]]]), "the column a of it.parquet has lists of lists: list"),
    ],
    ids=["bytes", "structs", "lists"],
)
def test_columns_without_a_text_are_refused(column: pyarrow.Array, problem: str) -> None:
    with pytest.raises(UserError) as error:
        opened(content({"a": column}))
    assert problem in str(error.value).lower()


def test_damaged_files_and_zero_bytes_are_refused() -> None:
    with pytest.raises(UserError, match=r"it.parquet is not a Parquet file, or damaged: "):
        opened(b"a,b\n1,2\n")
    data = content({"a": pyarrow.array([f"text {number}" * 100 for number in range(1000)])}, row_group_size=500)
    damaged = bytearray(data)
    damaged[100:5000] = b"\xff" * 4900
    with pytest.raises(UserError, match=r"it.parquet is not a Parquet file, or damaged: "):
        list(opened(bytes(damaged)).batches())
    with pytest.raises(UserError, match=r"Row 2 of it.parquet contains a zero byte"):
        list(opened(content({"a": pyarrow.array(["x", "y\0"])})).batches())


def repeated(rows: int, text: str, *, in_lists: bool) -> pyarrow.Array:
    """Return a column that has one text in every row, and in its file once."""
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), [text])
    return (
        pyarrow.ListArray.from_arrays(pyarrow.array(range(rows + 1), pyarrow.int32()), column) if in_lists else column
    )


@pytest.mark.parametrize("in_lists", [False, True])
@pytest.mark.parametrize("store_schema", [False, True])  # whether it is read as a dictionary
def test_a_dictionary_that_unfolds_is_read_in_small_batches(in_lists: bool, store_schema: bool) -> None:
    """A batch of 8,192 rows, or one list of all, would have 8 GB."""
    text, columns = "a" * (1 << 20), {"x": repeated(8192, "a" * (1 << 20), in_lists=in_lists)}
    data = content({**columns, "n": pyarrow.array(range(8192))}, compression="zstd", store_schema=store_schema)
    assert len(data) < 100_000
    table, rows = opened(data), 0
    for batch in table.batches(Section(0, 100, 100, 0)):
        assert sum(column.nbytes for column in batch.columns) <= 65 << 20
        assert batch.columns[0][0].as_py() == (str([text]) if in_lists else text)
        assert batch.columns[1].to_pylist() == [str(line - 1) for line in batch.lines]
        rows += len(batch)
    assert rows == 100


def test_the_size_of_batches_does_not_change_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {name: pyarrow.concat_arrays([column] * 20) for name, (column, _) in COLUMNS.items()}
    data = content(columns, row_group_size=70)

    def cells() -> tuple[list[int], list[object]]:
        found = [*opened(data).batches()]
        return [len(batch) for batch in found], [row for batch in found for row in batch.rows()]

    sizes, expected = cells()
    assert sizes == [70, 70, 70, 70, 70, 50]
    assert [len(batch) for batch in opened(content({"n": pyarrow.array(range(400))}, row_group_size=70)).batches()] == [
        400
    ]
    monkeypatch.setattr(parquet_file, "MAX_BATCH_BYTES", 1000)
    sizes, observed = cells()
    assert (max(sizes) < 70, observed) == (True, expected)


def test_a_cell_or_column_that_is_too_large_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = content(
        {"n": pyarrow.array([0] * 100), "x": repeated(100, "a" * 100_000, in_lists=False)}, compression="zstd"
    )
    monkeypatch.setattr(parquet_file, "MAX_ROW_BYTES", 90_000)
    with pytest.raises(
        UserError, match=r"^The column x of it\.parquet has cells of 100,000 bytes; a row may have 90,000\."
    ):
        next(opened(data).batches())
    monkeypatch.setattr(parquet_file, "MAX_INFLATED", 90_000)
    monkeypatch.setattr(parquet_file, "MAX_RATIO", 500)
    with pytest.raises(UserError, match=r"^The column x of it\.parquet has 100,\d\d\d bytes, compressed to \d+\."):
        next(opened(data).batches())


def test_too_many_columns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway.core.tables.batch.MAX_COLUMNS", 22)
    with pytest.raises(
        UserError, match=r"^it\.parquet has 23 columns; a table may have 22, of which the last is 'cities'"
    ):
        opened(content({name: column for name, (column, _) in COLUMNS.items()}))
