"""Calls of services that take long: a command says after three seconds what it waits for, and the try."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

# When the first line about a call is due, and about an operation of a service; then after ten seconds and twice as
# many each time, up to a minute.
SECONDS, OPERATION_SECONDS = 3.0, 10.0
AGAIN_SECONDS, LONGEST_SECONDS = 10.0, 60.0

_say: Callable[[str], None] | None = None
_calls = threading.local()
# When the newest line was printed: calls of several threads say one line together.
_newest = float("-inf")
_lock = threading.Lock()
_failure = (float("-inf"), "")


def announce(say: Callable[[str], None] | None) -> None:
    """Print the lines of this process with `say`, which any thread may call; None: with nothing, as at first."""
    global _say
    _say = say


def newest_failure(since: float) -> str:
    """Return why the newest attempt failed that failed after a time (of `time.monotonic`); "" if none did."""
    return _failure[1] if _failure[0] > since else ""


def asked(host: str) -> None:
    """Note which host the innermost call of this thread has asked."""
    if (call := getattr(_calls, "innermost", None)) is not None:
        call.service = host


class Call:
    """The context of a call and its next tries, or of an operation that the service was asked for.

    Args:
        service: What is called, until `asked` names a host; what the operation does.
        tries: Maximum number of attempts of a call; 0 for an operation.
    """

    def __init__(self, service: str, tries: int = 0) -> None:
        self.service = service
        self._tries, self._try = tries, 1
        self._started = time.monotonic()
        self._pause = AGAIN_SECONDS
        self._timer: threading.Timer | None = None
        self._ended = False
        self._outer: Call | None = None

    def __enter__(self) -> Call:
        self._outer, _calls.innermost = getattr(_calls, "innermost", None), self
        if _say is not None:
            self._start_timer(SECONDS if self._tries else OPERATION_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _calls.innermost = self._outer
        with _lock:
            self._ended = True
            if self._timer is not None:
                self._timer.cancel()

    def failed(self, reason: str, wait: float) -> None:
        """Say, if the call takes long, that it failed and is tried again in `wait` seconds."""
        global _failure
        _failure = (time.monotonic(), reason)
        self._try += 1
        if self._timer is not None:
            self._start_timer(wait + SECONDS)
        if time.monotonic() + wait - self._started >= SECONDS:
            self._print(f"{reason}; try {self._try} of {self._tries} in {max(1, round(wait))} s")

    def _start_timer(self, seconds: float) -> None:
        with _lock:
            if self._timer is not None:
                self._timer.cancel()
            if self._ended:  # while its line was printed
                return
            self._timer = threading.Timer(seconds, self._remind)
            self._timer.daemon = True
            self._timer.start()

    def _remind(self) -> None:
        after = f"after {time.monotonic() - self._started:.0f} s"
        self._print(f"no answer {after} (try {self._try} of {self._tries})" if self._tries else f"not done {after}")
        self._start_timer(self._pause)
        self._pause = min(2 * self._pause, LONGEST_SECONDS)

    def _print(self, text: str) -> None:
        global _newest
        with _lock:
            now = time.monotonic()
            if _say is None or self._ended or now - _newest < SECONDS:
                return
            _newest, say = now, _say
        say(f"waiting for {self.service}: {text}")
