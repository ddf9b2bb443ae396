"""What a check is: it looks at one thing, says what it found, and how to fix it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.trainer.engines.installed import missing_extra


@dataclass(frozen=True)
class Subject:
    """A run's configuration, where it is to run and in which folder; `runner` is what local steps are."""

    config: RunConfig
    target: Literal["local", "vertex", "kubeflow"]
    rehearsal: bool
    folder: Path
    runner: Literal["process", "docker"] = "process"


@dataclass(frozen=True)
class Finding:
    """What one check found. `error` holds the whole screen of a failure."""

    check: str
    status: Literal["pass", "fail", "skipped"]
    found: str
    fix: str | None = None
    error: UserError | None = None

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain values, for programs."""
        error = self.error.as_dict() if self.error else None
        return {"check": self.check, "status": self.status, "found": self.found, "fix": self.fix, "error": error}


class NotConcernedError(Exception):
    """The check has nothing to look at here; the text says why."""


class Check(Protocol):
    """One check. `of_run`: whether `slipway run` makes it too, before anything starts."""

    name: str
    of_run: bool

    def look(self, subject: Subject) -> str:
        """What was found, in a few words.

        Raises:
            UserError: It would not work, with the fix.
            NotConcernedError: There is nothing to look at.
        """


def examine(check: Check, subject: Subject) -> Finding:
    """Make one check; its failure does not hide the others'."""
    try:
        return Finding(check.name, "pass", check.look(subject))
    except NotConcernedError as reason:
        return Finding(check.name, "skipped", str(reason))
    except UserError as error:
        return Finding(check.name, "fail", error.message, error.fix, error)
    except ModuleNotFoundError as error:
        if missing_extra(error) is None:
            raise
        # The check of the packages refuses it, with the command that installs it.
        return Finding(check.name, "skipped", f"{error.name} is not installed")
