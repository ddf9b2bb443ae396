"""What every step does around its work: its log, its events, its errors, its end on a signal.

A component's body is `with step("prepare_data") as outcome:` and a call of the plain Python beside it. On the local
platform SLIPWAY_LOGS names the folder that gets `<step>.log`; elsewhere the step prints, and the platform keeps it.
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
from typing import Any

from slipway.core import events
from slipway.core.errors import UserError, report, system_error
from slipway.trainer.distributed.signals import stop_signals

LOGS_VARIABLE = "SLIPWAY_LOGS"


class Terminated(BaseException):
    """The step was asked to stop by a signal; raised in the main thread so that everything open is closed."""


class _Termination:
    """Whether a signal to stop has come, and whether it waits for a safe moment."""

    requested = False
    deferred = False


@contextlib.contextmanager
def termination_deferred() -> Iterator[None]:
    """Within, a signal to stop waits for `raise_if_terminated`, or for the end of the context.

    An exception may come between any two instructions, such as the two by which subprocess takes and releases a lock.
    """
    _Termination.deferred = True
    try:
        yield
    finally:
        _Termination.deferred = False
    raise_if_terminated()


def raise_if_terminated() -> None:
    """Raise `Terminated` if a signal to stop has come."""
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


@contextlib.contextmanager
def step(name: str) -> Iterator[Outcome]:
    """Run a step's work.

    A `UserError` ends the process with one screen and, for `slipway explain`, one line of JSON; any other exception
    keeps its traceback. Both are reported as the event `failed`. A step whose event `finished` cannot be written has
    failed: nobody would know its outputs.
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
        sys.exit(1)
    except WorkFailed as error:
        _fail({"message": error.message, "traceback": error.traceback})
        print(error, file=sys.stderr, flush=True)
        sys.exit(1)
    except Terminated:
        with contextlib.suppress(OSError):
            events.emit("cancelled")
        sys.exit(143)
    except Exception as error:
        refused = system_error(error)
        _fail(refused.as_dict() if refused else _internal(error))
        raise


def _fail(error: dict[str, Any]) -> None:
    """Report the event `failed`; on a full disk, whoever watches the run notices by itself."""
    with contextlib.suppress(OSError):
        events.emit("failed", error=error)


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
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)
    _Termination.requested = True
    if not _Termination.deferred:
        raise Terminated
