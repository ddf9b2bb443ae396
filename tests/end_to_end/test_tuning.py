"""`slipway tune` with a program without TensorFlow: trials survive kills, and the best one is registered."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import psutil
import pytest

from slipway.components.evaluate import ledger
from tests.end_to_end.workspace import Workspace, processes_of
from tests.fakes.mlflow import FakeMlflow

pytestmark = pytest.mark.timeout(300)
LAUNCH, FORK_SERVER = (f"slipway.pipelines.platforms.local.{name}" for name in ("launch", "forkserver"))
# Counts its starts in the folder of its checkpoints; a trial waits until the file `go` exists.
PROGRAM = """
import json
import os
import sys
import time
from pathlib import Path

rate = float(next(text for text in sys.argv if text.startswith("--rate=")).partition("=")[2])
logs, model, checkpoints = (
    Path(os.environ[name]) for name in ("AIP_TENSORBOARD_LOG_DIR", "AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR")
)
for folder in (logs, model, checkpoints):
    folder.mkdir(parents=True, exist_ok=True)
with (checkpoints / "starts").open("a") as starts:
    starts.write("x")
while not Path("go").exists():
    time.sleep(0.05)
if rate > 0.9:
    raise ValueError("diverged")
score = 1 - abs(rate - 0.3)
for folder in (logs, model):
    (folder / "metrics.jsonl").write_text(json.dumps({"kind": "validation", "step": 1, "score": score}))
(model / "metrics.json").write_text(json.dumps({"score": score}))
"""
CONFIGURATION = """
name: tuned
data: {uri: .}
train: {module: program, restarts: {at_most: 0}}
evaluate: {gate: {metric: score, direction: maximize, minimum: 0.1}}
tune:
  metric: score
  direction: maximize
  trials: 3
  parameters:
    --rate: {low: 0.0, high: 0.8}
"""
NETWORK = """
name: digits
data: {source: digits}
model: {builder: "slipway.trainer.models.digits:build"}
train: {epochs: 4, batch_size: 64}
tune:
  trials: 2
  parameters:
    train.learning_rate: {low: 0.001, high: 0.01, scale: log}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    space = Workspace(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "slipway.yaml").write_text(CONFIGURATION)
    return space


@pytest.fixture
def mlflow() -> Iterator[FakeMlflow]:
    with FakeMlflow() as server:
        yield server


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def starts(workspace: Workspace) -> list[int]:
    """Return how often the program of each run was started."""
    files = (folder / "train" / "checkpoints" / "starts" for folder in workspace.runs())
    return sorted(file.stat().st_size for file in files if file.is_file())


def trials(workspace: Workspace) -> list[optuna.trial.FrozenTrial]:
    (database,) = workspace.path.glob("tuning/*.db")
    storage = f"sqlite:///{database}"
    return optuna.load_study(study_name=None, storage=storage).trials


def test_a_killed_trial_continues_and_the_best_one_is_registered(workspace: Workspace, mlflow: FakeMlflow) -> None:
    track = ("--set", f"track.mlflow={mlflow.url}")
    command = workspace.start("tune", *track)
    until(lambda: starts(workspace) == [1])
    command.kill()
    command.communicate()
    for process in processes_of(workspace.path):  # the run of the trial outlives the command
        with contextlib.suppress(psutil.NoSuchProcess):  # those of a killed one end by themselves
            for each in [process, *process.children(recursive=True)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
    (workspace.path / "go").touch()
    result = workspace.slipway("tune", *track)
    assert result.returncode == 0, result.stdout + result.stderr
    found = trials(workspace)
    assert [trial.state.name for trial in found] == ["COMPLETE"] * 3
    assert starts(workspace) == [1, 1, 2]
    best = max(found, key=lambda trial: trial.value or 0)
    assert best.value == pytest.approx(1 - abs(best.params["--rate"] - 0.3))
    record = workspace.record()
    assert record["part"]["source"] == best.user_attrs["run"]
    assert record["metrics"]["score"] == best.value
    metadata = json.loads((Path(record["model"]) / "metadata.json").read_text())
    assert metadata["run_id"] == record["run_id"]
    assert f"best trial {best.number}: validation score {best.value:.4f}" in result.stdout
    [search] = [run for run in mlflow.runs.values() if "mlflow.parentRunId" not in run.tags]
    children = [run for run in mlflow.runs.values() if run.tags.get("mlflow.parentRunId") == search.info["run_id"]]
    assert {run.tags["slipway.run"] for run in children} == {folder.name for folder in workspace.runs()}
    assert {run.info["status"] for run in (search, *children)} == {"FINISHED"}
    assert search.series("test/score") == [(0, best.value)]


def test_trials_are_forks_that_outlive_a_killed_command(tmp_path: Path) -> None:
    """Their process is no child of the command; the same command takes them over, and none is trained twice."""
    workspace = Workspace(tmp_path)
    (tmp_path / "slipway.yaml").write_text(NETWORK)
    command = workspace.start("tune")
    until(lambda: processes_of(tmp_path, LAUNCH))
    (server,) = [each for each in processes_of(tmp_path, FORK_SERVER) if each.ppid() == command.pid]
    (fork,) = server.children()
    assert fork.cmdline()[2] == LAUNCH
    until(fork.children)  # it waits for the command no more
    command.kill()
    command.communicate()
    server.wait(10)
    assert fork.is_running()
    result = workspace.slipway("tune")
    assert result.returncode == 0, result.stdout + result.stderr
    assert [trial.state.name for trial in trials(workspace)] == ["COMPLETE"] * 2
    assert len(workspace.runs()) == 1 + 2 + 1, "the data's, the trials' and the best one's"
    record = workspace.record()
    assert record["model"].endswith("models/digits/1")
    lines = [*(tmp_path / "datasets" / ledger.FOLDER).glob("*/*.json")]
    assert len(lines) == 1, "no trial was evaluated on the test split"


def test_a_search_that_failed_continues_after_a_fix(workspace: Workspace) -> None:
    (workspace.path / "go").touch()
    ranges = ("--set", "tune.parameters={--rate: {low: 0.95, high: 1.0}}", "--set", "tune.failures=0")
    result = workspace.slipway("tune", *ranges)
    assert result.returncode == 2
    assert "1 trials failed, and at most 0 may" in result.stderr
    assert "diverged" in result.stdout + result.stderr
    assert [trial.state.name for trial in trials(workspace)] == ["FAIL"]
    assert re.search(r"fix: +slipway explain \S+; then the same command", result.stderr)
    program = (workspace.path / "program.py").read_text()
    (workspace.path / "program.py").write_text(program.replace("raise ValueError", "print"))
    result = workspace.slipway("tune", *ranges)
    assert result.returncode == 0, result.stdout + result.stderr
    failed, again, *_ = trials(workspace)
    assert [failed.state.name, again.state.name] == ["FAIL", "COMPLETE"]
    assert failed.params == again.params
