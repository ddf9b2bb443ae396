"""What a run tells whoever watches it, as JSON lines.

A step and the trainer inside it append to the file that SLIPWAY_EVENTS names; without it nothing is written, as on
Vertex, where the logs are what is watched.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

from slipway.core.atomic import append_line

EVENTS_VARIABLE = "SLIPWAY_EVENTS"
STEP_VARIABLE = "SLIPWAY_STEP"


def emit(event: str, **fields: Any) -> None:
    """Append one event: `event` is started, phase, progress, message, finished, failed or cancelled.

    Raises:
        OSError: The event was not written; the disk is full.
    """
    path = os.environ.get(EVENTS_VARIABLE)
    if not path:
        return
    record = {"time": time.time(), "step": os.environ.get(STEP_VARIABLE), "event": event, **fields}
    append_line(path, json.dumps(record, default=str))


def mute() -> None:
    """Report nothing from this process any more: of the replicas of a job, only the chief does."""
    os.environ.pop(EVENTS_VARIABLE, None)


def phase(text: str) -> None:
    """Report what the step does from now on, such as "loading TensorFlow"."""
    with contextlib.suppress(OSError):
        emit("phase", text=text)


def progress(done: int, total: int, unit: str, **values: float) -> None:
    """Report that `done` of `total` `unit` are behind us, with figures worth showing (loss, steps_per_second)."""
    with contextlib.suppress(OSError):  # a full disk is no reason to end what makes progress
        emit("progress", done=done, total=total, unit=unit, values=values)


def message(text: str) -> None:
    """Report one sentence that the person watching should read."""
    with contextlib.suppress(OSError):  # nor to end what reports it
        emit("message", text=text)
