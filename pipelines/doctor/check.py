"""The interface of a check, and its finding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.trainer.engines.installed import missing_extra


@dataclass(frozen=True)
class Subject:
    """The run to check: its configuration, target and working folder; `runner` is how local steps execute."""

    config: RunConfig
    target: Literal["local", "vertex", "kubeflow"]
    rehearsal: bool
    folder: Path
    runner: Literal["process", "docker"] = "process"


@dataclass(frozen=True)
class Finding:
    """The result of one check. `error` is the full error of a failure."""

    check: str
    status: Literal["pass", "fail", "skipped"]
    found: str
    fix: str | None = None
    error: UserError | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain values, for JSON."""
        error = self.error.as_dict() if self.error else None
        return {"check": self.check, "status": self.status, "found": self.found, "fix": self.fix, "error": error}


class NotConcernedError(Exception):
    """The check does not apply and is skipped; the text is the reason."""


class Check(Protocol):
    """One check. `of_run`: whether `slipway run` makes it, too, before anything starts."""

    name: str
    of_run: bool

    def look(self, subject: Subject) -> str:
        """Run the check and return a short description of what it found.

        Raises:
            UserError: The check failed; contains the fix.
            NotConcernedError: The check does not apply.
        """


def examine(check: Check, subject: Subject) -> Finding:
    """Run one check and return its finding; user errors become failed findings."""
    try:
        return Finding(check.name, "pass", check.look(subject))
    except NotConcernedError as reason:
        return Finding(check.name, "skipped", str(reason))
    except UserError as error:
        return Finding(check.name, "fail", error.message, error.fix, error)
    except ModuleNotFoundError as error:
        if missing_extra(error) is None:
            raise
        # The check Packages fails for this, with the command that installs the package.
        return Finding(check.name, "skipped", f"{error.name} is not installed")
