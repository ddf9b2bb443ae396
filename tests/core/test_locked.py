"""A test split that is locked: the evaluation reads it, and nothing else does."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core import locked, manifest
from slipway.core.errors import UserError
from slipway.pipelines.cli.app import app
from slipway.pipelines.runs import verification


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    rows = "".join(f"{number}.5,{'ab'[number % 2]}\n" for number in range(60))
    (tmp_path / "t.csv").write_text(f"x,label\n{rows}")
    return prepare(DataSettings(source=f"csv:{tmp_path / 't.csv'}", store=str(tmp_path / "store"), workers=1), 1)


def test_a_locked_split_is_elsewhere_and_is_still_the_data_sets(prepared: Prepared, tmp_path: Path):
    files = {path.name: path.read_bytes() for path in prepared.folder.iterdir()}
    result = CliRunner().invoke(app, ["data", "lock", str(prepared.folder), "--to", str(tmp_path / "evaluation")])
    assert result.exit_code == 0, result.output
    [shard] = prepared.manifest.splits["test"].shards
    place = locked.folder_of(prepared.folder, "test")
    assert not (prepared.folder / shard.file).exists()
    assert place == tmp_path / "evaluation" / prepared.folder.parent.name / prepared.folder.name
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert locked.folder_of(prepared.folder, "train") == prepared.folder
    assert verification._data_set(prepared.folder).damages == []
    settings = DataSettings(source=f"csv:{tmp_path / 't.csv'}", store=str(tmp_path / "store"), workers=1)
    assert prepare(settings, 1).reused
    with pytest.raises(UserError, match="is locked: only the step evaluate reads it") as caught:
        manifest.verify(prepared.folder, [shard])
    command, *arguments = caught.value.fix.split(" ")
    assert command == "slipway"
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert {path.name: path.read_bytes() for path in prepared.folder.iterdir()} == files
    assert not place.exists()
    assert "is not locked" in CliRunner().invoke(app, arguments).output


@pytest.mark.parametrize("killed_in", ["copyfile", "replace_file", "unlink"])
def test_a_killed_lock_leaves_a_whole_split_and_is_repeated(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_in: str
):
    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    where = {"copyfile": (shutil, "copyfile"), "replace_file": (locked, "replace_file"), "unlink": (Path, "unlink")}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(*where[killed_in], killed)
        locked.lock(prepared.folder, str(tmp_path / "evaluation"))
    place = locked.folder_of(prepared.folder, "test")
    manifest.verify(place, prepared.manifest.splits["test"].shards)
    locked.lock(prepared.folder, str(tmp_path / "evaluation"))
    place = locked.folder_of(prepared.folder, "test")
    manifest.verify(place, prepared.manifest.splits["test"].shards)
    assert not list(prepared.folder.glob("*test.tfrecord*"))


def test_mistakes(prepared: Prepared, tmp_path: Path):
    locked.lock(prepared.folder, str(tmp_path / "evaluation"))
    with pytest.raises(UserError, match="is locked in"):
        locked.lock(prepared.folder, str(tmp_path / "elsewhere"))
    (prepared.folder / manifest.LOCK_FILE).write_text("{")
    with pytest.raises(UserError, match="does not say where the test split is"):
        locked.folder_of(prepared.folder, "test")
    place = tmp_path / "evaluation" / prepared.folder.parent.name / prepared.folder.name
    (prepared.folder / manifest.LOCK_FILE).write_text(json.dumps({"test": os.fspath(place)}))
    [shard] = prepared.manifest.splits["test"].shards
    (place / shard.file).write_bytes(b"changed")
    with pytest.raises(UserError, match="is damaged"):
        locked.unlock(prepared.folder)
    assert (place / shard.file).exists()
