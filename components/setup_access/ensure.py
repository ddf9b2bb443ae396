"""The step's work: see that a run has every right that it needs; grant what is missing where that was asked for."""

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
    """What was found, granted and could not be seen.

    Args:
        settings: What should be.
        grant: Whether to make what is missing; otherwise it is only looked for.

    Raises:
        UserError: Something that a run needs is missing or not as it should be.
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
    """The error for things that a run would fail without: the first in full, how many more there are."""
    first = lines[0]
    more = f", and {len(lines) - 1} more" if len(lines) > 1 else ""
    found = "is missing" if first.status == "missing" else f"is not as it should be: {first.found}"
    return UserError(
        f"{first.item} {found}{more}. It is needed because: {first.item.reason}.",
        fix=first.fix or COMMAND,
    )


def check_own_rights(settings: AccessSettings) -> None:
    """See that the caller may use the bucket: of its own rights anyone may ask, also who may not see the policy.

    Raises:
        UserError: It may not.
    """
    connection = settings.connection
    bucket = connection.storage.bucket(settings.bucket)
    try:
        granted = retried(lambda: bucket.test_iam_permissions(list(OBJECTS), retry=None))
    except Exception as error:
        raise refusal(error, connection, f"look at gs://{settings.bucket}") from error
    missing = sorted(set(OBJECTS) - set(granted))
    if missing:
        raise UserError(
            f"{connection.caller} may not use the bucket gs://{settings.bucket}: it lacks {', '.join(missing)}.",
            setting="vertex.bucket",
            value=f"gs://{settings.bucket}",
            fix=COMMAND,
        )
