"""A known error: who says it, the pattern of the words, and the explanation and fix that they lead to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

# Who says the words, and where they are looked for; whatever else a program logs is only quoted.
# service: the service's answer, its message about a job, or its own lines in the job's log.
# job: the same, but of a job only: about the account that it runs as.
# status: the service's message about a replica's exit status, which counts if the replica's own log explains nothing.
# exception: the exception that ended the failed replica.
# line: a line of the failed replica's log in the fixed format of a native library, an interpreter or a shell.
Speaker = Literal["service", "job", "status", "exception", "line"]
EXCEPTION: Speaker = "exception"
LINE: Speaker = "line"
ALL = ("standard", "spot", "flex")
QUOTA_PAGE = "https://console.cloud.google.com/iam-admin/quotas?project={project}"
SETUP = "slipway setup --apply"

# Placeholders for values that neither the words nor the run provide.
UNKNOWN = {
    "account": "the run-as account",
    "agent": "AGENT",
    "answer": "its log has the reason",
    "bucket": "the bucket",
    "larger_disk": "CHOICE+disk=500",
    "limit": "0",
    "project": "PROJECT",
    "region": "this region",
    "repository": "its repository",
    "role": "the role that has it",
    "smaller_batch": "a smaller batch: --set train.batch_size=N, or the option of the custom program in "
    "train.arguments",
    "where": "this region",
}


@dataclass(frozen=True)
class KnownError:
    """A known error. `sentence` and `fix` are format strings for the pattern's named groups and the run's values.

    `cause` is a short description for the table in the docs. `moves` are the provisioning modes with which the run may
    succeed on other hardware or in another region: words of the service's only. `derived` returns additional values,
    calculated from the others.
    """

    name: str
    cause: str
    pattern: re.Pattern[str]
    sentence: str
    fix: str
    moves: tuple[str, ...] = ()
    said_by: Speaker = "service"
    derived: Callable[[Mapping[str, str]], Mapping[str, str]] | None = None

    def explained(self, match: re.Match[str], facts: Mapping[str, object] | None) -> Recognized:
        """Return the explanation of matched words; `facts` are the run's values."""
        groups = {name.rstrip("23"): value for name, value in match.groupdict().items() if value}
        known = {name: str(value) for name, value in (facts or {}).items() if value}
        values = {**UNKNOWN, **known, "where": known.get("region", UNKNOWN["where"]), **groups}
        if self.derived is not None:
            values |= self.derived(values)
        sentence, fix = self.sentence.format_map(values), self.fix.format_map(values)
        return Recognized(self.name, sentence, fix, match[0], self.moves)


@dataclass(frozen=True)
class Recognized:
    """A known error that was recognized: its name, explanation, fix, the matched text, and `KnownError.moves`."""

    name: str
    sentence: str
    fix: str
    words: str
    moves: tuple[str, ...] = ()


def known(
    name: str,
    cause: str,
    pattern: str,
    sentence: str,
    fix: str,
    *,
    moves: tuple[str, ...] = (),
    said_by: Speaker = "service",
    derived: Callable[[Mapping[str, str]], Mapping[str, str]] | None = None,
) -> KnownError:
    """Return a row of a table; its pattern's dots match line breaks, too."""
    return KnownError(name, cause, re.compile(pattern, re.DOTALL), sentence, fix, moves, said_by, derived)


def searched(
    rows: Iterable[KnownError], text: str, facts: Mapping[str, object] | None, said_by: Iterable[Speaker]
) -> Recognized | None:
    """Return the first of the rows of `said_by` whose pattern is anywhere in `text`, or None."""
    for row in rows:
        if row.said_by in said_by and (match := row.pattern.search(text)):
            return row.explained(match, facts)
    return None
