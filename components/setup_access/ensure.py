"""Verify that a run has every permission that it needs; grant missing ones on request."""

from __future__ import annotations

import logging
from typing import Any

from slipway.components.cloud.refusals import refusal
from slipway.components.cloud.retries import retried
from slipway.components.setup_access.apply import apply
from slipway.components.setup_access.difference import Line, blocking, difference
from slipway.components.setup_access.found import look
from slipway.components.setup_access.settings import AccessSettings
from slipway.core.errors import UserError

COMMAND = "slipway setup --apply"
OBJECTS = tuple(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list"))

logger = logging.getLogger(__name__)


def ensure(settings: AccessSettings, *, grant: bool) -> dict[str, Any]:
    """Verify access; return what exists, what was granted and what could not be seen.

    Args:
        settings: The desired state.
        grant: Whether to create what is missing; otherwise nothing is changed.

    Raises:
        UserError: Something that a run needs is missing or misconfigured.
    """
    failed = []
    granted = []
    if grant:
        outcomes, lines = apply(settings)
        granted = [str(outcome.line.item) for outcome in outcomes if outcome.result == "done"]
        failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    else:
        lines = difference(settings, look(settings))
    for line in lines:
        logger.info("%s: %s %s: %s (%s)", line.status, line.kind, line.item, line.found, line.item.reason)
    if blocking(lines):
        raise failed[0] if failed else lacking(blocking(lines))
    if settings.account and settings.connection.caller == settings.account:
        check_own_rights(settings)
    return {
        "there": sum(line.status == "there" for line in lines),
        "granted": granted,
        "unseen": [str(line.item) for line in lines if line.status == "unseen"],
    }


def lacking(lines: list[Line]) -> UserError:
    """Return the error for lines that would make a run fail: the first in full, and the number of others."""
    first = lines[0]
    more = f", and {len(lines) - 1} more" if len(lines) > 1 else ""
    found = "is missing" if first.status == "missing" else f"is misconfigured: {first.found}"
    return UserError(
        f"{first.item} {found}{more}. Required because: {first.item.reason}.",
        fix=first.fix or COMMAND,
    )


def check_own_rights(settings: AccessSettings) -> None:
    """Verify that the caller may use the bucket, which works without permission to read its policy.

    Raises:
        UserError: The caller lacks a permission.
    """
    connection = settings.connection
    bucket = connection.storage.bucket(settings.bucket)
    try:
        granted = retried(lambda: bucket.test_iam_permissions(list(OBJECTS), retry=None))
    except Exception as error:
        raise refusal(error, connection, f"test permissions on gs://{settings.bucket}") from error
    missing = sorted(set(OBJECTS) - set(granted))
    if missing:
        raise UserError(
            f"{connection.caller} may not use the bucket gs://{settings.bucket}: it lacks {', '.join(missing)}.",
            setting="vertex.bucket",
            value=f"gs://{settings.bucket}",
            fix=COMMAND,
        )
