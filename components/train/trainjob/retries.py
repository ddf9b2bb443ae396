"""Which failures of the Kubernetes API are retried, and for how long: a training outlasts more than a first call."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from slipway.components.cloud.retries import TRANSIENT, paced, policy

# Kinds of failures: the API server cannot be reached, is starting or has lost etcd; it denies access; the cache of
# Trainer's webhook lacks the runtime that was just created.
AWAY, DENIED, UNCACHED = "away", "denied", "uncached"
# Seconds for which each kind is retried.
AT_FIRST: Mapping[str, float] = {AWAY: 60.0, DENIED: 0.0, UNCACHED: 30.0}
# Once a call has succeeded: the pods train without the API while the step renews its lease, and an API server that has
# just started denies everything until it has loaded the rules.
TRAINING: Mapping[str, float] = {AWAY: 3600.0, DENIED: 120.0, UNCACHED: 30.0}
# For the deletion at the end; Kubernetes kills a step 30 s after it asked it to stop.
ENDING, STOPPING = dict.fromkeys(AT_FIRST, 120.0), dict.fromkeys(AT_FIRST, 15.0)
# Outages as long as this are reported.
REPORT_SECONDS = 5.0

Result = TypeVar("Result")


class Retries:
    """Retries calls, and knows since when they have failed.

    Args:
        limits: Seconds by kind of failure.
        later: The limits once a call has succeeded; None for the same.
        pause: Waits the seconds between two tries; an exception ends them.
        say: Receives a line about a long outage, and one about its end.
    """

    def __init__(
        self,
        limits: Mapping[str, float] = AT_FIRST,
        later: Mapping[str, float] | None = None,
        *,
        pause: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._limits, self._later = limits, later or limits
        self._pause, self._say = pause, say
        self._kind: str | None = None
        self._since = self._began = 0.0
        self._is_reported = False

    def __call__(self, call: Callable[[], Result]) -> Result:
        """Return the result of `call`, which must be idempotent."""
        result = policy(self.may_pass, sleep=self._pause)(call)
        self.answered()
        return result

    def may_pass(self, error: BaseException) -> bool:
        """Return whether to retry after a failure, which is the latest."""
        kind, now = kind_of(error), time.monotonic()
        if kind is None:
            self.answered()
            return False
        if self._kind is None:
            self._began = now
        if kind != self._kind:
            self._kind, self._since = kind, now
        if now - self._began >= paced(REPORT_SECONDS) and not self._is_reported:
            self._is_reported = True
            minutes = self._limits[kind] / 60
            self._say(f"the Kubernetes API fails ({sentence(error)}); calls are retried for {minutes:g} minutes")
        return now - self._since < paced(self._limits[kind])

    def answered(self) -> None:
        """Note that the API works."""
        if self._is_reported:
            self._say(f"the Kubernetes API answers again, after {time.monotonic() - self._began:.0f} s")
        self._limits, self._kind, self._is_reported = self._later, None, False


def kind_of(error: BaseException) -> str | None:
    """Return the kind of a failure that may pass, else None."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    if isinstance(error, HTTPError):
        return AWAY
    if not isinstance(error, ApiException):
        return None
    if not error.status or error.status in TRANSIENT:  # the client's errors of TLS have no status
        return AWAY
    if error.status == 403 and "admission webhook" in sentence(error):
        return UNCACHED if "must be created before the TrainJob" in sentence(error) else None
    return DENIED if error.status in (401, 403) else None


def sentence(error: BaseException) -> str:
    """Return the message of the API's response, or of the connection's failure."""
    try:
        text = str(json.loads(error.body)["message"])  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError, KeyError):
        text = str(getattr(error, "reason", None) or error)
    return " ".join(text.split()).rstrip(".")
