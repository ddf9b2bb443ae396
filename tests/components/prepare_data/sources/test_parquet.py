"""The source `parquet:FILE`: the data sets of CSV files with the same rows, and errors that name the row."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError
from slipway.core.tables import parquet_file

MakeSettings = Callable[..., DataSettings]


def write(path: Path, columns: dict[str, object]) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=300)


def shards(prepared: Prepared) -> list[bytes]:
    return [path.read_bytes() for path in sorted(prepared.folder.glob("*.tfrecord*"))]


@pytest.mark.usefixtures("processes")
def test_a_table_becomes_the_data_set_of_the_csv_file(
    tmp_path: Path, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parquet_file, "BATCH_ROWS", 100)
    rng = random.Random(0)
    rows = [
        f"{round(rng.gauss(0, 1), 4)},{rng.randrange(9)},{rng.choice(['Zürich', 'Bern', ''])},{rng.choice('ab')}"
        for _ in range(1000)
    ]
    Path("table.csv").write_text("\n".join(["x,n,city,label", *rows]), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.csv.read_csv("table.csv"), "table.parquet", row_group_size=300)
    from_csv = prepare(make_settings("csv:table.csv", features={"n": "category"}, store="one"), 2)
    from_parquet = prepare(make_settings("parquet:table.parquet", features={"n": "category"}, store="two"), 2)
    assert from_parquet.manifest.inputs == from_csv.manifest.inputs
    assert shards(from_parquet) == shards(from_csv) and shards(from_csv)


def test_typed_columns_of_a_table(tmp_path: Path, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    columns = {
        "vector": pyarrow.array([[n / 2, 1.0] for n in range(400)], pyarrow.list_(pyarrow.float32(), 2)),
        "single": pyarrow.array([0.1 * n for n in range(400)], pyarrow.float32()),
        "city": pyarrow.array(["a", None] * 200).dictionary_encode(),
        "price": pyarrow.array([float(n) for n in range(399)] + [None]),
    }
    write(Path("table.parquet"), columns)
    settings = make_settings("parquet:table.parquet", label="price", features={"vector": "number[2]"}, skip_corrupt=0.1)
    prepared = prepare(settings, 1, task="regression")
    kinds = {name: (one.kind, one.shape) for name, one in prepared.manifest.inputs.items()}
    assert kinds == {"vector": ("number", (2,)), "single": ("number", ()), "city": ("category", ())}
    assert sum(split.examples for split in prepared.manifest.splits.values()) == 399
    assert prepared.manifest.skipped_count == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"x": [1.0, 2.0], "label": ["a", None]},
            "1 of 2 rows cannot be used: row 2 (its label in the column label is missing).",
        ),
        ({"x": [1.0, 2.0], "label": ["a", "b|c"]}, "Row 2 of {} has several labels: 'b|c'."),
        ({"x": [1.0, 2.0], "labels": ["a", "b"]}, "{} has no column label or class."),
        ({"x": [b"1", b"2"], "label": ["a", "b"]}, "The column x of {} has bytes: binary."),
        ({"x": pyarrow.array([], "f4"), "label": pyarrow.array([], "string")}, "{} lists no rows."),
    ],
    ids=["label", "labels", "column", "bytes", "empty"],
)
def test_errors_name_the_row(
    tmp_path: Path, make_settings: MakeSettings, columns: dict[str, object], message: str
) -> None:
    path = tmp_path / "table.parquet"
    write(path, columns)
    with pytest.raises(UserError) as error:
        prepare(make_settings(f"parquet:{path}"), 1)
    assert error.value.message == message.format(path)


def test_each_format_names_the_other(tmp_path: Path, make_settings: MakeSettings) -> None:
    path = tmp_path / "table.parquet"
    write(path, {"x": [1.0], "label": ["a"]})
    with pytest.raises(UserError, match="is a Parquet file, not CSV") as error:
        prepare(make_settings(f"csv:{path}"), 1)
    assert error.value.fix == f"--set data.source=parquet:{path}"
    path.write_text("x,label\n1,a\n")
    with pytest.raises(UserError, match="is not a Parquet file, or damaged"):
        prepare(make_settings(f"parquet:{path}"), 1)
