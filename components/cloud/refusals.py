"""Conversion of errors of Google Cloud calls to messages with a fix."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from slipway.components.cloud.connection import LOG_IN, Connection
from slipway.components.cloud.known_errors import recognize
from slipway.components.cloud.policies import Resource, grant_command
from slipway.components.cloud.retries import is_transient, status_of
from slipway.components.cloud.roles import role_with
from slipway.core.errors import UserError

# Permission names, but not parts of e-mail addresses or URLs.
PERMISSION = re.compile(r"(?<![\w.@/-])([a-z]+\.[a-zA-Z]+\.[a-zA-Z]+)(?![\w.@-]*\w)")
# Refusals that say neither the permission nor anything else. Others without a permission have a reason of their own.
UNNAMED = re.compile(r"caller does not have permission|User not authorized to perform this action")
SERVICE = re.compile(r"\b([a-z]+\.googleapis\.com)")


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
    what: str,
    needs: str | None = None,
    facts: Mapping[str, object] | None = None,
) -> UserError:
    """Convert an exception of a Google Cloud call to a UserError.

    Args:
        error: The exception.
        connection: The connection of the call.
        what: What the call was for, as a verb phrase: "read the policy of gs://b".
        needs: The permission that the call needs; several services refuse without naming it.
        facts: The run's values (see `recognize`), if known errors of Vertex AI are to be recognized.
    """
    if isinstance(error, UserError):
        return error
    text = message_of(error)
    if facts is not None and (known := recognize(text, facts)) is not None:
        return UserError(f"Could not {what}: {known.sentence}", fix=known.fix)
    if is_disabled(error):
        service = SERVICE.search(text)
        name = service[1] if service else "SERVICE.googleapis.com"
        return UserError(
            f"Could not {what}: the API {name} is not enabled in {connection.project}.",
            setting=f"{connection.section}.project",
            value=connection.project,
            fix=f"slipway setup --apply, or gcloud services enable {name} --project={connection.project}",
        )
    if status_of(error) == 403:
        return _forbidden(text, connection, what, needs)
    if status_of(error) == 401:
        return UserError(f"The credentials for Google Cloud were rejected: {text}.", fix=LOG_IN)
    if is_transient(error):
        return UserError(
            f"Could not {what}: Google kept returning transient errors: {text}.",
            fix="try again in a few minutes; https://status.cloud.google.com lists known outages",
        )
    return UserError(f"Could not {what}: {text}.", fix=f"slipway doctor --target {connection.section}")


@contextlib.contextmanager
def refusing(
    connection: Connection, what: str, needs: str | None = None, facts: Mapping[str, object] | None = None
) -> Iterator[None]:
    """Convert the exceptions of Google Cloud calls to UserError; see `refusal`."""
    try:
        yield
    except Exception as error:
        raise refusal(error, connection, what, needs, facts) from error


def member_of(connection: Connection) -> str:
    """Return the caller as a policy member (user:… or serviceAccount:…), for use in a command."""
    caller = connection.caller
    if not caller:
        return "user:YOU@EXAMPLE.COM"
    return f"serviceAccount:{caller}" if caller.endswith("gserviceaccount.com") else f"user:{caller}"


def _forbidden(text: str, connection: Connection, what: str, needs: str | None) -> UserError:
    named = PERMISSION.search(SERVICE.sub("", text))
    permission = named[1] if named else needs if UNNAMED.search(text) else None
    role = role_with(permission) if permission else None
    missing = f": {permission} is missing" if permission else f": {text}"
    return UserError(
        f"{connection.caller or 'Your account'} may not {what}{missing}.",
        setting=f"{connection.section}.project",
        value=connection.project,
        fix="an owner grants it: " + grant_command(Resource("project", connection.project), member_of(connection), role)
        if role
        else f"ask an owner of the project: gcloud projects get-iam-policy {connection.project} lists them",
    )
