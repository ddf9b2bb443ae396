"""Polling of long-running operations of the discovery-based APIs and of Vertex AI's clients."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from slipway.components.cloud.retries import FIRST_WAIT_SECONDS, WAIT_VARIABLE, paced, retried
from slipway.core import waiting
from slipway.core.errors import UserError
from slipway.core.values import JsonObject

LONGEST_WAIT_SECONDS = 10.0
DEADLINE_SECONDS = 300.0
POLL_SECONDS = 5.0


class StillRunningError(Exception):
    """An operation is not done in time; the service continues with it. The text is the operation's name."""


def finished(
    operation: JsonObject,
    read: Callable[[str], JsonObject],
    action: str,
    deadline: float = DEADLINE_SECONDS,
) -> JsonObject:
    """Wait until an operation is done and return its response.

    Args:
        operation: The operation as the service returned it, done or not.
        read: Returns an operation by name.
        action: What it does, for error messages: "enable the APIs".
        deadline: Maximum number of seconds to wait.

    Raises:
        UserError: The operation failed, or is not done in time.
    """
    wait = first = float(os.environ.get(WAIT_VARIABLE) or FIRST_WAIT_SECONDS)
    name = str(operation["name"])
    until = time.monotonic() + deadline
    with waiting.Call(f"Google to {action}"):
        while not operation.get("done"):
            if time.monotonic() > until:
                raise UserError(
                    f"Could not {action}: Google has not finished after {deadline:.0f} s.",
                    fix="run the same command again; it continues where this one stopped",
                )
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS * first / FIRST_WAIT_SECONDS)
            operation = retried(lambda: read(name))
    if "error" in operation:
        raise UserError(f"Could not {action}: {operation['error'].get('message', operation['error'])}.")
    return dict(operation.get("response", {}))


def completed(client: Any, operation: Any, until: float) -> None:
    """Wait until an operation of one of Vertex AI's clients is done.

    Args:
        client: The client that started it.
        operation: The operation, done or not, as the service returned it.
        until: The time (of `time.monotonic`) until which to wait.

    Raises:
        StillRunningError: It is not done in time.
        google.api_core.exceptions.GoogleAPICallError: It failed.
    """
    from google.api_core.exceptions import from_grpc_status

    name = operation.name
    with waiting.Call("Vertex AI"):
        while not operation.done:
            if time.monotonic() > until:
                raise StillRunningError(name)
            time.sleep(paced(POLL_SECONDS))
            operation = retried(lambda: client.get_operation({"name": name}))
    if operation.error.code:
        raise from_grpc_status(operation.error.code, operation.error.message)
