"""`slipway runs verify` on a real run, and its model with flipped bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipway.pipelines.cli.app import app
from tests.end_to_end.bit_flips import check_every_file_is_verified
from tests.end_to_end.workspace import FinishedRun, Workspace


@pytest.fixture
def workspace(finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    workspace = finished.copy(tmp_path / "here")
    monkeypatch.chdir(workspace.path)
    return workspace


def test_a_model_with_a_flipped_bit_is_refused_by_every_command(workspace: Workspace) -> None:
    pytest.importorskip("uvicorn")
    check_every_file_is_verified(workspace)


def test_the_artifacts_of_a_run_are_verified(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished.path, tmp_path / "here", symlinks=True)
    for record in (tmp_path / "here").glob("runs/*/run.json"):
        record.write_text(record.read_text().replace(str(finished.path), str(tmp_path / "here")))
    monkeypatch.chdir(tmp_path / "here")
    result = CliRunner().invoke(app, ["runs", "verify", "--json"])
    assert result.exit_code == 0, result.output
    kinds = [each["kind"] for each in json.loads(result.stdout)]
    assert sorted(set(kinds)) == ["checkpoint", "data set", "model"]
    assert kinds.count("model") == 2  # the run's and the registered one
    (checkpoint, *_) = sorted(Path("runs").glob("digits-*/train/checkpoints/step-*"))
    shard = next(Path("datasets/digits").glob("*/*.tfrecord*"))
    model = next(Path("runs").glob("digits-*/train/model"))
    for path in (checkpoint / "state.npz", shard, model / "saved_model.pb"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    for names in ((), ("latest",)):
        result = CliRunner().invoke(app, ["runs", "verify", *names])
        assert result.exit_code == 1
        assert "3 damaged" in result.stderr
        for path in (checkpoint, shard, model):
            assert f"{path.absolute()} is damaged" in result.stdout, result.stdout
    assert CliRunner().invoke(app, ["runs", "verify", "digits"]).exit_code == 0
    assert CliRunner().invoke(app, ["runs", "verify", str(shard.parent)]).exit_code == 1
