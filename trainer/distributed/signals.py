"""Graceful stop on SIGTERM or SIGHUP: at once if nothing would be lost, else as soon as a checkpoint can be saved."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

from slipway.core.exit_codes import STOPPED, leave

# Hard deadline after SIGTERM, in seconds: a call into the engine can take longer.
DEADLINE_SECONDS = 15.0
# The same if there is nothing to save and only a library call delays the exit.
PROMPT_SECONDS = 3.0
# Prefix of the log line of the replica that received the signal; the others follow it.
ASKED_TO_STOP = "asked to stop"


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a run: SIGTERM, and SIGHUP unless this process was started to ignore it (nohup)."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return (signal.SIGTERM,) if ignored else (signal.SIGTERM, signal.SIGHUP)


class Stopped(SystemExit):
    """All replicas have saved the same step and exit together."""

    def __init__(self) -> None:
        super().__init__(STOPPED)


class StopRequest:
    """Whether this process was asked to stop.

    Outside of `deferred` the signal raises SystemExit(143) at once. Within it only `requested` is set; the code that
    deferred it has to check it, save and exit. The process exits at most `DEADLINE_SECONDS` after the signal.
    """

    def __init__(self) -> None:
        self.requested = False
        self._deferred = False
        self._changed_at = 0.0  # time.monotonic of the last change of `_deferred`
        # Python runs signal handlers only between bytecode instructions; the wake-up descriptor is written to even
        # while the main thread is in a native call of the engine.
        self._read_end, self._write_end = socket.socketpair()
        self._write_end.setblocking(False)
        threading.Thread(target=self._enforce_deadline, daemon=True).start()

    def install(self) -> None:
        """Install the signal handlers; call again after a library has replaced them."""
        for number in stop_signals():
            signal.signal(number, self._handle)
        signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Within the context, a stop request only sets `requested`."""
        with self._set(True):
            yield

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Within the context, a stop request ends the process at once even if deferred: nothing would be lost."""
        with self._set(False):
            if self.requested:
                sys.exit(STOPPED)
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
            sys.exit(STOPPED)

    def _enforce_deadline(self) -> None:
        while self._read_end.recv(1)[0] not in (signal.SIGTERM, signal.SIGHUP):
            pass
        asked_at = time.monotonic()
        while True:
            now = time.monotonic()
            overdue = now - max(asked_at, self._changed_at) > PROMPT_SECONDS and not self._deferred
            if overdue or now - asked_at > DEADLINE_SECONDS:
                leave(STOPPED)
            time.sleep(0.1)
