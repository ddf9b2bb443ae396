"""The list of runs: ids that can be copied, and the settings that differ."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slipway.pipelines.cli import display, existing_runs
from slipway.pipelines.cli.app import app
from slipway.pipelines.cli.display import MAX_SETTINGS, differences
from slipway.pipelines.config.config import validate
from slipway.pipelines.hardware import parse
from slipway.pipelines.runs.record import RunRecord, StepRecord, create
from slipway.pipelines.terminal import Terminal
from slipway.trainer.config import TrainSettings


def test_the_settings_that_differ_are_shown_and_no_other() -> None:
    same = {"name": "digits", "hardware": "cpu"}
    runs = [
        {**same, "train.epochs": 5.0, "train.learning_rate": 0.001},
        {**same, "train.epochs": 5.0, "train.learning_rate": 0.01, "hardware": "cpu*2"},
        {**same, "train.steps": 20, "train.epochs": None, "train.learning_rate": 0.001},
    ]
    assert differences(runs) == [
        "train.epochs=5 train.learning_rate=0.001",
        "train.epochs=5 train.learning_rate=0.01",
        "train.learning_rate=0.001 train.steps=20",
    ]
    assert differences(runs[:1]) == [""]


def test_many_differences_are_counted() -> None:
    runs = [{f"setting{number}": each for number in range(MAX_SETTINGS + 3)} for each in (1, 2)]
    assert all(text.endswith(" and 3 more") for text in differences(runs))


def test_the_list_never_cuts_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")
    ids = []
    for epochs in (1, 2):
        values = {"data": {"source": "digits"}, "model": {"builder": "a:b"}, "train": {"epochs": epochs}}
        folder = create(validate({"name": "a" * 40, **values}, "test"))
        folder.write(
            RunRecord(
                run_id=folder.run_id, name="a", platform="local", hardware="cpu", status="succeeded",
                created=datetime.now(UTC), steps=[StepRecord(name="evaluate")],
            )
        )  # fmt: skip
        ids.append(folder.run_id)
    lines = CliRunner().invoke(app, ["list"]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["run", ids[1], "train.epochs=2", ids[0], "train.epochs=1"]
    monkeypatch.setattr(existing_runs, "MAX_LISTED", 1)
    newest, every = (CliRunner().invoke(app, ["list", "--json", *more]) for more in ((), ("--all",)))
    assert [run["run_id"] for run in json.loads(newest.stdout)] == ids[1:]
    assert newest.stderr == "1 more run: --all\n"
    assert [run["run_id"] for run in json.loads(every.stdout)] == ids[::-1]


IMAGE = f"host/image@sha256:{'1' * 64}"


@pytest.mark.parametrize(
    ("program", "hardware", "said"),
    [
        ({"epochs": 1}, "t4x2", "before step 1, each real machine checks that its driver shows 2 GPUs, and that the "
         "framework sees 2 GPUs"),
        ({"epochs": 1}, "tpu-v3-8", "checks that it has TPU chips, and that the framework sees 8 TPU devices"),
        ({"module": "own"}, "t4x1", "before the program starts, each real machine checks that its driver shows 1 GPU, "
         "and that an installed framework sees them"),
        ({"module": "own"}, "tpu-v3-8", "it has TPU chips, and that an installed framework has libtpu"),
        ({"image": IMAGE, "command": ["own"]}, "t4x2", "the container has the device files of 2 GPUs and the driver's "
         "library, and what the frameworks of the image's Python see"),
        ({"image": IMAGE}, "t4x2", "only the image's entry point can check that it sees 2 GPUs"),
    ],
)  # fmt: skip
def test_a_rehearsal_says_what_the_real_machines_verify(program: dict[str, Any], hardware: str, said: str) -> None:
    train = TrainSettings(**program)
    outputs = {
        "plan_training": {"batch_per_replica": 8, "replicas": 1, "steps": 4},
        "train": {"rehearsed_steps": 4, "trainable_bytes": 8, "variables_bytes": 8},
    }
    steps = [StepRecord(name=name, outputs=values) for name, values in outputs.items()]
    record = RunRecord(
        run_id="r", name="r", platform="local", hardware="", created=datetime.now(UTC), steps=steps, seconds=1.0
    )
    console = Terminal(file=io.StringIO(), width=80)
    console.print(display.rehearsal_summary(record, parse(hardware), train))
    assert said in " ".join(console.file.getvalue().split())
