"""Retries of Google Cloud calls on transient errors: rate limits, unavailable servers, broken connections."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
CONFLICT = 409
# With 20% of calls failing, ten attempts all fail once in ten million times.
TRIES = 10
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 20.0
# Environment variable that sets the first wait; the longest wait scales with it.
WAIT_VARIABLE = "SLIPWAY_RETRY_SECONDS"

logger = logging.getLogger(__name__)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error from any of Google's clients, or None."""
    for name in ("status_code", "code"):  # googleapiclient's HttpError; google.api_core's exceptions
        value = getattr(error, name, None)
        if isinstance(value, int):
            return int(value)
    return None


def is_transient(error: BaseException) -> bool:
    """Return whether retrying may succeed; false for an exhausted quota (see `is_out_of_quota`)."""
    if is_out_of_quota(error):
        return False
    status = status_of(error)
    if status is not None:
        return status in TRANSIENT
    return isinstance(error, _connection_errors())


def is_out_of_quota(error: BaseException) -> bool:
    """Return whether a 429 is about a quota that waiting does not restore, such as accelerators."""
    # Vertex AI's and the TPU API's words; those for calls per minute are others.
    words = r"quota metrics exceed quota limits|Quota (limit )?'\w+' (has been exceeded|exhausted)"
    return status_of(error) == 429 and re.search(words, str(error)) is not None


def is_conflict(error: BaseException) -> bool:
    """Return whether the resource was changed concurrently: read it again, then write."""
    return status_of(error) in (CONFLICT, 412)


def retried(
    call: Callable[[], Result], *, also: Callable[[BaseException], bool] | None = None, tries: int = TRIES
) -> Result:
    """Return the result of `call`; retry transient errors with jittered exponential backoff.

    Args:
        call: The call; must be idempotent.
        also: Selects additional errors to retry.
        tries: Maximum number of attempts.
    """

    def worth_it(error: BaseException) -> bool:
        return is_transient(error) or (also is not None and also(error))

    import tenacity  # installed with the extra `cloud`, which other importers of this module do not need

    first = float(os.environ.get(WAIT_VARIABLE) or FIRST_WAIT_SECONDS)
    policy = tenacity.Retrying(
        retry=tenacity.retry_if_exception(worth_it),
        wait=tenacity.wait_random_exponential(multiplier=first, max=LONGEST_WAIT_SECONDS * first / FIRST_WAIT_SECONDS),
        stop=tenacity.stop_after_attempt(tries),
        before_sleep=_say,
        reraise=True,
    )
    return policy(call)


def paced(seconds: float) -> float:
    """Return a wait that scales with the first wait between retries."""
    return seconds * float(os.environ.get(WAIT_VARIABLE) or FIRST_WAIT_SECONDS) / FIRST_WAIT_SECONDS


def _say(state: Any) -> None:
    error = state.outcome.exception()
    logger.info("attempt %d failed (%s), retrying in %.1f s", state.attempt_number, error, state.next_action.sleep)


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
