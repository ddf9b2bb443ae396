"""Tables as people write them: separators, quotes, line ends, formatted numbers and their own markers of gaps."""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.scan_table import scan_table
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError
from slipway.core.formatted import NUMBER_FORMATS, NumberFormat, format_of, plain_number
from slipway.core.tables.csv_file import CsvFile
from slipway.serving.kinds import Field
from slipway.serving.tables import _values

ROWS = 60
NUMBERS = [round(random.Random(number).gauss(0, 3000), 2) for number in range(ROWS)]
LABELS = ["yes" if number % 2 else "no" for number in range(ROWS)]


def written(number: float, form: NumberFormat) -> str:
    """Return a number as a format writes it."""
    thousands, decimal = NUMBER_FORMATS[form]
    text = f"{number:,.2f}" if thousands else f"{number:.2f}"
    return text.replace(",", "\0").replace(".", decimal[0]).replace("\0", thousands[:1])


@given(number=st.floats(-1e9, 1e9).map(lambda value: round(value, 2)), form=st.sampled_from([*NUMBER_FORMATS]))
def test_a_formatted_number_is_read_as_it_was(number: float, form: NumberFormat) -> None:
    text = written(number, form)
    assert float(plain_number(text, form)) == number
    for signed in (f"{text} %", f"{text}€", f"$ {text}", f"£{text}"):
        assert float(plain_number(signed, form)) == number
    assert float(plain_number(f"({text.lstrip('-')})", form)) == -abs(number)


@pytest.mark.parametrize(
    ("texts", "form"),
    [
        (["1,200.00", "298,700.00"], "1,234.56"),
        (["$200,060", "-$1,000"], "1,234.56"),
        (["0,0012", "-0,591", "1,234"], "1234,56"),
        (["1.234,5", "12,25"], "1.234,56"),
        (["1 234,5", "12,25"], "1 234,56"),
        (["1'234.5", "12.25"], "1'234.56"),
        (["1`234.5", "12.25", "1’000,5"], None),
        *(([f"1{mark}234.5", "12.25"], "1'234.56") for mark in "`´ʼ‘’′"),
        *(([f"1{space}234", f"1{space}234{space}567", "8"], "1 234,56") for space in "\u2007\u2009\u202f\xa0"),
        (["45 %", "3.5%"], "1234.56"),
        (["1,200.00", "1.200,00"], None),
        (["1,200.00", "north"], None),
        (["12,34,56"], None),
        ([], None),
    ],
)
def test_the_format_of_a_column(texts: Sequence[str], form: str | None) -> None:
    assert format_of(texts) == form


def lines(*rows: str, end: str = "\n") -> str:
    return end.join(rows) + end


def cells(path: Path) -> list[list[str]]:
    with path.open("rb") as file:
        table = CsvFile(file, path, lambda message, **more: UserError(message, **more))
        return [table.names, *(list(row) for batch in table.batches() for _, row in batch.rows())]


PLAIN = [["x", "label"], ["0.5", "yes"], ["1.5", "no"]]


