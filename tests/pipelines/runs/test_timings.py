"""Where a run's seconds went: the time between its events, by step and phase."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.runs.record import RunFolder, RunRecord
from slipway.pipelines.runs.timings import BETWEEN, OUTSIDE, of_run

EVENTS = [
    (50, "train", "phase", {"text": "an earlier attempt"}),
    (104, "train", "started", {}),
    (105, "train", "phase", {"text": "loading TensorFlow"}),
    (107, "train", "progress", {"unit": "steps", "done": 1}),
    (110, "train", "phase", {"text": "validating"}),
    (111, "train", "progress", {"unit": "steps", "done": 2}),
    (112, "train", "message", {"text": "epoch"}),
    (113, "train", "finished", {}),
    (115, "evaluate", "started", {}),
    (116, "evaluate", "failed", {}),
]


def record(**fields: object) -> RunRecord:
    values = {"run_id": "digits-1", "name": "digits", "platform": "local", "hardware": "cpu"}
    return RunRecord(**{**values, "created": datetime.now(UTC), **fields})


def test_the_phases_sum_to_the_time_from_the_start_of_the_command(tmp_path: Path):
    folder = RunFolder(tmp_path)
    lines = [json.dumps({"time": time, "step": step, "event": kind, **fields}) for time, step, kind, fields in EVENTS]
    folder.events_file.write_text("\n".join(lines) + "\n")
    rows = of_run(folder, record(started=100.0, ended=datetime.fromtimestamp(117, UTC), seconds=16))
    assert [(row.step, row.phase, row.seconds) for row in rows] == [
        (OUTSIDE, "configuration and checks", 1),
        (OUTSIDE, "loading kfp, compiling the pipeline, starting the first step", 3),
        ("train", "beginning", 1),
        ("train", "loading TensorFlow", 2),
        ("train", "steps", 5),
        ("train", "validating", 1),
        (OUTSIDE, BETWEEN, 3),
        ("evaluate", "beginning", 1),
    ]
    assert sum(row.seconds for row in rows) == 17


def test_a_run_without_events_or_end_has_no_timings(tmp_path: Path):
    with pytest.raises(UserError, match="has no timings"):
        of_run(RunFolder(tmp_path), record(started=100.0))
    rows = of_run(RunFolder(tmp_path), record(started=100.0, ended=datetime.fromtimestamp(103, UTC), seconds=2))
    assert [row.seconds for row in rows] == [1, 2]
