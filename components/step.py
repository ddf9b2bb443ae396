"""What every step does around its work: its log, its events, its errors, its end on a signal.

A component's body is `with step("prepare_data") as outcome:` and a call of the plain Python beside it. On the local
platform SLIPWAY_LOGS names the folder that gets `<step>.log`; elsewhere the step prints, and the platform keeps it.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from trainer import events
from trainer.errors import UserError, report

LOGS_VARIABLE = "SLIPWAY_LOGS"


class Terminated(BaseException):
    """The step was asked to stop (SIGTERM); raised in the main thread so that everything open is closed."""


class _Termination:
    """Whether SIGTERM has come, and whether it waits for a safe moment."""

    requested = False
    deferred = False


@contextmanager
def termination_deferred() -> Iterator[None]:
    """Within, SIGTERM waits for `raise_if_terminated`, or for the end of the context.

    An exception may come between any two instructions, such as the two by which subprocess takes and releases a lock.
    """
    _Termination.deferred = True
    try:
        yield
    finally:
        _Termination.deferred = False
    raise_if_terminated()


def raise_if_terminated() -> None:
    """Raise `Terminated` if SIGTERM has come."""
    if _Termination.requested:
        raise Terminated


class WorkFailed(Exception):
    """Work in another process failed: one sentence, and that process's traceback ("" where it left none)."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(f"{traceback}\n{message}" if traceback else message)
        self.message = message
        self.traceback = traceback


@dataclass
class Outcome:
    """What a step reports when it ends: whether it reused an earlier result, and outputs worth showing."""

    reused: bool = False
    outputs: dict[str, Any] = field(default_factory=dict)


@contextmanager
def step(name: str) -> Iterator[Outcome]:
    """Run a step's work.

    A `UserError` ends the process with one screen and, for `slipway explain`, one line of JSON; any other exception
    keeps its traceback. Both are reported as the event `failed`.
    """
    os.environ[events.STEP_VARIABLE] = name
    _send_output_to_log(name)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)
    signal.signal(signal.SIGTERM, _terminate)
    started = time.monotonic()
    events.emit("started")
    outcome = Outcome()
    try:
        yield outcome
    except UserError as error:
        report(error)
        events.emit("failed", error=error.as_dict())
        sys.exit(1)
    except WorkFailed as error:
        print(error, file=sys.stderr, flush=True)
        events.emit("failed", error={"message": error.message, "traceback": error.traceback})
        sys.exit(1)
    except Terminated:
        events.emit("cancelled")
        sys.exit(143)
    except Exception as error:
        events.emit("failed", error=_internal(error))
        raise
    events.emit(
        "finished",
        seconds=round(time.monotonic() - started, 3),
        peak_memory_bytes=_peak_memory_bytes(),
        reused=outcome.reused,
        outputs=outcome.outputs,
    )


def _peak_memory_bytes() -> int:
    """The most memory that the largest process of this step has had: its own, or one that it started and waited for."""
    unit = 1 if sys.platform == "darwin" else 1024
    children = unit * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(_own_peak_memory_bytes(unit), children)


def _own_peak_memory_bytes(unit: int) -> int:
    status = Path("/proc/self/status")
    if status.exists():  # Linux's getrusage counts what the process was before its exec: a copy of who started it
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _internal(error: Exception) -> dict[str, Any]:
    text = f"{type(error).__name__}: {error}"
    return {"message": text, "traceback": traceback.format_exc()}


def _send_output_to_log(name: str) -> None:
    """Point this process's stdout and stderr, those of libraries in C too, at the step's log."""
    folder = os.environ.get(LOGS_VARIABLE)
    if not folder:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(Path(folder) / f"{name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _Termination.requested = True
    if not _Termination.deferred:
        raise Terminated
