"""Tables to predict on: CSV and Parquet files alone and in folders, in parts, and what is wrong with them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from slipway.core.tables import csv_file, parquet_file
from slipway.pipelines.prediction import inputs, parts
from slipway.pipelines.prediction.prediction import Answers
from slipway.pipelines.prediction.unknown import UnknownValues
from slipway.serving.model import Model
from tests.pipelines.prediction.test_batch import batch, errors, here, names, predictions
from tests.pipelines.prediction.test_predict import lines, project, run
from tests.serving.conftest import HOUSE, HOUSE_PRICE, classifier_folder, houses, houses_folder

pytestmark = pytest.mark.slow
__all__ = ["classifier_folder", "here", "houses", "houses_folder", "project"]

HEADER = "street,area,sides,rooms"


def write_houses(path: Path, rows: int, first: int = 0) -> None:
    """Write a CSV file of houses, whose prices differ by their areas."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{HEADER}\n" + "".join(f"Oak,{first + row},1 2,3\n" for row in range(rows)))


def as_parquet(path: Path, **options: int) -> None:
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(path), path.with_suffix(".parquet"), **options)


def prices(found: list[dict]) -> list[float]:
    return [each["prediction"]["prediction"] for each in found]


def test_a_parquet_file_has_the_predictions_of_the_csv_file(project: Path, houses_folder: Path, here: None) -> None:
    write_houses(Path("houses.csv"), 50)
    as_parquet(Path("houses.csv"), row_group_size=7)
    expected = lines(run(str(houses_folder), "houses.csv"))
    found = lines(run(str(houses_folder), "houses.parquet", "--batch-size", "8"))
    assert prices(found) == prices(expected) == pytest.approx([HOUSE_PRICE + 2 * (area - 55) for area in range(50)])
    assert [each["input"] for each in found] == [f"row {n}" for n in range(1, 51)]
    assert batch(str(houses_folder), "--input", "houses.parquet", "-o", "out", "--part-size", "11").exit_code == 0
    assert predictions() == found
    assert names() == ["errors.jsonl", *(f"part-0000{n}.jsonl" for n in range(5)), "summary.json"]


def test_typed_columns_of_a_parquet_file(project: Path, houses_folder: Path) -> None:
    table = pyarrow.table(
        {
            "street": pyarrow.array(["Oak", "Elm", None]).dictionary_encode(),
            "area": pyarrow.array([55.0, None, float("nan")], pyarrow.float32()),
            "sides": pyarrow.array([[1.0, 2.0]] * 3, pyarrow.list_(pyarrow.float64(), 2)),
            "rooms": pyarrow.array([3, 3, 3], pyarrow.int8()),
            "sold": pyarrow.array([b"x"] * 3, pyarrow.binary()),
        }
    )
    pyarrow.parquet.write_table(table, "houses.parquet")
    refused = run(str(houses_folder), "houses.parquet")
    assert refused.exit_code == 2 and "the column sold of houses.parquet has bytes" in refused.stderr
    pyarrow.parquet.write_table(table.drop_columns("sold"), "houses.parquet")
    first, second, third = lines(run(str(houses_folder), "houses.parquet"))
    assert first["prediction"]["prediction"] == pytest.approx(HOUSE_PRICE)
    assert second["error"] == "area: '' is not a number"
    assert third["error"] == "area: '' is not a number"


def test_unknown_categories_are_counted_and_limited(project: Path, houses_folder: Path, here: None) -> None:
    Path("new.csv").write_text(f"{HEADER}\nAsh,1,1 2,3\nOak,1,1 2,3\nFir,1,1 2,3\n")
    line = "street: 2 of 3 values are none of the training's: 'Ash' …"
    found = run(str(houses_folder), "new.csv")
    assert found.exit_code == 0 and line in found.stderr
    limited = run(str(houses_folder), "new.csv", "--max-unknown", "0.5")
    assert limited.exit_code == 2 and "fix:      --max-unknown 0.667, or correct the column" in limited.stderr
    assert run(str(houses_folder), "new.csv", "--max-unknown", "0.667").exit_code == 0
    several = batch(str(houses_folder), "--input", "new.csv", "-o", "out", "--part-size", "1")
    assert several.exit_code == 0 and line in several.stderr
    again = batch(str(houses_folder), "--input", "new.csv", "-o", "out", "--part-size", "1", "--max-unknown", "0")
    assert again.exit_code == 2 and line.removesuffix(" …") in again.stderr
    assert json.loads(Path("out/summary.json").read_bytes())["unknown"]["counts"] == {"street": 2}


