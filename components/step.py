"""The context manager around every step's work: logging, events, errors and termination on signals.

A component's body is `with step("prepare_data") as outcome:` around a call of plain Python. On the local platform, the
output goes to `<step>.log` in the folder SLIPWAY_LOGS; elsewhere it goes to stdout, and the platform stores it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from slipway.core import events
from slipway.core.errors import UserError, report, system_error
from slipway.core.exit_codes import FAILED, STOPPED, reported
from slipway.core.values import JsonObject
from slipway.trainer.distributed.signals import stop_signals

LOGS_VARIABLE = "SLIPWAY_LOGS"


class Terminated(BaseException):
    """The step received a stop signal; raised in the main thread so that resources are released."""


class _Termination:
    """Whether a stop signal was received, and whether handling it is deferred."""

    requested = False
    deferred = False


@contextlib.contextmanager
def termination_deferred() -> Iterator[None]:
    """Defer stop signals until `raise_if_terminated` or the end of the context.

    Otherwise the exception could be raised anywhere, such as while subprocess holds a lock.
    """
    _Termination.deferred = True
    try:
        yield
    finally:
        _Termination.deferred = False
    raise_if_terminated()


def termination_requested() -> bool:
    """Return whether a stop signal was received."""
    return _Termination.requested


def raise_if_terminated() -> None:
    """Raise `Terminated` if a stop signal was received."""
    if _Termination.requested:
        raise Terminated


class WorkFailed(Exception):
    """Work in another process failed; has a one-sentence message and that process's traceback ("" if none)."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(f"{traceback}\n{message}" if traceback else message)
        self.message = message
        self.traceback = traceback


@dataclass
class Outcome:
    """What a step reports when it ends: whether it reused an earlier result, and its outputs."""

    reused: bool = False
    outputs: JsonObject = field(default_factory=dict)


@contextlib.contextmanager
def step(name: str) -> Iterator[Outcome]:
    """Run a step's work.

    A `UserError` ends the process with an error screen and, for `slipway explain`, one line of JSON; any other
    exception keeps its traceback. Both emit the event `failed`. A step also fails if its event `finished` cannot be
    written, because its outputs would be lost.
    """
    os.environ[events.STEP_VARIABLE] = name
    outcome = Outcome()
    try:
        _send_output_to_log(name)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)
        for number in stop_signals():
            signal.signal(number, _terminate)
        started = time.monotonic()
        events.emit("started")
        yield outcome
        events.emit(
            "finished",
            seconds=round(time.monotonic() - started, 3),
            peak_memory_bytes=_peak_memory_bytes(),
            reused=outcome.reused,
            outputs=outcome.outputs,
        )
    except UserError as error:
        _fail(error.as_dict())
        report(error)
        sys.exit(FAILED)
    except WorkFailed as error:
        _fail({"message": error.message, "traceback": error.traceback})
        print(error, file=sys.stderr, flush=True)
        sys.exit(FAILED)
    except Terminated:
        with contextlib.suppress(OSError):
            events.emit("cancelled")
        sys.exit(reported(STOPPED, os.environ))
    except Exception as error:
        refused = system_error(error)
        unexpected = {"message": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        _fail(refused.as_dict() if refused else unexpected)
        raise


def _fail(error: JsonObject) -> None:
    """Emit the event `failed`, best effort: on a full disk, the run's watcher notices the failure anyway."""
    with contextlib.suppress(OSError):
        events.emit("failed", error=error)


def _peak_memory_bytes() -> int:
    """Return the peak memory of this process or of its largest finished child process."""
    unit = 1 if sys.platform == "darwin" else 1024
    children = unit * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(_own_peak_memory_bytes(unit), children)


def _own_peak_memory_bytes(unit: int) -> int:
    status = Path("/proc/self/status")
    if status.exists():  # on Linux, getrusage includes the parent's memory from before exec
        match = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        if match:
            return int(match[1]) * 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _send_output_to_log(name: str) -> None:
    """Redirect this process's stdout and stderr, including those of C libraries, to the step's log."""
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
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)
    _Termination.requested = True
    if not _Termination.deferred:
        raise Terminated
