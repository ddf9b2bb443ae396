"""Single steps of a finished run, run again on what it has: the same model at another gate, under another name."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slipway.core.yaml_loader import load_yaml
from tests.end_to_end.workspace import FinishedRun, Workspace, steps


class Rejected(NamedTuple):
    """The evaluation of the finished run, with a gate that no model passes: the first run of its workspace."""

    workspace: Workspace
    result: subprocess.CompletedProcess[str]
    record: dict[str, Any]


@pytest.fixture(scope="module")
def rejected(finished: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Rejected:
    workspace = _with_run(finished, tmp_path_factory.mktemp("a workspace"))
    gate = "evaluate.gate={metric: loss, maximum: 1.0e-9}"
    result = workspace.slipway("run", "--only", "evaluate", "--set", gate)
    assert result.returncode == 0, result.stdout + result.stderr
    return Rejected(workspace, result, workspace.record())


@pytest.fixture(scope="module")
def workspace(rejected: Rejected) -> Workspace:
    return rejected.workspace


def _with_run(finished: FinishedRun, path: Path) -> Workspace:
    """Return a workspace with a copy of the finished run, whose record names the files of the original."""
    workspace = finished.copy(path)
    shutil.copytree(finished.path / "runs", path / "runs", symlinks=True)
    return workspace


def test_only_the_evaluation_is_executed(finished: FinishedRun, rejected: Rejected) -> None:
    record, before = rejected.record, finished.record
    assert [line.split()[1] for line in rejected.result.stdout.splitlines() if line.startswith("✓")] == ["evaluate"]
    assert record["part"] == {"source": before["run_id"], "first": "evaluate", "last": "evaluate"}
    assert {step["name"]: step["status"] for step in record["steps"]} == {
        **dict.fromkeys(("prepare_data", "plan_training", "train", "evaluate"), "succeeded"),
        "register_model": "skipped",
    }
    assert [step["name"] for step in record["steps"] if step["reused"]] == ["prepare_data", "plan_training", "train"]
    assert record["verdict"]["decision"] == "reject"
    assert record["metrics"]["loss"] == before["metrics"]["loss"]
    assert steps(record)["train"]["outputs"] == steps(before)["train"]["outputs"]
    folder = rejected.workspace.path / "runs" / record["run_id"]
    assert not (folder / "train").exists()
    assert record["report"] == str(folder / "report.html")


def test_the_steps_after_the_training_follow_one_another_on_the_model_of_a_run_of_a_run(
    workspace: Workspace, rejected: Rejected
) -> None:
    options = ("--set", "register.model=twin", "--set", "evaluate.gate={metric: accuracy, minimum: 0.9}")
    result = workspace.slipway("run", "--from-step", "evaluate", "--from", rejected.record["run_id"], *options)
    assert result.returncode == 0, result.stdout + result.stderr
    record = workspace.record()
    version = workspace.path / "models" / "twin" / "1"
    assert record["model"] == str(version)
    assert json.loads((version / "metadata.json").read_text())["run_id"] == record["run_id"]
    trained = Path(steps(record)["train"]["outputs"]["model"])
    assert (version / "model.json").read_bytes() == (trained / "model.json").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "evalute"), "fix:      slipway run --only evaluate --from"),
        (("--only", "plan_training"), "allowed:  prepare_data, train, evaluate, register_model"),
        (("--only", "evaluate", "--set", "train.epochs=3"), "fix:      slipway run --from-step train --from"),
        (("--only", "evaluate", "--hardware", "cpu*2"), "hardware does not change the steps that are executed: eval"),
        (("--only", "evaluate", "--set", "name=other"), "allowed:  evaluate.*, serve.*"),
        (("--only", "evaluate", "--target", "vertex"), "fix:      remove --target vertex"),
        (("--only", "evaluate", "-c", "configs/digits.yaml"), "fix:      remove configs/digits.yaml"),
        (("--only", "evaluate", "--from-step", "train"), "cannot be used together"),
        (("--only", "evaluate", "--resume", "latest"), "--from in place of --resume"),
        (("--repeat", "3", "--target", "vertex"), "fix:      remove --target vertex"),
        (("--repeat", "3", "--resume", "latest"), "fix:      remove --resume latest"),
        (("--folds", "3", "--repeat", "2"), "fix:      remove --repeat 2"),
        (("--folds", "3", "--require-promotion"), "fix:      remove --require-promotion"),
        (("--repeat", "3", "--only", "train"), "fix:      remove --only train"),
        (("--from", "latest"), "slipway run --from latest --only evaluate"),
    ],
)
def test_what_cannot_be_run_again(workspace: Workspace, arguments: tuple[str, ...], said: str) -> None:
    before = workspace.runs()
    result = workspace.call("run", *arguments)
    assert result.returncode == 2
    assert said in result.stderr
    assert workspace.runs() == before


def test_a_rejected_model_is_not_registered_alone(workspace: Workspace, rejected: Rejected) -> None:
    run_id = re.search(r"runs/([\w-]+)/report", rejected.result.stdout)[1]
    result = workspace.call("run", "--only", "register_model", "--from", run_id)
    assert (result.returncode, "--from-step evaluate" in result.stderr) == (2, True)


def test_a_run_is_reproduced_bit_for_bit(finished: FinishedRun, workspace: Workspace) -> None:
    result = workspace.slipway("runs", "reproduce", finished.record["run_id"], "--verify", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(result.stdout)
    assert found["original"] == finished.record["run_id"]
    assert found["equal"] is True
    assert [(each["name"], each["equal"]) for each in found["compared"]] == [
        ("data", True), ("history", True), ("checkpoints", True), ("weights", True)
    ]  # fmt: skip
    record = workspace.record(found["again"])
    assert {step["name"] for step in record["steps"] if step["status"] == "skipped"} == {"evaluate", "register_model"}


@pytest.mark.long
def test_a_repeated_run_trains_with_other_seeds_and_registers_only_the_first(
    finished: FinishedRun, tmp_path: Path
) -> None:
    workspace = finished.copy(tmp_path)
    few = ("--set", "train.epochs=3", "--set", "evaluate.gate.minimum=0.5", "--set", "register.model=repeated")
    result = workspace.slipway("run", "--repeat", "2", "--json", *few)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(result.stdout)
    records = [workspace.record(run_id) for run_id in found["runs"]]
    seeds = [workspace.path / "runs" / record["run_id"] / "config.yaml" for record in records]
    loaded = [load_yaml(file.read_text(), "") for file in seeds]
    assert [each["train"]["seed"] for each in loaded] == [0, 1]
    assert records[0]["arguments"] == {"evaluate": {"seed_metrics": [records[1]["metrics"]["accuracy"]]}}
    assert records[0]["part"]["first"] == "evaluate", "of the first training, once the gate had the other's metric"
    assert len({steps(record)["train"]["outputs"]["weights_checksum"] for record in records}) == 2
    assert [record["model"] for record in records] == [str(workspace.path / "models" / "repeated" / "1"), None]
    losses = [record["metrics"]["loss"] for record in records]
    assert found["metrics"]["loss"]["mean"] == pytest.approx(sum(losses) / 2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("planted", "change"),
    [
        (["train.checkpoint.every_steps=1", "train.steps=200"], "train.checkpoint.every_steps=10"),
        (["train.batch_size=2", "train.epochs=6"], "train.batch_size=8"),
        (
            ["data.split={train: 0.3, validation: 0.6, test: 0.1}", "train.batch_size=256", "train.epochs=200"],
            "data.split={train: 0.81, validation: 0.09, test: 0.1}",
        ),
    ],
    ids=["many checkpoints", "small batches", "large validation split"],
)
def test_a_proposed_change_is_tried(tmp_path: Path, planted: list[str], change: str) -> None:
    workspace = Workspace(tmp_path)
    changes = [*planted, "train.early_stop=null", "evaluate.gate.minimum=0"]
    trained = workspace.slipway("run", *(option for each in changes for option in ("--set", each)))
    assert trained.returncode == 0, trained.stdout + trained.stderr
    slow = workspace.record()
    result = workspace.slipway("runs", "diagnose", "--try", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(result.stdout)
    assert (found["run_id"], found["change"]) == (slow["run_id"], change)
    unchanged, changed = found["tried"]
    assert changed < unchanged
    assert f"with --set {shlex.quote(change)}, it would take " in result.stderr
    assert steps(workspace.record())["train"]["outputs"]["steps"] == 200


def test_each_fold_is_a_run_that_registers_nothing(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    result = workspace.slipway("run", "--folds", "2", "--json", "--set", "train.epochs=2")
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(result.stdout)
    records = [workspace.record(run_id) for run_id in found["runs"]]
    assert [record["arguments"] for record in records] == [
        {"prepare_data": {"folds": 2, "fold": number}} for number in range(2)
    ]
    assert sum(record["metrics"]["examples"] for record in records) == 1797  # all digits
    assert [record["model"] for record in records] == [None, None]
    assert not (tmp_path / "models").exists()
    accuracies = [record["metrics"]["accuracy"] for record in records]
    assert found["metrics"]["accuracy"]["mean"] == pytest.approx(sum(accuracies) / 2)
    assert "metrics over 2 folds: mean, 95% confidence interval" in result.stderr
    reproduced = workspace.slipway("runs", "reproduce", found["runs"][0], "--verify")
    assert reproduced.returncode == 0, reproduced.stdout + reproduced.stderr
    prepared = workspace.slipway("run", "--only", "prepare_data", "--from", found["runs"][1])
    assert prepared.returncode == 0, prepared.stdout + prepared.stderr
    assert workspace.record()["steps"][0]["outputs"] == records[1]["steps"][0]["outputs"] | {
        "statistics": workspace.record()["steps"][0]["outputs"]["statistics"]
    }


def test_only_data_that_slipway_prepares_are_divided_into_folds(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    gate = "evaluate: {gate: {metric: rmse, direction: minimize, maximum: 1}}"
    (tmp_path / "own.yaml").write_text(f"name: own\ntrain: {{module: own}}\n{gate}\n")
    (tmp_path / "own.py").write_text(
        "import os\nfrom pathlib import Path\nfolder = Path(os.environ['AIP_MODEL_DIR'])\n"
        "folder.mkdir(parents=True, exist_ok=True)\n(folder / 'weights.txt').write_text('1')\n"
        "(folder / 'metrics.json').write_text('{\"rmse\": 0.5}')\n"
    )
    refused = workspace.call("run", "-c", "own.yaml", "--folds", "2")
    assert (refused.returncode, "can be divided into folds" in refused.stderr) == (2, True), refused.stderr
    [fix] = re.findall(r"fix: +slipway (.+)", refused.stderr)
    assert workspace.slipway(*shlex.split(fix)).returncode == 0
    assert workspace.record()["name"] == "own"


def test_a_result_that_no_longer_exists_is_named(finished: FinishedRun, tmp_path: Path) -> None:
    copy = _with_run(finished, tmp_path / "copy")
    run = copy.path / "runs" / finished.record["run_id"]
    output = next(run.glob("artifacts/*/train/executor_output.json"))
    output.write_text(output.read_text().replace(str(finished.path), "/gone"))
    result = copy.call("run", "--only", "evaluate")
    assert (result.returncode, "/gone/runs" in result.stderr, len(copy.runs())) == (2, True, 1)


# Takes long to compile, and little to train.
DENSE = """
import keras

def build(image_shape, classes):
    layers = [keras.layers.Dense(32, activation="relu") for _ in range(60)]
    return keras.Sequential([keras.Input(image_shape), keras.layers.Flatten(), *layers, keras.layers.Dense(classes)])
"""


@pytest.mark.long
def test_a_step_that_takes_longer_to_compile_than_it_saves_is_tried_without(
    finished: FinishedRun, tmp_path: Path
) -> None:
    workspace = _with_run(finished, tmp_path)
    (workspace.path / "dense.py").write_text(DENSE)
    changes = ["model.builder=dense:build", "train.xla=true", "train.steps=60", "train.early_stop=null"]
    options = [option for each in changes for option in ("--set", each)]
    trained = workspace.slipway("run", "--from-step", "train", "--from", "latest", *options)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    result = workspace.slipway("runs", "diagnose", "--try", "--json")
    assert result.returncode == 0, trained.stdout + result.stdout + result.stderr
    found = json.loads(result.stdout)
    assert found["change"] == "train.xla=false"
    unchanged, changed = found["tried"]
    assert changed < unchanged
