"""A custom training module in the whole pipeline."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.end_to_end.workspace import Workspace, steps

CONFIGURATION = """
name: own
hardware: cpu*2
data:
  source: digits
train:
  module: own_training
  arguments: ["--epochs", "12"]
evaluate:
  gate:
    metric: accuracy
    minimum: 0.9
"""


@pytest.fixture(scope="module", autouse=True)
def _project(workspace: Workspace) -> None:
    shutil.copy(Path(__file__).with_name("own_training.py"), workspace.path)
    (workspace.path / "own.yaml").write_text(CONFIGURATION)


def test_a_custom_module_is_run_evaluated_and_registered(workspace: Workspace):
    result = workspace.slipway("run", "-c", "own.yaml")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "python -m own_training in every replica" in result.stdout
    record = workspace.record()
    assert record["metrics"]["accuracy"] >= 0.9
    assert record["verdict"]["decision"] == "promote"
    assert (workspace.path / "models" / "own" / "1" / "saved_model.pb").is_file()
    assert "Epoch 12/12" in workspace.log("train")
    assert "[workerpool1-0] nothing to do in workerpool1" in workspace.log("train")
    assert steps(record)["train"]["status"] == "succeeded"


def test_the_failure_of_a_custom_module_shows_its_traceback(workspace: Workspace):
    result = workspace.slipway("run", "-c", "own.yaml", "--set", "train.arguments=[--fail]")
    assert result.returncode == 1
    assert "RuntimeError: told to fail" in result.stderr
    assert "own_training.py" in result.stderr


def test_settings_that_a_custom_module_cannot_have_are_refused(workspace: Workspace):
    before = workspace.runs()
    for option, told in (
        ("train.module=own_trainig", "closest:  own_training"),
        ("train.epochs=3", "own_training receives train.arguments"),
        ("model.builder=slipway.trainer.models.digits:build", "model or train.module, not both"),
    ):
        result = workspace.call("run", "-c", "own.yaml", "--set", option)
        assert result.returncode == 2, result.stdout + result.stderr
        assert told in result.stderr
    assert workspace.runs() == before


def test_a_rehearsal_runs_the_replicas_of_a_program_and_registers_nothing(workspace: Workspace):
    models = workspace.path / "models"
    before = [*models.glob("*/*")]
    result = workspace.slipway("rehearse", "-c", "own.yaml", "--set", "train.arguments=[--without-training]")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 replicas ran own_training to its end" in result.stdout
    assert steps(workspace.record())["evaluate"]["status"] == "skipped"
    assert [*models.glob("*/*")] == before
