"""Follow and cancel a run that another process executes on this machine, by what its folder contains."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from slipway.core.atomic import json_lines
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.runs.record import EVENTS, ErrorRecord, RunFolder, RunRecord, Status, StepRecord, Watcher

POLL_SECONDS = 0.1


class EventReader:
    """Reads the events of a run as they are written; from `offset` bytes on."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.offset = path, offset

    def read(self) -> list[JsonObject]:
        """Return the events written since the last call.

        Raises:
            OSError: The file exists and cannot be read.
        """
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return json_lines(whole)


def apply(record: RunRecord, event: JsonObject) -> bool:
    """Apply one event to the record; return whether the record changed."""
    step = record.step(event["step"])
    kind = event["event"]
    if kind == "started":
        step.status, step.reused = "running", False
    elif kind == "finished":
        step.status, step.seconds = "succeeded", event["seconds"]
        step.peak_memory_bytes = event["peak_memory_bytes"]
        step.reused, step.outputs = event["reused"], event["outputs"]
    elif kind == "failed":
        step.status = "failed"
        error = event["error"]
        fix = error.get("fix") or f"slipway logs {record.run_id} --step {step.name}"
        record.error = ErrorRecord(
            step=step.name,
            message=_sentence(error),
            setting=error.get("setting"),
            fix=fix,
            traceback=error.get("traceback") or None,
        )
    elif kind == "cancelled":
        step.status = "cancelled"
    return kind in ("started", "finished", "failed", "cancelled")


def _sentence(error: JsonObject) -> str:
    """Return a step's error as text without the fix, which the record stores separately."""
    if "setting" not in error:  # not a UserError
        return str(error["message"])
    return str(UserError.from_dict({**error, "fix": None}))


# How far a step with a status is: the events may be ahead of the record, and a remote run has none.
_PROGRESS: dict[Status, int] = {
    "pending": 0,
    "running": 1,
    "succeeded": 2,
    "failed": 2,
    "cancelled": 2,
    "skipped": 2,
}


class Follower:
    """Passes a run's events, and the changes of its record, to a watcher: first the steps so far, then what is new."""

    def __init__(self, folder: RunFolder, watcher: Watcher) -> None:
        self._watcher = watcher
        self._events = EventReader(folder.events_file)
        self._record: RunRecord | None = None

    def update(self, latest: RunRecord) -> None:
        """Show what has changed since the last call; `latest` is the run's record."""
        events: list[JsonObject] = []
        with contextlib.suppress(OSError):  # the next call repeats it
            events = self._events.read()
        if self._record is None:  # it contains what the events so far have changed
            self._record = replace(latest, steps=[StepRecord(name=step.name) for step in latest.steps])
            events = []
        for event in events:
            apply(self._record, event)
            self._watcher.event(self._record, event)
        known = {step.name: step for step in self._record.steps}
        self._record.steps = list(map(replace, latest.steps))
        for index, step in enumerate(latest.steps):
            before = known.get(step.name)
            if before is not None and _PROGRESS[before.status] >= _PROGRESS[step.status]:
                self._record.steps[index] = before
            elif step.status in EVENTS:
                self._watcher.event(self._record, {"step": step.name, "event": EVENTS[step.status]})


def watch(folder: RunFolder, watcher: Watcher) -> RunRecord:
    """Show a run until it has ended; return its record. A KeyboardInterrupt leaves the run as it is."""
    follower = Follower(folder, watcher)
    while True:
        latest = folder.read()
        follower.update(latest)
        if latest.status != "running":
            return latest
        time.sleep(POLL_SECONDS)


def cancel(folder: RunFolder) -> RunRecord:
    """Stop a run, and wait until its processes have ended; return its record.

    Raises:
        UserError: It is running on another machine.
    """
    record, holder = folder.read(), folder.holder()
    if holder is None:  # it has just ended
        return record
    if not holder.is_here:
        raise UserError(
            f"Run {record.run_id} is running on {holder.host}.", fix=f"slipway cancel {record.run_id}, on {holder.host}"
        )
    request_stop(holder.pid)
    while folder.holder() == holder:
        time.sleep(POLL_SECONDS)
    return folder.read()


def request_stop(pid: int) -> None:
    """Ask the process that executes a run to stop it."""
    with contextlib.suppress(ProcessLookupError):  # it was killed, and its processes are ending
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)  # it may have been suspended with Ctrl-Z
