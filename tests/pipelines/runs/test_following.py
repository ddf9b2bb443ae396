"""Runs that are followed by their folder: events, and steps whose changes only the record has."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slipway.pipelines.runs.following import Follower
from slipway.pipelines.runs.record import RunFolder, RunRecord, StepRecord


class Shown(list[tuple[str, str]]):
    """A watcher that keeps the step and the kind of each event."""

    def event(self, record: RunRecord, event: dict[str, Any]) -> None:
        assert record.step(event["step"])
        self.append((event["step"], event["event"]))


def record(**statuses: Any) -> RunRecord:
    steps = [StepRecord(name=name, status=status) for name, status in statuses.items()]
    return RunRecord(
        run_id="r-1", name="r", platform="local", hardware="cpu", created=datetime.now(UTC), steps=steps
    )  # fmt: skip


def test_a_step_is_shown_by_its_events_or_by_its_record_and_once(tmp_path: Path) -> None:
    """A run elsewhere writes no events here; those of a run on this machine may be ahead of its record."""
    folder, shown = RunFolder(tmp_path), Shown()
    follower = Follower(folder, shown)
    latest = record(prepare_data="succeeded", train="running", evaluate="pending")
    follower.update(latest)
    assert shown == [("prepare_data", "finished"), ("train", "started")]
    follower.update(latest)
    assert len(shown) == 2
    finished = {"step": "train", "event": "finished", "seconds": 1.0, "peak_memory_bytes": 1, "reused": False}
    folder.events_file.write_text(json.dumps({**finished, "outputs": {}}) + "\n")
    follower.update(latest)
    assert shown[2:] == [("train", "finished")]
    steps = [replace(step, status="succeeded") for step in latest.steps]
    follower.update(replace(latest, steps=steps))
    assert shown[3:] == [("evaluate", "finished")]