def test_unknown_texts_are_counted_over_parts() -> None:
    whole, part = UnknownValues(), UnknownValues()
    part.add(Answers(["1", "2"], {}, {}, {"review": ["щ"], "city": ["Bern"]}, frozenset({"review"})))
    whole.merge(json.loads(json.dumps(part.as_dict())))
    whole.merge({"inputs": 1, "counts": {}, "first": {}})  # of an earlier version
    assert whole.lines() == [
        "review: 1 of 3 values are empty, or mostly of words that the training data does not have: 'щ' …",
        "city: 1 of 3 values are none of the training's: 'Bern' …",
    ]


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_a_folder_of_tables(project: Path, houses_folder: Path, here: None, ending: str) -> None:
    for first, name in enumerate(("b", "a", "inner/c")):
        path = Path("data", f"{name}.csv")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_houses(path, 3, first * 10)
        if ending != "csv":
            as_parquet(path)
            path.unlink()
        if ending == "jsonl":
            path.with_suffix(".parquet").unlink()
            rows = [json.dumps({**HOUSE, "area": first * 10 + row}) for row in range(3)]
            path.with_suffix(".jsonl").write_text("\n".join(rows))
    Path("data/notes.txt").write_text("not read")
    Path("data/.hidden.csv").write_text("not read")
    result = batch(str(houses_folder), "--input", "data", "-o", "out", "--part-size", "2", "--json")
    assert result.exit_code == 0, result.stderr
    found = predictions()
    numbers = {"csv": ("line", 2), "parquet": ("row", 1), "jsonl": ("line", 1)}[ending]
    assert [each["input"] for each in found] == [
        f"data/{name}.{ending} {numbers[0]} {numbers[1] + row}" for name in ("a", "b", "inner/c") for row in range(3)
    ]
    areas = [10, 11, 12, 0, 1, 2, 20, 21, 22]
    assert prices(found) == pytest.approx([HOUSE_PRICE + 2 * (area - 55) for area in areas])
    assert json.loads(result.stdout)["parts"] == 6
    assert lines(run(str(houses_folder), "data")) == found


def test_folders_of_several_formats_and_without_inputs_are_refused(project: Path, houses_folder: Path) -> None:
    write_houses(Path("data/it's.csv"), 3)
    Path("data/0.png").write_bytes(b"")
    Path("data/1.PNG").write_bytes(b"")
    for command in (run(str(houses_folder), "data"), batch(str(houses_folder), "--input", "data", "-o", "out")):
        text = " ".join(command.stderr.split())
        assert command.exit_code == 2
        assert "data has files of several formats: 2 images, such as data/0.png; 1 CSV files" in text
        assert "fix: name the files of one format, such as 'data/it'\"'\"'s.csv'" in text
    Path("data/0.png").unlink()
    Path("data/1.PNG").unlink()
    Path("data/it's.csv").unlink()
    Path("data/notes.txt").write_text("x")
    refused = batch(str(houses_folder), "--input", "data", "-o", "out")
    text = " ".join(refused.stderr.split())
    assert refused.exit_code == 2 and "the input data has no files to predict on (" in text
    assert ".csv, .parquet, .jsonl" in text
    os.mkfifo("data/waits.csv")
    refused = batch(str(houses_folder), "--input", "data", "-o", "out")
    assert refused.exit_code == 2 and "data/waits.csv is not a file" in refused.stderr
    assert not Path("out").exists()


