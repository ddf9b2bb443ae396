"""The live display of a run, on a terminal and without one."""

from __future__ import annotations

import io
import re
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from slipway.pipelines.runs import progress
from slipway.pipelines.runs.progress import RunDisplay, progress_line
from slipway.pipelines.runs.record import RunRecord, StepRecord

DECODING = {
    "event": "progress",
    "done": 12_000,
    "total": 44_440,
    "unit": "images decoded",
    "values": {"images_per_second": 24_000.0},
}


class Shown:
    """A display of a run with two steps, and its printed text."""

    def __init__(self, *, terminal: bool) -> None:
        self.file = io.StringIO()
        steps = [StepRecord(name=name) for name in ("train", "evaluate")]
        self.record = RunRecord(
            run_id="digits-1", name="digits", platform="local", hardware="cpu", created=datetime.now(UTC), steps=steps
        )
        self.display = RunDisplay(Console(file=self.file, force_terminal=terminal, width=80))

    def tell(self, step: str, event: str, **fields: Any) -> None:
        if event in ("started", "finished"):
            self.record.step(step).status = "running" if event == "started" else "succeeded"
        self.display.event(self.record, {"step": step, "event": event, **fields})

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while not re.search(text, self.text):
            assert time.monotonic() < deadline, self.text
            time.sleep(0.01)

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.file.getvalue())


@pytest.mark.parametrize(("terminal", "kind"), [(True, "xterm"), (True, "dumb"), (False, "xterm")])
def test_a_running_step_shows_its_phase_and_progress(
    terminal: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.02)
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.01)
    shown = Shown(terminal=terminal)
    with shown.display:
        shown.tell("train", "started")
        shown.tell("train", "phase", text="loading [TensorFlow]")
        shown.wait_for(r"train .*loading \[TensorFlow\]")
        shown.tell("train", **DECODING)
        shown.wait_for("12,000/44,440 images decoded, 24,000")
        shown.tell("train", "phase", text="building the network")
        shown.wait_for("building the network")
        shown.tell("train", "finished")
        shown.wait_for("evaluate .*starting")
        shown.tell("evaluate", "started")
        shown.tell("evaluate", "finished")
    time.sleep(0.05)
    assert "starting" not in shown.text.partition("✓ evaluate")[2]


def test_a_programs_lines_are_all_printed_without_a_terminal_and_the_last_one_is_shown_on_one() -> None:
    without, on = Shown(terminal=False), Shown(terminal=True)
    for shown in (without, on):
        with shown.display:
            shown.tell("train", "started")
            for epoch in range(3):
                shown.tell("train", "output", text=f"epoch [{epoch}]")
            assert shown.display._doing == ("epoch [2]" if shown is on else "training")
            if shown is on:  # a program that reports its progress is not hidden by what it prints
                shown.tell("train", **DECODING)
                shown.tell("train", "output", text="a warning")
                assert "images decoded" in shown.display._doing
    assert without.text.splitlines() == ["  epoch [0]", "  epoch [1]", "  epoch [2]"]


def test_the_progress_bar_is_reset_after_a_phase() -> None:
    shown = Shown(terminal=True)
    with shown.display:
        shown.tell("train", "started")
        shown.tell("train", **DECODING)
        (task,) = shown.display._progress.tasks
        assert (task.completed, task.total) == (12_000, 44_440)
        shown.tell("train", "phase", text="compiling the training step")
        assert (task.completed, task.total) == (0, None)


def test_progress_lines_become_rarer_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "QUIET_SHARE", 1e6)
    shown = Shown(terminal=False)
    with shown.display:
        shown.tell("train", "started")
        time.sleep(0.1)
    assert shown.text == ""


def test_a_progress_line_shows_rate_and_remaining_time() -> None:
    line = progress_line(DECODING)
    assert line == "12,000/44,440 images decoded, 24,000 images/s, 1 s left"
    values = {"loss": 0.47123, "steps_per_second": 155.2}
    line = progress_line({"done": 120, "total": 694, "unit": "steps", "values": values})
    assert line == "120/694 steps, 155 steps/s, 4 s left, loss 0.4712"
    line = progress_line({"done": 120, "total": 0, "unit": "steps", "values": values})
    assert line == "120 steps, 155 steps/s, loss 0.4712"
