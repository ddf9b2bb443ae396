"""Ending on SIGTERM: at once while nothing would be lost, else at the next moment when all can be saved."""

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
# A call into the engine can outlast the patience of whoever asked; past this there is no more waiting for it.
DEADLINE_SECONDS = 15.0


class StopRequest:
    """Whether this process was asked to stop.

    Outside of `deferred` SIGTERM raises SystemExit(143) at once. Within it only `requested` becomes true; whoever
    deferred it looks, saves and exits. Whatever hangs, the process is gone `DEADLINE_SECONDS` after the signal.
    """

    def __init__(self) -> None:
        self.requested = False
        self._deferred = False
        # Python runs a handler only between two steps of its own; the wake-up descriptor is written to even while
        # the main thread is deep in the engine.
        self._read_end, self._write_end = socket.socketpair()
        self._write_end.setblocking(False)
        threading.Thread(target=self._enforce_deadline, daemon=True).start()

    def install(self) -> None:
        """Take over SIGTERM; again after a library installed a handler of its own."""
        signal.signal(signal.SIGTERM, self._handle)
        signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Within, a request waits until it is looked at."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        if not self._deferred:
            sys.exit(EXIT_CODE)

    def _enforce_deadline(self) -> None:
        while self._read_end.recv(1) != bytes([signal.SIGTERM]):
            pass
        time.sleep(DEADLINE_SECONDS)
        os._exit(EXIT_CODE)
