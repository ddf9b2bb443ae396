"""Programs with their own data, metrics and model formats, in packages that are called like Slipway's folders."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.end_to_end.workspace import Workspace, steps

CONFIGURATION = """
name: fit
hardware: cpu*2
train:
  module: trainer.task
  arguments: ["--error", "0.5"]
evaluate:
  gate: {metric: rsme, direction: minimize, maximum: 0.6}
"""
PROGRAM = """
import json
import os
import sys
from pathlib import Path

from components import layers

task = json.loads(os.environ["CLUSTER_SPEC"])["task"]
print("data", os.environ.get("SLIPWAY_DATA"))
if task == {"type": "workerpool0", "index": 0}:
    folder = Path(os.environ["AIP_MODEL_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    error = float(sys.argv[-1])
    (folder / layers.FILE).write_text(str(error))
    (folder / "metrics.json").write_text(json.dumps({"rmse": error}))
    (folder / "metrics.jsonl").write_text(json.dumps({"kind": "validation", "step": 1, "rmse": error}))
"""
EVALUATION = """
def evaluate(model, data):
    error = float((model / "weights.txt").read_text())
    with open(f"{data}/offset.txt") as file:
        return {"rmse": error + float(file.read())}
"""


@pytest.fixture(scope="module")
def project(workspace: Workspace) -> Path:
    folder = workspace.path
    for package in ("trainer", "components", "pipelines"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    (folder / "trainer/task.py").write_text(PROGRAM)
    (folder / "components/layers.py").write_text('FILE = "weights.txt"\n')
    (folder / "pipelines/score.py").write_text(EVALUATION)
    (folder / "rows").mkdir()
    (folder / "rows/offset.txt").write_text("0.25")
    (folder / "fit.sh").write_text('#!/bin/sh\nexec python3 -m trainer.task "$@"\n')
    (folder / "fit.yaml").write_text(CONFIGURATION)
    return folder


class Champion(NamedTuple):
    """What the run that registered the first version has said, failed and resumed."""

    failed: subprocess.CompletedProcess[str]
    record: dict[str, Any]
    log: str
    report: str


@pytest.fixture(scope="module")
def champion(workspace: Workspace, project: Path) -> Champion:
    failed = workspace.slipway("run", "-c", "fit.yaml", SLIPWAY_DATA="of another run")
    resumed = workspace.slipway("run", "--resume", "latest", "--set", "evaluate.gate.metric=rmse")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    report = (project / "runs/latest/report.html").read_text()
    return Champion(failed, workspace.record(), workspace.log("train"), report)


def test_a_program_without_data_is_judged_by_the_metrics_that_it_wrote(champion: Champion, project: Path) -> None:
    failed = champion.failed
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "python -m trainer.task in every replica" in failed.stdout
    assert "There is no metric 'rsme'" in failed.stderr
    assert "closest:  rmse" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert list(steps(champion.record)) == ["plan_training", "train", "evaluate", "register_model"]
    assert champion.record["metrics"] == {"rmse": 0.5}
    assert (project / "models/fit/1/weights.txt").read_text() == "0.5"
    assert champion.log.count("] data None") == 2  # once for each replica: a resumed run keeps the training
    assert 'aria-label="rmse by step' in champion.report


def test_a_file_without_metrics_is_corrected_and_the_run_resumed(workspace: Workspace, project: Path) -> None:
    (project / "fixed.yaml").write_text(CONFIGURATION.replace("name: fit", "name: fixed").replace("rsme", "rmse"))
    (project / "trainer/task.py").write_text(PROGRAM.replace('json.dumps({"rmse": error}))', '\'{"rmse": "low"}\')'))
    failed = workspace.slipway("run", "-c", "fixed.yaml", "--hardware", "cpu")
    (project / "trainer/task.py").write_text(PROGRAM)
    assert failed.returncode == 1
    path = workspace.path / "runs" / workspace.record()["run_id"] / "train/model/metrics.json"
    assert f"{path} has no metric that is a finite number, but rmse." in failed.stderr
    assert f'fix:      write them to {path}, such as {{"rmse": 0.9}}, and slipway run --resume RUN' in failed.stderr
    path.write_text('{"rmse": 0.25}')
    result = workspace.slipway("run", "--resume", "latest")
    assert result.returncode == 0, result.stdout + result.stderr
    assert workspace.record()["metrics"] == {"rmse": 0.25}
    assert workspace.log("train").count("] data None") == 1, "it is not trained again"


@pytest.mark.long
def test_weights_that_a_power_cut_emptied_are_trained_again(workspace: Workspace, project: Path) -> None:
    (project / "cut.yaml").write_text(CONFIGURATION.replace("name: fit", "name: cut"))
    failed = workspace.slipway("run", "-c", "cut.yaml", "--hardware", "cpu")
    assert failed.returncode == 1, failed.stdout + failed.stderr
    (project / "runs/latest/train/model/weights.txt").write_bytes(b"")
    result = workspace.slipway("run", "--resume", "latest", "--set", "evaluate.gate.metric=rmse")
    assert result.returncode == 0, result.stdout + result.stderr
    assert workspace.log("train").count("] data None") == 2
    registered = project / "models/cut/1"
    assert (registered / "weights.txt").read_text() == "0.5"
    assert workspace.call("runs", "verify", "cut").stdout == "✓ model models/cut/1\n"
    (registered / "weights.txt").write_bytes(b"")
    for command in (("runs", "verify", "cut"), ("predict", "cut", "3", "--module", "any:function")):
        refused = workspace.call(*command)
        assert refused.returncode
        assert "is damaged: weights.txt has 0 bytes instead of 3" in refused.stdout + refused.stderr


@pytest.mark.usefixtures("champion")
def test_a_command_receives_the_uri_and_is_judged_by_the_users_function(workspace: Workspace, project: Path) -> None:
    values = "train={command: [./fit.sh], arguments: ['0.4']}", "data.uri=rows", "evaluate.gate.metric=rmse"
    options = [option for value in values for option in ("--set", value)]
    refused = workspace.call("run", "-c", "fit.yaml", *options)
    assert refused.returncode == 2
    assert "fix:      chmod +x ./fit.sh" in refused.stderr
    (project / "fit.sh").chmod(0o755)
    options += ["--hardware", "cpu", "--set", "evaluate.module=pipelines.score:evaluate"]
    result = workspace.slipway("run", "-c", "fit.yaml", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    record = workspace.record()
    assert "[workerpool0-0] data rows" in workspace.log("train")
    assert steps(record)["evaluate"]["outputs"]["champion_metrics"] == {"rmse": 0.75}
    assert record["metrics"] == {"rmse": 0.65}
    assert record["verdict"]["decision"] == "reject"  # better than the champion, but above the maximum
    assert json.loads((project / "models/fit/1/metadata.json").read_text())["metrics"] == {"rmse": 0.5}
