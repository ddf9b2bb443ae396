"""What `slipway status` says of a training that is running."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from slipway.pipelines.runs import remaining
from slipway.pipelines.runs.record import RunFolder, RunRecord, StepRecord, estimate_on

ESTIMATE = {"hardware": "l4x1", "seconds": {"low": 600, "middle": 800, "high": 1200},
            "cost": {"low": 1.0, "middle": 1.5, "high": 2.0}}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


def running(**values: Any) -> RunRecord:
    steps = [StepRecord(name="train", status="running")]
    created = datetime.now(UTC)
    record = RunRecord(run_id="run", name="digits", platform="vertex", hardware="l4x1", created=created, steps=steps)
    for name, value in values.items():
        setattr(record, name, value)
    return record


def progress(folder: RunFolder, done: int, rate: float | None, step: str = "train", unit: str = "steps") -> None:
    values = {"steps_per_second": rate} if rate else {}
    event = {
        "time": 1.0,
        "step": step,
        "event": "progress",
        "done": done,
        "total": 1000,
        "unit": unit,
        "values": values,
    }
    with folder.events_file.open("a") as file:
        file.write(json.dumps(event) + "\n")


def test_the_newest_progress_of_the_training(folder: RunFolder) -> None:
    with folder.events_file.open("w") as file:
        file.write("x" * 2 * remaining.TAIL_BYTES + "\n")
    progress(folder, 100, 5.0)
    progress(folder, 400, 10.0)
    progress(folder, 7, None, step="evaluate")
    progress(folder, 50, None, unit="images decoded")
    assert remaining.lines(folder, running(), lambda: None) == {
        "training": "step 400 of 1,000; 1.0 min left at 10.0 steps/s"
    }


def test_against_the_estimate(folder: RunFolder) -> None:
    progress(folder, 400, None)
    assert remaining.lines(folder, running(estimate=ESTIMATE), lambda: 1.25) == {
        "training": "step 400 of 1,000; estimated 10 to 20 min in all",
        "cost": "about $1.25 so far by list prices; estimated $1.00 to $2.00",
    }


def test_of_what_is_not_running_or_not_known_nothing_is_said(folder: RunFolder) -> None:
    assert remaining.lines(folder, running(), lambda: 1.0) == {}
    progress(folder, 400, None)
    assert remaining.lines(folder, running(status="succeeded", estimate=ESTIMATE), lambda: 1.0) == {}


def test_the_estimate_is_that_of_the_hardware_that_trains() -> None:
    other = {**ESTIMATE, "hardware": "t4x1"}
    larger = {**ESTIMATE, "hardware": "l4x1*2"}
    chosen = ["l4x1", "l4x1*2", "t4x1+timeout=2h"]
    record = running(choice={"chosen": chosen, "estimates": [ESTIMATE, larger, other]})
    assert estimate_on(record) == ESTIMATE
    record.hardware = "l4x1*2"  # begins like the first
    assert estimate_on(record) == larger
    record.hardware = "t4x1+timeout=2h"
    assert estimate_on(record) == other
    record.hardware = "a100x1"
    assert estimate_on(record) is None
