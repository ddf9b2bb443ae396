"""Follow and cancel a run that another process executes on this machine, by what its folder contains."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from slipway.core.atomic import json_lines
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.runs.record import EVENTS, ErrorRecord, RunFolder, RunRecord, Watcher

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
        record.adopt_results()
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


def watch(folder: RunFolder, watcher: Watcher) -> RunRecord:
    """Show the steps of a run so far, then its events until it has ended; return its record.

    A KeyboardInterrupt leaves the run as it is.
    """
    reader = EventReader(folder.events_file)
    record = folder.read()
    reader.read()  # the record contains what they changed
    for step in record.steps:
        if step.status in EVENTS:
            watcher.event(record, {"step": step.name, "event": EVENTS[step.status]})
    while True:
        latest = folder.read()
        with contextlib.suppress(OSError):  # the next call repeats it
            for event in reader.read():
                apply(record, event)
                watcher.event(record, event)
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
