"""What a check is: it looks at one thing, says what it found, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pipelines.config import RunConfig
from trainer.errors import UserError


@dataclass(frozen=True)
class Subject:
    """What is looked at: a run's configuration, where it is to run, and the folder that it runs in."""

    config: RunConfig
    target: Literal["local", "vertex", "kubeflow"]
    rehearsal: bool
    folder: Path


@dataclass(frozen=True)
class Finding:
    """What one check found. `error` holds the whole screen of a failure."""

    check: str
    status: Literal["pass", "fail", "skipped"]
    found: str
    mend: str | None = None
    error: UserError | None = None


class NotConcernedError(Exception):
    """The check has nothing to look at here; the text says why."""


class Check(Protocol):
    """One check. `of_run`: whether `slipway run` makes it too, before anything starts."""

    name: str
    of_run: bool

    def look(self, subject: Subject) -> str:
        """What was found, in a few words.

        Raises:
            UserError: It would not work, with the mend.
            NotConcernedError: There is nothing to look at.
        """


def examine(check: Check, subject: Subject) -> Finding:
    """Make one check; its failure does not hide the others'."""
    try:
        return Finding(check.name, "pass", check.look(subject))
    except NotConcernedError as reason:
        return Finding(check.name, "skipped", str(reason))
    except UserError as error:
        return Finding(check.name, "fail", error.message, error.mend, error)
