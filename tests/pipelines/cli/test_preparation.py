"""`slipway data get` saves a data set from TensorFlow Datasets as a folder of images."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.pipelines.cli.app import app


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
