"""How far a running training is, how long the rest takes, and what it has cost, against what was estimated."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from slipway.core.durations import between, duration
from slipway.pipelines.runs.record import RunFolder, RunRecord

# The end of the file of events in which the newest progress of the training is looked for.
TAIL_BYTES = 64 * 1024


def lines(folder: RunFolder, record: RunRecord, cost: Callable[[], float | None]) -> dict[str, str]:
    """Return the labels and texts of a running run; none if neither its progress nor an estimate is known.

    `cost` returns what its training has cost in US dollars so far; None if that is nothing, or not known.
    """
    progress, estimate = _progress(folder), record.estimate
    if record.status != "running" or (progress is None and estimate is None):
        return {}
    parts = []
    if progress is not None:
        done, total, rate = progress
        parts = [f"step {done:,} of {total:,}"]
        parts += [f"{duration((total - done) / rate)} left at {rate:,.1f} steps/s"] if rate else []
    if estimate is not None:
        parts.append(f"estimated {between(estimate['seconds']['low'], estimate['seconds']['high'])} in all")
    shown = {"training": "; ".join(parts)}
    spent, expected = cost(), (estimate or {}).get("cost")
    if spent is not None:
        of = f"; estimated ${expected['low']:,.2f} to ${expected['high']:,.2f}" if expected else ""
        shown["cost"] = f"about ${spent:,.2f} so far by list prices{of}"
    return shown


def _progress(folder: RunFolder) -> tuple[int, int, float | None] | None:
    """Return the steps that are done, all steps, and steps per second, of the newest event of the training."""
    try:
        with folder.events_file.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            tail = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(tail):
        if b'"progress"' in line and b'"train"' in line and b'"steps"' in line:
            try:
                event = json.loads(line)
            except ValueError:  # the first line may be cut
                continue
            if event.get("step") == "train" and event.get("unit") == "steps":
                return event["done"], event["total"], event.get("values", {}).get("steps_per_second")
    return None
