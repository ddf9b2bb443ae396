"""`slipway data get` saves a data set from TensorFlow Datasets as a folder of images."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.pipelines.cli.app import app
from tests import photographs


@pytest.mark.slow
def test_a_data_set_is_saved_as_a_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(DataSettings(source="digits", store=str(tmp_path / "store")), 1)
    shutil.copytree(prepared.folder, tmp_path / "sets/digits/1.0.0")  # what Slipway writes, TFDS reads
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
    monkeypatch.chdir(tmp_path)
    first = CliRunner().invoke(app, ["data", "get", "digits"])
    assert (first.exit_code, first.output.splitlines()[-1]) == (
        0,
        "1,797 images in digits: --set data.source=images:digits",
    )
    assert len(list((tmp_path / "digits").glob("*/*/*.png"))) == 1797
    again = prepare(DataSettings(source="images:digits", store=str(tmp_path / "store"), name="again"), 1)
    assert {name: split.classes for name, split in again.manifest.splits.items()} == {
        name: split.classes for name, split in prepared.manifest.splits.items()
    }
    second = CliRunner().invoke(app, ["data", "get", "digits"])
    assert second.exit_code == 2
    assert "digits exists already" in second.output


def test_a_check_of_data_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photographs.write(tmp_path / "photos", 20, (40, 60), 0)
    (tmp_path / "a.csv").write_text("label,x\n" + "".join(f"{'ab'[i % 2]},{i}\n" for i in range(40)))
    start = "name: a\nmodel: {builder: 'slipway.trainer.models.digits:build'}\ntrain: {epochs: 1, batch_size: 8}\n"
    (tmp_path / "slipway.yaml").write_text(f"{start}data: {{source: csv:a.csv}}\n")
    table = json.loads(CliRunner().invoke(app, ["data", "check", "--json"]).stdout)
    assert (table["source"], table["examples"], table["labels"]) == ("csv:a.csv", 40, {"a": 20, "b": 20})
    assert (table["inputs"], table["skipped"]) == ({"x": "number"}, 0)
    result = CliRunner().invoke(app, ["data", "check", "--json", "--set", "data.source=images:photos"])
    images = json.loads(result.stdout)
    assert (images["source"], images["examples"], images["unusable"]) == ("images:photos", 20, 0)
    assert sum(images["labels"].values()) == 20


def test_a_check_of_the_split_says_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    numbers = random.Random(0)
    owners = [(owner, numbers.random(), "ab"[numbers.random() < 0.5]) for owner in range(60)] * 6
    rows = (f"{owner},{center + numbers.gauss(0, 0.01):.4f},{label}\n" for owner, center, label in owners)
    (tmp_path / "a.csv").write_text("owner_id,x,label\n" + "".join(rows))
    start = "name: a\nmodel: {builder: 'slipway.trainer.models.digits:build'}\ntrain: {epochs: 1, batch_size: 8}\n"
    (tmp_path / "slipway.yaml").write_text(f"{start}data: {{source: csv:a.csv}}\n")
    text = CliRunner().invoke(app, ["data", "check", "--split"]).stdout
    assert "if examples of the same owner_id are in several splits" in text
    [found] = json.loads(CliRunner().invoke(app, ["data", "check", "--split", "--json"]).stdout)["split"]
    assert (found["kind"], found["name"], found["flatters"]) == ("group", "owner_id", True)
    assert found["interval"][0] < found["flattering"] - found["honest"] < found["interval"][1]
    fixed = ["data", "check", "--split", *found["fix"].split(" ")]
    assert "Neither names nor likeness suggest that it flatters." in CliRunner().invoke(app, fixed).stdout
