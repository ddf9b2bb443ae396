"""The table of known errors, and their recognition: each row only in the words of who says it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from slipway.components.cloud.known_errors.access import ACCESS
from slipway.components.cloud.known_errors.error import KnownError, Recognized, searched
from slipway.components.cloud.known_errors.jobs import JOBS
from slipway.components.cloud.known_errors.machines import MACHINES
from slipway.components.cloud.known_errors.organization import ORGANIZATION
from slipway.components.cloud.known_errors.program import PROGRAM
from slipway.components.cloud.tracebacks import TRACEBACK
from slipway.core.errors import UserError

SERVICES: tuple[KnownError, ...] = (*JOBS, *MACHINES, *ORGANIZATION, *ACCESS)
KNOWN_ERRORS: tuple[KnownError, ...] = (*SERVICES, *PROGRAM)
# What a service's message quotes of a program: the traceback, or what else its container wrote last.
_QUOTED = re.compile(rf"{re.escape(TRACEBACK)}.*|(Termination reason: \w+\.).*", re.DOTALL)
# The exceptions of Google's client libraries, whose text is the service's answer.
_ANSWER = re.compile(
    r"google\.(?:api_core|cloud)\.exceptions\.\w+: |googleapiclient\.errors\.HttpError: <HttpError \d+ when requesting "
)
# Exceptions that may follow a native library's own message; any other one is another cause.
_OF_LIBRARIES = re.compile(
    r"(?:torch|jax|jaxlib|tensorflow)\.[\w.]+\b|(?:RuntimeError|SystemError): .*?(?:CUDA|[Cc][Uu]DNN|NCCL|TPU|'tpu')"
    r"|SystemExit\b"
)


def recognize(text: str, facts: Mapping[str, object] | None = None, *, of_job: bool = False) -> Recognized | None:
    """Return the known error in a service's words, or None; what these quote of a program is not searched.

    Args:
        text: The text of an answer, or of a message about a job.
        facts: The run's values: project, region, bucket (without gs://), account, and others that fixes mention.
        of_job: Whether it is about a job, and so about the account that the job runs as.
    """
    return searched(SERVICES, own_words(text), facts, ("service", "job") if of_job else ("service",))


def recognize_policy(text: str, facts: Mapping[str, object] | None = None) -> Recognized | None:
    """Return the policy of the organization by which a service refuses, or None."""
    return searched(ORGANIZATION, text, facts, ("service",))


def first_recognized(
    texts: Iterable[str], facts: Mapping[str, object] | None = None, *, of_job: bool = True
) -> Recognized | None:
    """Return the first known error found in a service's `texts`, or None."""
    return next((known for text in texts if (known := recognize(text, facts, of_job=of_job)) is not None), None)


def recognize_status(text: str, facts: Mapping[str, object] | None = None) -> Recognized | None:
    """Return the known exit status of a replica in the service's message, or None."""
    return searched(SERVICES, own_words(text), facts, ("status",))


def recognize_program(
    exceptions: Sequence[str], lines: Sequence[str], facts: Mapping[str, object] | None = None
) -> Recognized | None:
    """Return the known error by which a program ended, or None. It never moves a run.

    Args:
        exceptions: The texts of the exceptions that ended it, and of their direct causes, from their classes on.
        lines: The lines of its log.
        facts: See `recognize`.
    """
    for text in exceptions:
        for row in PROGRAM:
            if row.said_by == "exception" and (match := row.pattern.match(text)):
                return row.explained(match, facts)
        if answer := _ANSWER.match(text):
            known = searched((*ORGANIZATION, *ACCESS), text[answer.end() :], facts, ("service", "job"))
            if known is not None:
                return Recognized(known.name, known.sentence, known.fix, known.words)
    unrelated = [text for text in exceptions if not _OF_LIBRARIES.match(text)]
    for line in reversed(lines):
        for row in PROGRAM:
            match = row.pattern.match(line) if row.said_by == "line" else None
            if match and all(text.startswith(line) for text in unrelated):
                return row.explained(match, facts)
    return None


def own_words(text: str) -> str:
    """Return a service's message without what it quotes of a program."""
    return _QUOTED.sub(lambda match: match[1] or "", text)


def as_user_error(words: str, doing: str, facts: Mapping[str, object] | None = None) -> UserError:
    """Convert the words of a service to a UserError.

    Args:
        words: The service's words.
        doing: The beginning of the message: "The last run was refused".
        facts: See `recognize`.
    """
    known = recognize(words, facts)
    if known is None:
        return UserError(f"{doing}: {' '.join(words.split())}", fix="slipway doctor --target vertex")
    return UserError(f"{doing}: {known.sentence}", fix=known.fix)
