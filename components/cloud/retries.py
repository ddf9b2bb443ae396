"""Calls to Google that are worth a second try: too many requests, a server that is away, a connection that broke."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
CONFLICT = 409
# At a share of 20 % of failures, ten tries fail once in ten million calls.
TRIES = 10
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 20.0
# Scales the waits, for links that are nearer or farther than Google's.
WAIT_VARIABLE = "SLIPWAY_RETRY_SECONDS"

logger = logging.getLogger(__name__)


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an error from any of Google's clients; None where it has none."""
    for name in ("status_code", "code"):  # googleapiclient's HttpError; google.api_core's exceptions
        value = getattr(error, name, None)
        if isinstance(value, int):
            return int(value)
    return None


def is_transient(error: BaseException) -> bool:
    """Whether the same call may well work in a moment. A quota that is used up is not: see `is_out_of_quota`."""
    if is_out_of_quota(error):
        return False
    status = status_of(error)
    if status is not None:
        return status in TRANSIENT
    return isinstance(error, _connection_errors())


def is_out_of_quota(error: BaseException) -> bool:
    """Whether a 429 tells of a quota that waiting does not give back, such as accelerators."""
    return status_of(error) == 429 and "quota metrics exceed quota limits" in str(error)


def is_conflict(error: BaseException) -> bool:
    """Whether someone else has changed in between what was to be changed: read again, then write."""
    return status_of(error) in (CONFLICT, 412)


def retried(
    call: Callable[[], Result], *, also: Callable[[BaseException], bool] | None = None, tries: int = TRIES
) -> Result:
    """The result of `call`, tried again with growing, jittered waits while its errors are transient.

    Args:
        call: What to do; must be safe to do twice.
        also: Which other errors are worth another try.
        tries: How often at most.
    """

    def worth_it(error: BaseException) -> bool:
        return is_transient(error) or (also is not None and also(error))

    import tenacity  # of the extra cloud: whatever else imports this module does without it

    first = float(os.environ.get(WAIT_VARIABLE) or FIRST_WAIT_SECONDS)
    policy = tenacity.Retrying(
        retry=tenacity.retry_if_exception(worth_it),
        wait=tenacity.wait_random_exponential(multiplier=first, max=LONGEST_WAIT_SECONDS * first / FIRST_WAIT_SECONDS),
        stop=tenacity.stop_after_attempt(tries),
        before_sleep=_say,
        reraise=True,
    )
    return policy(call)


def _say(state: Any) -> None:
    error = state.outcome.exception()
    logger.info("try %d failed (%s), again in %.1f s", state.attempt_number, error, state.next_action.sleep)


def _connection_errors() -> tuple[type[BaseException], ...]:
    import google.auth.exceptions
    import httplib2
    import requests

    return (
        ConnectionError,
        TimeoutError,
        httplib2.ServerNotFoundError,
        requests.ConnectionError,
        requests.Timeout,
        google.auth.exceptions.TransportError,
    )
