"""Retries of Google Cloud calls on transient errors: rate limits, unavailable servers, broken connections."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from slipway.core import waiting
from slipway.core.values import JsonObject

if TYPE_CHECKING:
    import tenacity

Result = TypeVar("Result")

TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
NOT_FOUND, CONFLICT = 404, 409
# With 20% of calls failing, ten attempts all fail once in ten million times.
TRIES = 10
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 20.0
# Environment variable that sets the first wait; the longest wait scales with it.
WAIT_VARIABLE = "SLIPWAY_RETRY_SECONDS"

# google-auth's words for credentials that were rejected, and those of the server's answer that it quotes.
_LOGGED_OUT = re.compile(r"Reauthentication is needed|invalid_grant|invalid_rapt|rapt_required|unauthorized_client")
_PRECONDITION = re.compile(r"pre-?condition", re.IGNORECASE)

logger = logging.getLogger(__name__)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error from any of Google's clients, or None."""
    for name in ("status_code", "code"):  # googleapiclient's HttpError; google.api_core's exceptions
        value = getattr(error, name, None)
        if isinstance(value, int):
            return int(value)
    return None


def is_transient(error: BaseException) -> bool:
    """Return whether retrying may succeed; false for an exhausted quota and for credentials that were rejected."""
    if is_out_of_quota(error) or is_logged_out(error):
        return False
    status = status_of(error)
    if status is not None:
        return status in TRANSIENT
    return isinstance(error, _connection_errors())


def is_unreachable(error: BaseException) -> bool:
    """Return whether no connection could be established, so that nothing was sent."""
    from slipway.components.cloud.network import unreachable

    return unreachable(error) is not None


def is_out_of_quota(error: BaseException) -> bool:
    """Return whether a 429 is about a quota that waiting does not restore, such as accelerators."""
    # Vertex AI's and the TPU API's words; those for calls per minute are others.
    words = r"quota metrics exceed quota limits|quotas are exceeded|Quota (limit )?'\w+' (has been exceeded|exhausted)"
    return status_of(error) == 429 and re.search(words, str(error)) is not None


def is_logged_out(error: BaseException) -> bool:
    """Return whether the login server rejected the caller's credentials, such as after a company's session length.

    gRPC reports it as 503 (https://github.com/skypilot-org/skypilot/issues/3393), other clients as google-auth's error.
    """
    import google.auth.exceptions

    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        return not (isinstance(error, google.auth.exceptions.TransportError) or error.retryable)
    return status_of(error) == 503 and _LOGGED_OUT.search(str(error)) is not None


def is_conflict(error: BaseException) -> bool:
    """Return whether the resource was changed concurrently: read it again, then write.

    Cloud Storage also answers 412 for what an organization's policy forbids, which is final.
    """
    status = status_of(error)
    return status == CONFLICT or (status == 412 and _PRECONDITION.search(str(error)) is not None)


def retried(
    call: Callable[[], Result],
    *,
    also: Callable[[BaseException], bool] | None = None,
    tries: int = TRIES,
    service: str = "Google Cloud",
) -> Result:
    """Return the result of `call`; retry transient errors with jittered exponential backoff.

    A command says what it waits for when that takes long, see `waiting`. An address that cannot be reached is tried
    again for `network.patience()` only, after which all has been said.

    Args:
        call: The call; must be idempotent.
        also: Selects additional errors to retry.
        tries: Maximum number of attempts.
        service: What is called, for messages; hosts of Google's HTTP APIs are known without it.
    """

    started = time.monotonic()

    def worth_it(error: BaseException) -> bool:
        if is_transient(error):
            return not is_unreachable(error) or time.monotonic() - started < _patience()
        return also is not None and also(error)

    with waiting.Call(service, tries) as waits:

        def say(state: tenacity.RetryCallState) -> None:
            error, wait = _outcome(state)
            logger.info("attempt %d failed (%s), retrying in %.1f s", state.attempt_number, error, wait)
            waits.failed(_reason(error), wait)

        return policy(worth_it, tries=tries, before_sleep=say)(call)


def existing(call: Callable[[], Result]) -> Result | None:
    """Return the result of `call`, which is `retried`; None if the resource does not exist."""
    try:
        return retried(call)
    except Exception as error:
        if status_of(error) == NOT_FOUND:
            return None
        raise


def pages(collection: Any, **arguments: Any) -> Iterator[JsonObject]:
    """Yield the pages of a list, each of which is `retried`; `collection` has a discovery-based API's `list`."""
    request = collection.list(**arguments)
    while request is not None:
        page = retried(request.execute)
        yield page
        request = collection.list_next(request, page)


def policy(
    worth_it: Callable[[BaseException], bool],
    *,
    tries: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
    before_sleep: Callable[[Any], None] | None = None,
) -> tenacity.Retrying:
    """Return the policy: jittered exponential backoff, or as long as the server asks for, up to a limit."""
    import tenacity  # installed with the extra `cloud`, which other importers of this module do not need

    longest = paced(LONGEST_WAIT_SECONDS)
    backoff = tenacity.wait_random_exponential(multiplier=paced(FIRST_WAIT_SECONDS), max=longest)

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        headers = getattr(error, "headers", None) or {}
        asked = str(headers.get("Retry-After", ""))
        seconds = max(backoff(state), min(longest, paced(float(asked)) if asked.isdecimal() else 0.0))
        return min(seconds, _patience() / 5) if error and is_unreachable(error) else seconds

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(worth_it),
        wait=wait,
        stop=tenacity.stop_after_attempt(tries) if tries else tenacity.stop_never,
        sleep=sleep,
        before_sleep=before_sleep,
        reraise=True,
    )


def first(times: int, predicate: Callable[[BaseException], bool]) -> Callable[[BaseException], bool]:
    """Return a function that selects the first `times` of the errors that `predicate` selects, for `retried`."""
    left = itertools.repeat(True, times)
    return lambda error: predicate(error) and next(left, False)


def paced(seconds: float) -> float:
    """Return a wait that scales with the first wait between retries."""
    return seconds * float(os.environ.get(WAIT_VARIABLE) or FIRST_WAIT_SECONDS) / FIRST_WAIT_SECONDS


def _patience() -> float:
    from slipway.components.cloud.network import patience

    return paced(patience())


def _outcome(state: tenacity.RetryCallState) -> tuple[BaseException, float]:
    """Return the error of an attempt, and the seconds until the next one."""
    error = state.outcome.exception() if state.outcome else None
    assert error is not None
    assert state.next_action is not None
    return error, state.next_action.sleep


def _reason(error: BaseException) -> str:
    """Return the error in a few words: "503 Service Unavailable"."""
    import http

    status = status_of(error)
    with contextlib.suppress(ValueError):
        return f"{status} {http.HTTPStatus(status or 0).phrase}"
    return str(error).partition("\n")[0].rstrip(".")[:100] or type(error).__name__


def _connection_errors() -> tuple[type[BaseException], ...]:
    """Return the errors of failed connections and of answers that broke off, as google.cloud.storage.retry has them."""
    import http.client

    import google.auth.exceptions
    import requests
    import urllib3

    from slipway.components.cloud.network import NetworkError

    return (
        ConnectionError,
        TimeoutError,
        NetworkError,
        *(requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError),
        *(http.client.BadStatusLine, http.client.IncompleteRead, http.client.ResponseNotReady),
        *(urllib3.exceptions.PoolError, urllib3.exceptions.ProtocolError, urllib3.exceptions.TimeoutError),
        google.auth.exceptions.TransportError,
    )
