"""Conversion of errors of Google Cloud calls to messages with a fix; other exceptions stay what they are."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from slipway.components.cloud.connection import LOG_IN, OUTAGE, Connection, login_error
from slipway.components.cloud.known_errors.table import recognize, recognize_policy
from slipway.components.cloud.policies import Resource, grant_command
from slipway.components.cloud.retries import is_logged_out, is_transient, status_of
from slipway.components.cloud.roles import role_with
from slipway.core.errors import UserError, lowered

# Permission names, but not parts of e-mail addresses or URLs.
PERMISSION = re.compile(r"(?<![\w.@/-])([a-z]+\.[a-zA-Z]+\.[a-zA-Z]+)(?![\w.@-]*\w)")
# Refusals that say neither the permission nor anything else. Others without a permission have a reason of their own.
UNNAMED = re.compile(r"caller does not have permission|User not authorized to perform this action")
# APIs that commands call and no run, so that setup does not enable them.
NOT_OF_RUNS = ("cloudbilling.googleapis.com",)
SERVICE = re.compile(r"\b([a-z]+\.googleapis\.com)")


def is_answer(error: BaseException) -> bool:
    """Return whether an exception is an answer of a service, or the lack of one: client libraries and sockets raise it.

    Any other exception, such as an ImportError, is a bug in Slipway.
    """
    if isinstance(error, ImportError):  # perhaps of one of these libraries
        return False
    return status_of(error) is not None or isinstance(error, _answers())


def is_disabled(error: BaseException) -> bool:
    """Return whether the API is not enabled in the project, or was enabled only moments ago."""
    return status_of(error) == 403 and "has not been used in project" in str(error)


def is_absent(error: BaseException) -> bool:
    """Return whether the resource does not exist."""
    return status_of(error) == 404


def message_of(error: BaseException) -> str:
    """Return the service's message without the URL and formatting that its client adds."""
    for name in ("reason", "message"):  # googleapiclient's HttpError; google.api_core's exceptions
        text = getattr(error, name, None)
        if isinstance(text, str) and text:
            # google.cloud.storage prefixes the message with method and URL.
            return re.sub(r"^[A-Z]+ https?://\S+: ", "", text).strip().rstrip(".")
    return str(error).strip().rstrip(".") or type(error).__name__


def refusal(
    error: BaseException,
    connection: Connection,
    action: str,
    needs: str | None = None,
    facts: Mapping[str, object] | None = None,
) -> UserError:
    """Convert the answer of a Google Cloud call (see `is_answer`) to a UserError.

    Args:
        error: The exception.
        connection: The connection of the call.
        action: What the call was for, as a verb phrase: "read the policy of gs://b".
        needs: The permission that the call needs; several services refuse without naming it.
        facts: The run's values (see `recognize`), if known errors of Vertex AI are to be recognized.

    Raises:
        Exception: `error` itself, if it is not an answer.
    """
    from google.auth.exceptions import GoogleAuthError

    from slipway.components.cloud.network import NetworkError, unreachable

    if isinstance(error, UserError) and not isinstance(error, NetworkError):
        return error
    if not is_answer(error):
        raise error
    if unreached := unreachable(error, connection.endpoint("aiplatform")):
        return UserError(f"Could not {action}: {lowered(unreached.message)}", fix=unreached.fix)
    if isinstance(error, GoogleAuthError) and not is_logged_out(error):
        return login_error(error)
    text = message_of(error)
    if is_logged_out(error):
        text = "the credentials for Google Cloud were rejected; perhaps the login has expired"
        return UserError(f"Could not {action}: {text}.", fix=LOG_IN)
    known = recognize_policy(text, {"project": connection.project}) if facts is None else recognize(text, facts)
    if known is not None:
        return UserError(f"Could not {action}: {known.sentence}", fix=known.fix)
    if is_disabled(error):
        service = SERVICE.search(text)
        name = service[1] if service else "SERVICE.googleapis.com"
        return UserError(
            f"Could not {action}: the API {name} is not enabled in {connection.project}.",
            setting=f"{connection.section}.project",
            value=connection.project,
            fix=f"gcloud services enable {name} --project={connection.project}"
            + ("" if name in NOT_OF_RUNS else "; slipway setup --apply enables all that runs need"),
        )
    if status_of(error) == 403:
        return _forbidden(text, connection, action, needs)
    if status_of(error) == 401:
        return UserError(f"The credentials for Google Cloud were rejected: {text}.", fix=LOG_IN)
    if is_transient(error):
        return UserError(
            f"Could not {action}: Google kept returning transient errors: {text}.",
            fix=OUTAGE,
        )
    return UserError(f"Could not {action}: {text}.", fix=f"slipway doctor --target {connection.section}")


@contextlib.contextmanager
def refusing(
    connection: Connection, action: str, needs: str | None = None, facts: Mapping[str, object] | None = None
) -> Iterator[None]:
    """Convert the answers of Google Cloud calls to UserError; see `refusal`."""
    try:
        yield
    except Exception as error:
        raise refusal(error, connection, action, needs, facts) from error


@contextlib.contextmanager
def answers_ignored() -> Iterator[None]:
    """Ignore that Google Cloud calls fail; other exceptions are raised."""
    try:
        yield
    except Exception as error:
        if not is_answer(error):
            raise


def member_of(connection: Connection) -> str:
    """Return the caller as a policy member (user:… or serviceAccount:…), for use in a command."""
    caller = connection.caller
    if not caller:
        return "user:YOU@EXAMPLE.COM"
    return f"serviceAccount:{caller}" if caller.endswith("gserviceaccount.com") else f"user:{caller}"


def _answers() -> tuple[type[BaseException], ...]:
    import http.client
    import socket
    import ssl

    import grpc
    import requests
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from google.protobuf import json_format, message
    from googleapiclient.errors import Error

    from slipway.components.cloud.network import NetworkError

    return (
        *(ConnectionError, TimeoutError, http.client.HTTPException, socket.gaierror, ssl.SSLError),
        *(NetworkError, grpc.RpcError, requests.RequestException),
        *(DataCorruption, Error, GoogleAPIError, GoogleAuthError, InvalidResponse),
        # Of content that cannot be read.
        *(json_format.ParseError, message.DecodeError),
    )


def _forbidden(text: str, connection: Connection, action: str, needs: str | None) -> UserError:
    named = PERMISSION.search(SERVICE.sub("", text))
    permission = named[1] if named else needs if UNNAMED.search(text) else None
    role = role_with(permission) if permission else None
    missing = f": {permission} is missing" if permission else f": {text}"
    return UserError(
        f"{connection.caller or 'Your account'} may not {action}{missing}.",
        setting=f"{connection.section}.project",
        value=connection.project,
        fix="an owner grants it: " + grant_command(Resource("project", connection.project), member_of(connection), role)
        if role
        else f"ask an owner of the project: gcloud projects get-iam-policy {connection.project} lists them",
    )
