"""Where the seconds of a local run went, by step and phase, from the times of its events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slipway.core.atomic import json_lines
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.runs.record import RunFolder, RunRecord

OUTSIDE = "outside of steps"
FIRST = "loading kfp, compiling the pipeline, starting the first step"
BETWEEN = "starting steps, collecting their results"


@dataclass(frozen=True)
class Timing:
    """The wall time of one phase of a step, or of what happens outside of the steps."""

    step: str
    phase: str
    seconds: float


@dataclass(frozen=True)
class Interval:
    """A time that belongs to one phase of a step, in seconds since 1970."""

    step: str
    phase: str
    start: float
    end: float


def of_run(folder: RunFolder, record: RunRecord) -> list[Timing]:
    """Return where the seconds of a run, or of its last resumption, went; they sum to its wall time.

    Raises:
        UserError: The run has not ended, or was not executed on this machine.
    """
    if record.started is None or record.ended is None:
        raise UserError(
            f"The run {record.run_id} has no timings.",
            setting="--timings",
            allowed="runs on this machine that have ended",
            fix=f"slipway status {record.run_id}",
        )
    ended = record.ended.timestamp()
    lines = folder.events_file.read_bytes() if folder.events_file.exists() else b""
    seconds: dict[tuple[str, str], float] = {}
    for part in intervals(json_lines(lines), record.started, ended - (record.seconds or 0.0), ended):
        key = part.step, part.phase
        seconds[key] = seconds.get(key, 0.0) + part.end - part.start
    return [Timing(*key, round(value, 3)) for key, value in seconds.items()]


def intervals(events: Iterable[JsonObject], started: float, executed: float, ended: float) -> Iterator[Interval]:
    """Yield the time between a run's events with the step and phase to which it belongs, in order and without gaps.

    Args:
        events: The run's events; those before `started` are ignored.
        started: When the command was started, in seconds since 1970.
        executed: When it began to execute the pipeline.
        ended: When the pipeline had ended.
    """
    yield Interval(OUTSIDE, "configuration and checks", started, executed)
    label, last = (OUTSIDE, FIRST), executed
    for event in sorted((event for event in events if event["time"] >= executed), key=lambda event: event["time"]):
        yield Interval(*label, last, event["time"])
        last, step, kind = event["time"], str(event["step"]), event["event"]
        if kind == "started":
            label = (step, "beginning")
        elif kind == "phase":
            label = (step, str(event["text"]))
        elif kind == "progress":
            label = (step, str(event["unit"]))
        elif kind in ("finished", "failed", "cancelled"):
            label = (OUTSIDE, BETWEEN)
    yield Interval(*label, last, ended)
