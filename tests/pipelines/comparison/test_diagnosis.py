"""Where the time of a run went, and what the change that was proposed would save."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.comparison import diagnosis
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.runs.record import RunFolder, RunRecord, StepRecord
from slipway.pipelines.selection.selection import Row

SECONDS = {"checkpoints": 6.0, "compiling": 2.0, "steps": 3.0, "other": 1.0}


def run(root: Path, text: str | None, steps: int = 100) -> Row:
    """A run of `steps` steps of two replicas with 32 examples each, and what its trainer said about its time."""
    folder = RunFolder(root / "run")
    logs = folder.path / "train" / "logs"
    logs.mkdir(parents=True)
    (logs / "metrics.jsonl").write_text("")
    if text is not None:
        (logs / "spent.json").write_text(json.dumps({"seconds": SECONDS, "text": text}))
    record = RunRecord(
        run_id="run",
        name="digits",
        platform="local",
        hardware="cpu*2",
        created=datetime(2026, 11, 1, tzinfo=UTC),
        steps=[
            StepRecord(name="plan_training", outputs={"replicas": 2, "batch_per_replica": 32, "steps": 4000}),
            StepRecord(name="train", outputs={"steps": steps}),
        ],
    )
    return Row(folder, record, {}, {})


@pytest.mark.parametrize(
    ("said", "change"),
    [
        (
            "without checkpoints, it would take 6 s: --set train.checkpoint.every_steps=10",
            "train.checkpoint.every_steps=10",
        ),
        (
            "--set 'data.resize={size: 224}' resizes larger images once, while preparing",
            "data.resize={size: 224}",
        ),
        ("try --set train.batch_size=512", "train.batch_size=512"),
        ("it saves once; optimizers with fewer variables, such as sgd, save less", None),
    ],
)
def test_the_proposed_setting_is_found_in_what_the_trainer_said(tmp_path: Path, said: str, change: str | None) -> None:
    found = diagnosis.of_run(run(tmp_path, f"the training took 12.0 s: checkpoints 50%. {said}"))
    assert (found.change, found.seconds) == (change, SECONDS)


def test_a_longer_training_compiles_once(tmp_path: Path) -> None:
    row = run(tmp_path, "")
    assert diagnosis.trained_examples(row) == 6400
    assert diagnosis.seconds_for(row, 64_000) == 2.0 + 10 * 10.0


def test_a_run_without_a_record_of_its_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="It is not known where the time of run run went"):
        diagnosis.of_run(run(tmp_path, None))


def test_a_try_is_short_whatever_the_training_lasts() -> None:
    values = {
        "name": "digits",
        "data": {"source": "digits"},
        "model": {"builder": "model:build"},
        "train": {"epochs": 9},
    }
    staged = {**values, "train": {"stages": [{"epochs": 3, "trainable": ["head"]}, {"epochs": 9}]}}
    assert diagnosis.shortened(RunConfig.model_validate(values)) == ["train.steps=200"]
    ((name, _, stages),) = (text.partition("=") for text in diagnosis.shortened(RunConfig.model_validate(staged)))
    assert name == "train.stages"
    assert [stage["steps"] for stage in json.loads(stages)] == [100, 100]