def test_wrong_columns_and_values_have_their_file_and_line(project: Path, houses_folder: Path, here: None) -> None:
    Path("data").mkdir()
    Path("data/a.csv").write_text(f"{HEADER}\nOak,55,1 2,3\nOak,big,1 2,3\nOak,55,1 2\n")
    result = batch(str(houses_folder), "--input", "data", "-o", "out")
    assert result.exit_code == 0
    assert "the first: data/a.csv line 3: area: 'big' is not a number" in result.stderr
    assert errors() == [
        {"input": "data/a.csv line 3", "error": "area: 'big' is not a number"},
        {"input": "data/a.csv line 4", "error": "The line has 3 columns; line 1 has 4"},
    ]
    single = batch(str(houses_folder), "--input", "data/a.csv", "-o", "single")
    assert "the first: data/a.csv line 3: area: 'big'" in single.stderr
    assert errors("single")[0]["input"] == "line 3"
    assert "the first: data/a.csv line 3: area: 'big'" in run(str(houses_folder), "data/a.csv").stderr
    Path("data/a.csv").write_text("street,aera,sides,rooms\nOak,55,1 2,3\n")
    wrong = batch(str(houses_folder), "--input", "data", "-o", "other")
    assert wrong.exit_code == 2
    assert "line 1 of data/a.csv has no column area, an input of the model" in wrong.stderr
    assert "fix:      rename the column aera to area" in wrong.stderr
    as_parquet(Path("data/a.csv"))
    wrong = run(str(houses_folder), "data/a.parquet")
    assert wrong.exit_code == 2 and "data/a.parquet has no column area" in wrong.stderr
    Path("data/a.parquet").write_bytes(b"PAR1")
    damaged = batch(str(houses_folder), "--input", "data/a.parquet", "-o", "third")
    assert damaged.exit_code == 2 and "data/a.parquet is not a Parquet file, or damaged" in damaged.stderr


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_parts_and_batches_of_a_table_are_its_rows(
    project: Path, houses: Model, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_file, "BATCH_BYTES", 100)
    monkeypatch.setattr(csv_file, "FEWEST_ROWS", 1)
    monkeypatch.setattr(parquet_file, "BATCH_ROWS", 6)
    rows = [f"Oak,{'x' if row % 7 == 3 else row},1 2,3" for row in range(40)]
    Path("houses.csv").write_text("\n".join([HEADER, *rows]))
    as_parquet(Path("houses.csv"))
    (whole,) = inputs.listed([f"houses.{ending}"], "test")

    def read(part: parts.Part) -> list[tuple[str, object]]:
        found = []
        for chunk in part.read(houses, 4):
            areas = iter(chunk.arrays["area"].tolist())
            found += [
                (key, chunk.faults[index].reason if index in chunk.faults else next(areas))
                for index, key in enumerate(chunk.keys)
            ]
            assert next(areas, None) is None
        return found

    number = 2 if ending == "csv" else 1
    item = "line" if ending == "csv" else "row"
    expected = [
        (f"{item} {row + number}", "area: 'x' is not a number" if row % 7 == 3 else float(row)) for row in range(40)
    ]
    assert read(whole) == expected
    divided = list(whole.divided(11))
    assert [part.examples for part in divided] == [11, 11, 11, 7]
    assert [row for part in divided for row in read(part)] == expected
    assert [len(chunk.keys) for chunk in whole.read(houses, 4)] == [4] * 10


def test_a_custom_model_receives_the_texts_of_each_row(project: Path, here: None) -> None:
    Path("own.py").write_text("def load(folder):\n    return lambda rows: rows\n")
    Path("format").mkdir()
    Path("format/model.json").write_text("{}")
    Path("rows.csv").write_text("id,n,text\na, 1 ,x\nb,2,y\nc,3\n")
    given = ("format", "--module", "own:load", "--input", "rows.csv", "--key", "id", "-o", "out")
    assert batch(*given).exit_code == 0
    assert predictions() == [
        {"input": "a", "prediction": {"n": "1", "text": "x"}},
        {"input": "b", "prediction": {"n": "2", "text": "y"}},
    ]
    assert errors() == [{"input": "line 4", "error": "The line has 2 columns; line 1 has 3"}]


def test_a_table_of_images_in_parquet(project: Path, here: None) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"image": ["inner/0.png", "missing.png"]}), "images/list.parquet")
    found = lines(run("digits", "images/list.parquet"))
    assert [each["input"] for each in found] == ["inner/0.png", "missing.png"]
    assert found[0]["prediction"]["label"]
    assert found[1]["error"] == "The file cannot be read: No such file or directory"


@pytest.mark.parametrize("name", ["long.csv", "long.jsonl"])
def test_a_line_that_is_too_long_is_one_sentence(
    project: Path, houses_folder: Path, here: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("slipway.core.tables.lines.MAX_LINE", 1 << 20)
    Path(name).write_text(f"{HEADER}\n{'1' * (1 << 21)}\n" if name.endswith("csv") else "[" * (1 << 21))
    result = run(str(houses_folder), name)
    assert (result.exit_code, f"error: {name} has a line or row of more than 1 MB." in result.output) == (2, True)
    assert f"fix:      check its line breaks and quotes: head -c 1000 {name}\n" in result.output
