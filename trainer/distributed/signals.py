"""Ending on SIGTERM or SIGHUP: at once while nothing would be lost, else at the next moment when all can be saved."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM
# Another replica is gone: nothing is wrong here, and whoever watches the job may start it again. Kubernetes' training
# operators take this one as "try again", as they do all from 128 on.
PEER_LOST_EXIT_CODE = 138
# A call into the engine can outlast the patience of whoever asked; past this there is no more waiting for it.
DEADLINE_SECONDS = 15.0
# The same where nothing is to be saved, and the process would be gone already were it not deep in a library.
PROMPT_SECONDS = 3.0
# How the line begins by which the replica that was asked tells so; the others follow it.
ASKED_TO_STOP = "asked to stop"


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a run: SIGTERM, and SIGHUP unless this process was started to ignore it (nohup)."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return (signal.SIGTERM,) if ignored else (signal.SIGTERM, signal.SIGHUP)


class Stopped(SystemExit):
    """All replicas have saved the same step, and end together."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)


class StopRequest:
    """Whether this process was asked to stop.

    Outside of `deferred` such a signal raises SystemExit(143) at once. Within it only `requested` becomes true; whoever
    deferred it looks, saves and exits. Whatever hangs, the process is gone `DEADLINE_SECONDS` after the signal.
    """

    def __init__(self) -> None:
        self.requested = False
        self._deferred = False
        self._changed_at = 0.0  # when it was last deferred, or no longer
        # Python runs a handler only between two steps of its own; the wake-up descriptor is written to even while
        # the main thread is deep in the engine.
        self._read_end, self._write_end = socket.socketpair()
        self._write_end.setblocking(False)
        threading.Thread(target=self._enforce_deadline, daemon=True).start()

    def install(self) -> None:
        """Take over the signals to stop; again after a library installed a handler of its own."""
        for number in stop_signals():
            signal.signal(number, self._handle)
        signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Within, a request waits until it is looked at."""
        with self._set(True):
            yield

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Within, a request ends the process at once, though it was deferred: nothing would be lost."""
        with self._set(False):
            if self.requested:
                sys.exit(EXIT_CODE)
            yield

    @contextlib.contextmanager
    def _set(self, deferred: bool) -> Iterator[None]:
        before = self._deferred
        self._deferred, self._changed_at = deferred, time.monotonic()
        try:
            yield
        finally:
            self._deferred, self._changed_at = before, time.monotonic()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        if not self._deferred:
            sys.exit(EXIT_CODE)

    def _enforce_deadline(self) -> None:
        while self._read_end.recv(1)[0] not in (signal.SIGTERM, signal.SIGHUP):
            pass
        asked_at = time.monotonic()
        while True:
            now = time.monotonic()
            overdue = now - max(asked_at, self._changed_at) > PROMPT_SECONDS and not self._deferred
            if overdue or now - asked_at > DEADLINE_SECONDS:
                os._exit(EXIT_CODE)
            time.sleep(0.1)
