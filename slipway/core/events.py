"""A run's event log: JSON lines about its progress.

A step and the trainer inside it append to the file that SLIPWAY_EVENTS names. If it is not set, as on Vertex AI,
nothing is written and the logs are the only record. On Kubeflow, the steps of a training also go to its TrainJob.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from typing import TYPE_CHECKING

from slipway.core.atomic import append_line

if TYPE_CHECKING:
    from slipway.core.job_status import Reporter

EVENTS_VARIABLE = "SLIPWAY_EVENTS"
STEP_VARIABLE = "SLIPWAY_STEP"
STATUS_URL_VARIABLE = "KUBEFLOW_TRAINER_STATUS_URL"


def emit(event: str, **fields: object) -> None:
    """Append one event: `event` is started, phase, progress, output, message, finished, failed or cancelled.

    Raises:
        OSError: The event could not be written, for example because the disk is full.
    """
    path = os.environ.get(EVENTS_VARIABLE)
    if not path:
        return
    record = {"time": time.time(), "step": os.environ.get(STEP_VARIABLE), "event": event, **fields}
    append_line(path, json.dumps(record, default=str))


def mute() -> None:
    """Disable events from this process: of a job's replicas only the chief reports them."""
    for name in (EVENTS_VARIABLE, STATUS_URL_VARIABLE):
        os.environ.pop(name, None)


def phase(text: str) -> None:
    """Report the step's current phase, such as "loading TensorFlow"."""
    with contextlib.suppress(OSError):
        emit("phase", text=text)


def progress(done: int, total: int, unit: str, **values: float) -> None:
    """Report that `done` of `total` `unit` are done, with values to display (loss, steps_per_second)."""
    with contextlib.suppress(OSError):  # a full disk must not fail a step that makes progress
        emit("progress", done=done, total=total, unit=unit, values=values)
    if unit == "steps" and total and os.environ.get(STATUS_URL_VARIABLE):
        _reporter().report(done, total, values)


@functools.cache
def _reporter() -> Reporter:
    from slipway.core.job_status import Reporter  # most processes report to no TrainJob

    return Reporter()


def output(line: str) -> None:
    """Report a line that a custom program printed."""
    with contextlib.suppress(OSError):  # see `progress`
        emit("output", text=line)


def message(text: str) -> None:
    """Report one sentence for the user to read."""
    with contextlib.suppress(OSError):  # see `progress`
        emit("message", text=text)
