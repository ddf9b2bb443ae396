"""What `slipway init --table` and `slipway data check` say of tables as people have them, and that the fix works."""

from __future__ import annotations

import random
import re
import shlex
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import load

ROWS = 100


def table(name: str, label: list[str]) -> None:
    rng = random.Random(0)
    Path(name).write_text("\n".join(["x,label", *(f"{rng.random()},{text}" for text in label)]) + "\n")


def said(*arguments: str, code: int) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.output


def fix_of(output: str) -> list[str]:
    (line,) = [line for line in output.splitlines() if line.strip().startswith("fix:")]
    return shlex.split(line.partition("fix:")[2].partition("; or")[0])


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_rows_without_a_label_are_skipped_by_init() -> None:
    """Two of 100 rows have none: init writes the fraction, and a check without it names it."""
    table("t.csv", ["" if number % 50 == 7 else "ab"[number % 2] for number in range(ROWS)])
    said("init", "project", "--table", "t.csv", "--label", "label", code=0)
    data = load(Path("project/slipway.yaml")).data
    assert data is not None and data.skip_corrupt == pytest.approx(0.02)
    Path("plain.yaml").write_text("data: {source: 'csv:t.csv', label: label}\n")
    refused = said("data", "check", "plain.yaml", code=2)
    assert "2 of 100 rows cannot be used: line 59 (its label in the column label is missing); line 9" in refused
    assert "skipped     2" in said("data", "check", "plain.yaml", *fix_of(refused), code=0)


def test_a_label_of_one_class_is_refused_by_init() -> None:
    table("t.csv", ["a"] * ROWS)
    refused = said("init", "project", "--table", "t.csv", "--label", "label", code=2)
    assert "has one value, 'a': there is nothing to predict" in refused
    assert fix_of(refused) == ["--label", "x"]
    said("init", "project", "--table", "t.csv", *fix_of(refused), code=0)


def test_fractions_as_a_list_have_names_in_the_fix() -> None:
    table("t.csv", ["ab"[number % 2] for number in range(ROWS)])
    Path("plain.yaml").write_text("data: {source: 'csv:t.csv', label: label}\n")
    refused = said("data", "check", "plain.yaml", "--set", "data.split=[0.6,0.2,0.2]", code=2)
    assert "splits      train 60, validation 20, test 20" in said(
        "data", "check", "plain.yaml", *fix_of(refused), code=0
    )


def test_a_formatted_target_is_read_by_the_fixes() -> None:
    table("t.csv", [f'"${number * 1_037:,}"' for number in range(1, ROWS + 1)])
    Path("plain.yaml").write_text("data: {source: 'csv:t.csv', label: label}\n")
    task = ["--set", "task=regression"]
    refused = said("data", "check", "plain.yaml", code=2)
    assert "1 row; train" in refused and fix_of(refused.replace(", if", " if"))[:2] == task
    refused = said("data", "check", "plain.yaml", *task, code=2)
    assert re.search(r"line 2 of .*t\.csv has '\$1,037' in the column label, which is not a plain number", refused)
    assert "target      mean 52," in said("data", "check", "plain.yaml", *task, *fix_of(refused), code=0)
    said("init", "project", "--table", "t.csv", "--label", "label", code=0)
    assert load(Path("project/slipway.yaml")).task == "regression"


@pytest.mark.parametrize("column", ["path", "scan"])
def test_a_column_of_images_is_no_input_of_a_table(column: str) -> None:
    Path("photos").mkdir()
    for number in range(ROWS):
        Image.new("L", (4, 4), number).save(f"photos/{number}.png")
    rows = [f"photos/{number}.png,{number % 7},{'ab'[number % 2]}" for number in range(ROWS)]
    Path("t.csv").write_text("\n".join([f"{column},x,label", *rows]))
    shown = said("init", "project", "--table", "t.csv", "--label", "label", code=0)
    assert re.search(rf"columns     x +number .*\n +{column} +no input  photos/0.png", shown)
    data = load(Path("project/slipway.yaml")).data
    assert data is not None and data.inputs == ["x"]
    assert "columns     x  number" in said("data", "check", "project/slipway.yaml", code=0)
    Path("t.csv").write_text("\n".join([f"{column},label", *(re.sub(",.,", ",", row) for row in rows)]))
    refused = said("init", "other", "--table", "t.csv", "--label", "label", code=2)
    assert f"t.csv has no column to learn from: {column} has paths of images." in refused


def test_a_column_called_label_that_is_no_label_is_an_input_by_that_name() -> None:
    rng = random.Random(0)
    rows = [f"{rng.random()},{'ab'[number % 2]},{number / 7}" for number in range(ROWS)]
    Path("t.csv").write_text("\n".join(["x,label,price", *rows]))
    shown = said("init", "project", "--table", "t.csv", "--label", "price", code=0)
    assert "label  category  a, b" in shown and "source_label" not in shown
    data = load(Path("project/slipway.yaml")).data
    assert data is not None and data.inputs == ["x", "label"]
    assert "label  category  a, b" in said("data", "check", "project/slipway.yaml", code=0)