@pytest.mark.parametrize(
    "text",
    [
        lines('"x", "label"', '0.5, "yes"', '1.5, "no"'),
        lines("sep=,", "x,label", "0.5,yes", "1.5,no"),
        lines('"sep=;"', "x;label", "0.5;yes", "1.5;no", end="\r\n"),
        lines("\ufeffsep=\t", "x\tlabel", "0.5\tyes", "1.5\tno"),
        lines("x;label", "0.5;yes", '1.5;"no"'),
        lines("x\tlabel", "0.5\tyes", "1.5\tno"),
    ],
)
def test_forms_of_csv(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    assert cells(path) == PLAIN


def test_a_comma_in_the_first_line_separates_columns(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(lines("x;y,label", "a;b,yes"))
    assert cells(path) == [["x;y", "label"], ["a;b", "yes"]]


@pytest.mark.parametrize(
    "text",
    [
        lines("x,label", "0.5,yes", "1.5,no", end="\r"),
        lines("x,label", r'"0.5 or ""half"", \"0\"",yes', r'"1 \"half\"",no'),
    ],
)
def test_the_fix_of_a_file_that_is_not_csv_makes_it_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a table.csv"
    path.write_bytes(text.encode())
    with pytest.raises(UserError, match="is not CSV") as error:
        cells(path)
    assert error.value.fix
    subprocess.run(error.value.fix, shell=True, check=True)
    assert [row[1] for row in cells(tmp_path / "a table-fixed.csv")] == ["label", "yes", "no"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lines("größe,label", "0.5,yes", "1.5,no").encode("utf-16"), "Line 1 of .* is not valid UTF-8"),
        (lines("größe,label", "0.5,yes", "1.5,no").encode("cp1252"), "Line 1 of .* is not valid UTF-8"),
        (lines("größe;label", "0.5;yes;", "1.5;no;", end="\r\n").encode(), "Line 2 of .* has 3 columns; line 1 has 2"),
    ],
)
def test_a_file_of_other_characters_or_with_separators_at_its_lines_ends_is_converted_by_the_fix(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "a table.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        cells(path)
    assert error.value.fix
    subprocess.run(error.value.fix, shell=True, check=True)
    assert cells(tmp_path / "a table-fixed.csv") == [["größe", "label"], ["0.5", "yes"], ["1.5", "no"]]


def test_a_column_without_a_name_is_an_index_or_nameless(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(lines(",x,label,", *(f"{n},{NUMBERS[n]},{LABELS[n]}," for n in range(ROWS))))
    found = scan_table(path, "label")
    assert list(found.manifest.inputs) == ["x"]
    assert any("Unnamed: 0 is no input: it is an index" in note for note in found.manifest.notes)
    assert any("Unnamed: 3 is no input: it has no name" in note for note in found.manifest.notes)


def test_the_index_that_a_parquet_file_names_is_no_input(tmp_path: Path) -> None:
    import pandas

    frame = pandas.DataFrame({"day": [number**2 for number in range(ROWS)], "x": NUMBERS, "label": LABELS}).set_index(
        "day"
    )
    frame.to_parquet(tmp_path / "indexed.parquet")
    found = scan_table(tmp_path / "indexed.parquet", "label")
    assert list(found.manifest.inputs) == ["x"]
    assert any("day is no input: it is the index of the DataFrame" in note for note in found.manifest.notes)


@pytest.mark.parametrize(
    ("form", "task"), zip(NUMBER_FORMATS, itertools.cycle(["classification", "regression"]), strict=False)
)
def test_formatted_numbers_are_those_of_the_plain_table(tmp_path: Path, form: NumberFormat, task: str) -> None:
    """`slipway init` finds the format; the data set and the predictions are those of plain numbers."""
    texts = [f"€{written(number, form)}" for number in NUMBERS]
    label = "label" if task == "classification" else "price"
    for name, column in (("plain", [f"{number:.2f}" for number in NUMBERS]), ("formatted", texts)):
        rows = (f'"{text}","{text}",{label}' for text, label in zip(column, LABELS, strict=True))
        (tmp_path / f"{name}.csv").write_text(lines("x,price,label", *rows))
    plain, found = (scan_table(tmp_path / f"{name}.csv", label) for name in ("plain", "formatted"))
    assert found.settings.number_format == {"x": form, "price": form}
    assert found.manifest.task == plain.manifest.task == task
    assert found.manifest.target == plain.manifest.target
    column = found.manifest.inputs["x"]
    assert column.written == form
    assert column.model_copy(update={"written": None}) == plain.manifest.inputs["x"]
    served = Field.of(column, np.dtype(np.float32), ())
    values, problems = _values(served, pyarrow.array(texts), lambda _: b"")
    assert not problems
    np.testing.assert_array_equal(values, np.array(NUMBERS, np.float32))


def test_markers_of_ones_own_are_gaps(tmp_path: Path) -> None:
    """Each tenth number is -999, in a CSV file as a whole number and in Parquet as a float."""
    numbers = [-999 if index % 10 == 0 else number for index, number in enumerate(NUMBERS)]
    kinds = ["unknown" if index % 7 == 0 else "ab"[index % 2] for index in range(ROWS)]
    rows = [f"{number},{kind},{label}" for number, kind, label in zip(numbers, kinds, LABELS, strict=True)]
    (tmp_path / "marked.csv").write_text(lines("x,kind,label", *rows))
    frame = pyarrow.table({"x": [float(number) for number in numbers], "kind": kinds, "label": LABELS})
    pyarrow.parquet.write_table(frame, tmp_path / "marked.parquet")
    for ending in ("csv", "parquet"):
        source = f"{ending}:{tmp_path / f'marked.{ending}'}"
        settings = DataSettings.model_validate({"source": source, "missing_values": [-999, "unknown"], "workers": 1})
        inputs = prepare(settings.model_copy(update={"store": str(tmp_path / "store")}), 1).manifest.inputs
        assert inputs["x"].nullable and inputs["x"].mean[0] > -500
        assert inputs["kind"].vocabulary == ("", "a", "b")
        served = Field.of(inputs["x"], np.dtype(np.float32), ())
        values, problems = _values(served, pyarrow.array(["-999", "-999.0", "7"]), lambda _: b"")
        assert not problems and np.isnan(values[:2]).all() and values[2] == 7


def test_the_fix_of_a_cell_that_is_no_number_makes_its_column_one(tmp_path: Path) -> None:
    rows = [f"{number},{label}" for number, label in zip(NUMBERS, LABELS, strict=True)]
    rows[7] = "n.d.,yes"
    (tmp_path / "bad.csv").write_text(lines("x,label", *rows))
    settings = {"source": f"csv:{tmp_path / 'bad.csv'}", "store": str(tmp_path / "store"), "workers": 1}
    with pytest.raises(UserError, match=r"No column .* is an input: x has 59 different numbers, but line 9 has 'n.d.'"):
        prepare(DataSettings.model_validate(settings), 1)
    named = prepare(DataSettings.model_validate({**settings, "inputs": ["x"]}), 1).manifest
    assert named.inputs["x"].kind == "category"
    assert any("The column x is a category: it has 59 different numbers" in note for note in named.notes)
    prepared = prepare(DataSettings.model_validate({**settings, "missing_values": ["n.d."]}), 1)
    assert prepared.manifest.inputs["x"].nullable


def test_a_long_cell_is_a_text(tmp_path: Path) -> None:
    texts = [f"a house near lake number {number}" for number in range(ROWS)]
    texts[7] = "a long story " * 20_000
    rows = (f'"{text}",{label}' for text, label in zip(texts, LABELS, strict=True))
    (tmp_path / "long.csv").write_text(lines("about,label", *rows))
    assert scan_table(tmp_path / "long.csv", "label").manifest.inputs["about"].kind == "text"
