"""The kinds of a table's columns, from their cells, and what a data set of dates and texts is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pytest

from slipway.components.prepare_data.encoding.messages import values
from slipway.components.prepare_data.encoding.records import read_examples
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import check_source
from slipway.components.prepare_data.sources.tables import input_table
from slipway.components.prepare_data.sources.tables.inference import count_cells, infer_kinds
from slipway.core.errors import UserError
from slipway.core.tables import csv_file
from slipway.core.tables.batch import Batch

MakeSettings = Callable[..., DataSettings]
REVIEWS = [f"A {size} house with {rooms} rooms, near lake {rooms}" for size in ("big", "small") for rooms in range(20)]


@pytest.mark.parametrize(
    ("name", "cells", "kind", "excluded"),
    [
        ("x", ["1", "2.5", "NA"], "number", False),
        ("zip", ["01067", "80331", "", "10115"], "category", False),
        ("day", ["2024-01-31", "", "2024-02-01 12:30"], "date", False),
        ("day", ["31.01.2024", "01.02.2024"], "date_dmy", False),
        ("day", ["01.02.2024", "03.02.2024"], "date_dmy", False),
        ("day", ["1/2/2024", "3/2/2024"], "date_mdy", False),
        ("day", ["1/2/2024", "31/12/2024"], "date_dmy", False),
        ("day", ["2024-13-31", "2024-02-01"], "category", False),
        ("year", ["2023", "2024"], "number", False),
        ("city", ["Bern", "Basel", ""] * 9, "category", False),
        ("about", REVIEWS, "text", False),
        ("about", REVIEWS * 4, "text", False),
        ("about", REVIEWS * 5, "category", False),
        ("about", ["as good as new"] * 39 + ["old"], "category", False),
        ("customer", [f"C-{number:04}" for number in range(40)], "text", True),
        ("customer_id", [str(number) for number in range(40)], "number", True),
        ("paid", [str(number) for number in range(40)], "number", False),
        ("userId", [str(number) for number in range(40)], "number", True),
    ],
)
def test_kinds(name: str, cells: Sequence[str], kind: str, excluded: bool) -> None:
    def batches(**_: object) -> list[Batch]:
        middle = len(cells) // 2
        return [
            Batch(range(len(part)), [pyarrow.array(part, pyarrow.string())], simple=False)
            for part in (cells[:middle], cells[middle:])
        ]

    file: object = SimpleNamespace(names=[name], batches=batches, indexes=(), item="line")
    (found,) = infer_kinds(file, {name: 0}, lambda message, **_: UserError(message)).values()  # type: ignore[arg-type]
    assert (str(found.kind), bool(found.excluded)) == (kind, excluded)
    assert found.missing == sum(cell in ("", "NA") for cell in cells)


@pytest.mark.parametrize("marker", ["#N/A", "#DIV/0!", "<NA>", "NaT", "-", ".", "#NUM!", "1.#IND"])
def test_markers_of_missing_numbers(tmp_path: Path, marker: str) -> None:
    path = tmp_path / "marked.csv"
    path.write_text("\n".join(["x,label", *(f"{n / 7},a" for n in range(119)), f"{marker},b"]))
    with path.open("rb") as file:
        column = infer_kinds(csv_file.CsvFile(file, path, UserError), {"x": 0}, UserError)["x"]
    assert (str(column.kind), column.missing, column.excluded) == ("number", 1, "")


@pytest.mark.parametrize(
    ("name", "cells", "why"),
    [
        ("x", [*(f"{n / 7}" for n in range(119)), "n.d."], "has 119 different numbers, but line 121 has 'n.d.'; empty"),
        ("x", ["n.d.", *(f"{n % 12}" for n in range(60))], "has 12 different numbers, but line 2 has 'n.d.'; empty"),
        ("x", ["5 %", "10 %", "25 %"] * 9, "has numbers with separators or signs, such as '5 %': --set 'data.number_f"),
        ("x", ["2:30 PM", "11:05 am"] * 9, "has times with AM or PM, such as '2:30 PM'"),
        ("x", [f'"{n},200.00"' for n in range(1, 120)], "has numbers with separators or signs, such as '1,200.00'"),
        ("x", [f"{n} %" for n in range(1, 120)], "has numbers with separators or signs, such as '1 %'"),
        ("x", [f"key{n}" for n in range(119)], "is probably an identifier"),
        ("Unnamed: 3", ["a", "b"] * 9, "has no name"),
        ("Unnamed: 0", [f"{n}" for n in range(119)], "is an index that pandas wrote"),
        ("__index_level_0__", [f"{n}" for n in range(119)], "is an index that pandas wrote"),
    ],
)
def test_why_a_column_is_no_input(tmp_path: Path, name: str, cells: list[str], why: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text("\n".join([name, *cells]))
    with path.open("rb") as file:
        column = infer_kinds(csv_file.CsvFile(file, path, UserError), {name: 0}, UserError)[name]
    assert column.excluded.startswith(why)


def test_times_of_several_zones_are_noted(tmp_path: Path, make_settings: MakeSettings) -> None:
    for zones, noted in ((["+01:00", "Z"], True), (["Z"], False)):
        cells = (f"2024-01-{1 + row % 28:02} 10:{row % 60:02}:00{zones[row % len(zones)]}" for row in range(90))
        path = tmp_path / f"{len(zones)}.csv"
        path.write_text("\n".join(["at,label", *(f"{cell},{'ab'[row % 2]}" for row, cell in enumerate(cells))]))
        manifest = prepare(make_settings(f"csv:{path}"), 1).manifest
        assert manifest.inputs["at"].kind == "date"
        assert (
            any("at is a date: it has times of several zones (+01:00, Z)" in each for each in manifest.notes) == noted
        )


def test_an_identifier_of_repeated_rows_is_none_of_an_attribute(tmp_path: Path) -> None:
    """A shop that has one region is an input, a customer in a table that has each row three times is not."""
    rng = random.Random(0)
    shops = {f"S{number:03}": rng.choice("NESW") for number in range(60)}
    sold = [(f"C-{number:04}", rng.choice([*shops])) for number in range(200)]
    rows = [[customer, shop, shops[shop], f"{rng.random():.4f}"] for customer, shop in sold]
    path = tmp_path / "repeated.csv"
    path.write_text("\n".join(map(",".join, [["customer", "shop", "region", "x"], *rows * 3])))
    with path.open("rb") as file:
        places = {"customer": 0, "shop": 1, "region": 2, "x": 3}
        found = infer_kinds(csv_file.CsvFile(file, path, UserError), places, UserError)
    assert [name for name, column in found.items() if column.excluded] == ["customer"]
    with path.open("rb") as file:
        found = infer_kinds(csv_file.CsvFile(file, path, UserError), {"shop": 1, "region": 2}, UserError)
    assert not any(column.excluded for column in found.values())


def table(path: Path, rows: int = 400) -> Path:
    rng = random.Random(1)
    lines = ["customer,sold,about,label"]
    for row in range(rows):
        day = f"{rng.randrange(2019, 2024)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}" if row % 9 else ""
        words = " ".join(rng.choice(["old", "new", "big", "lake"]) for _ in range(rng.randrange(5, 12)))
        lines.append(f"C-{row:04},{day},{words} {row},{rng.choice(['a', 'b'])}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_dates_and_texts_are_inputs_and_keys_are_not(tmp_path: Path, make_settings: MakeSettings) -> None:
    settings = make_settings(f"csv:{table(tmp_path / 't.csv')}", text={"words": 60})
    found = prepare(settings, 1).manifest
    sold, about = found.inputs["sold"], found.inputs["about"]
    assert list(found.inputs) == ["sold", "about"]
    assert (sold.kind, sold.shape, sold.order) == ("date", (8,), "ymd")
    assert 17_897 < sold.mean[0] < 19_724  # days of 2019 to 2023
    assert (about.kind, len(about.vocabulary), about.shape) == ("text", 60, (14,))
    assert set(about.vocabulary[:4]) == {"old", "new", "big", "lake"}
    assert "customer is no input: it is probably an identifier, since" in found.notes[0]
    named = make_settings(settings.source, inputs=["customer", "sold"], features={"customer": "category"})
    assert list(prepare(named, 1).manifest.inputs) == ["customer", "sold"]


def test_a_declared_date_that_is_none_is_refused(tmp_path: Path, make_settings: MakeSettings) -> None:
    source = f"csv:{table(tmp_path / 't.csv')}"
    with pytest.raises(UserError, match=r"Only 0 of \d+ texts of about are dates in the order day-month-year"):
        prepare(make_settings(source, features={"about": "date_dmy"}), 1)
    with pytest.raises(UserError, match=r"\d+ dates of sold are missing"):
        prepare(make_settings(source, missing="refuse"), 1)


@pytest.mark.parametrize("inputs", [["about"], None])
def test_a_column_has_the_keys_of_the_rows(
    tmp_path: Path, make_settings: MakeSettings, inputs: list[str] | None
) -> None:
    source = f"csv:{table(tmp_path / 't.csv')}"
    # A column of the kind text[] is prepared row by row.
    features = {"sold": "text[]"} if inputs else None
    prepared = prepare(make_settings(source, id="customer", inputs=inputs, features=features), 1)
    assert "customer" not in {**prepared.manifest.inputs, **prepared.manifest.features}
    assert not prepared.manifest.notes
    shards = [prepared.folder / shard.file for split in prepared.manifest.splits.values() for shard in split.shards]
    keys = {values(each[b"key"])[0].decode() for each in read_examples(shards)}
    assert keys == {f"C-{row:04}" for row in range(400)}
    lines = (tmp_path / "t.csv").read_text().splitlines()
    (tmp_path / "t.csv").write_text("\n".join([*lines, lines[7]]) + "\n")
    with pytest.raises(UserError, match=r"C-0006 is listed twice .*: on lines 8 and 402"):
        prepare(make_settings(source, id="customer", inputs=inputs, features=features), 1)


def test_mistakes_of_ids(tmp_path: Path, make_settings: MakeSettings) -> None:
    with pytest.raises(UserError, match="has no column custmer") as error:
        prepare(make_settings(f"csv:{table(tmp_path / 't.csv')}", id="custmer"), 1)
    assert (error.value.setting, error.value.nearest) == ("data.id", "customer")
    with pytest.raises(UserError, match="The images of digits have keys of their own"):
        prepare(make_settings("digits", id="customer"), 1)


MANY = [f"{number % 1050 / 8},{number % 2}" for number in range(2400)]


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ("0.5", "number"),
        ("", "number"),
        ("+5", "number"),
        ("x", "category"),
        ("1_000", "category"),
        ('"x"', "category"),
    ],
)
def test_a_column_of_many_numbers_may_end_otherwise(
    tmp_path: Path, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, last: str, kind: str
) -> None:
    """After many different numbers, the rest of a column is not read until its rows are listed."""
    monkeypatch.setattr(csv_file, "BATCH_BYTES", 1 << 12)
    path = tmp_path / "numbers.csv"
    path.write_text("\n".join(["x,label", *MANY, f"{last},1", "", "7,"]))
    settings = make_settings(f"csv:{path}", inputs=["x"])
    with path.open("rb") as file:
        table = csv_file.CsvFile(file, path, UserError)
        cells = count_cells(table, {"x": 0}, ())
        assert str(infer_kinds(table, {"x": 0}, UserError, cells=cells)["x"].kind) == "number"
        assert cells["x"].are_many_numbers
        whole = infer_kinds(table, {"x": 0}, UserError)["x"]
    assert (str(whole.kind), whole.missing, whole.rows) == (kind, last == "", len(MANY) + 2)
    with pytest.raises(UserError, match=rf"line {len(MANY) + 4} \(its label in the column label is missing"):
        prepare(settings, 1)
    path.write_text("\n".join(["x,label", *MANY, f"{last},1"]))
    monkeypatch.setattr(input_table, "PART_BYTES", 1 << 12)
    assert check_source(settings) == f"csv:{path}"
    found = prepare(settings, 1)
    assert found.manifest.inputs["x"].kind == kind
    assert sum(split.examples for split in found.manifest.splits.values()) == len(MANY) + 1
    assert prepare(settings, 1).reused
