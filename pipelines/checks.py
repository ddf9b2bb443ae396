"""The interface of a check, and its finding."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.tpu.checks import settings_of
from slipway.pipelines.table import PlatformName
from slipway.trainer.engines.installed import missing_extra

if TYPE_CHECKING:
    from slipway.components.cloud.connection import Connection
    from slipway.pipelines.platforms.vertex.doctor.project import Project


@dataclass(frozen=True)
class Context:
    """The run to check: its configuration, target and working folder.

    `runner` is how local steps execute; `builds` is False if its pipeline is only compiled.
    """

    config: RunConfig
    target: PlatformName
    rehearsal: bool
    folder: Path
    runner: Literal["process", "docker"] = "process"
    builds: bool = True

    @functools.cached_property
    def project(self) -> Project:
        """The run's Google Cloud project, which its checks share."""
        from slipway.pipelines.platforms.vertex.doctor.project import Project

        return Project(self.config)

    @functools.cached_property
    def connection(self) -> Connection:
        """The connection to the run's Google Cloud project, which its checks share."""
        return settings_of(self.config).connection if self.target == "tpu" else self.project.connection


@dataclass(frozen=True)
class Finding:
    """The result of one check. `error` is the full error of a failure; a warning does not stop a run."""

    check: str
    status: Literal["pass", "warning", "fail", "skipped"]
    found: str
    fix: str | None = None
    error: UserError | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the finding as plain values, for JSON."""
        error = self.error.as_dict() if self.error else None
        return {"check": self.check, "status": self.status, "found": self.found, "fix": self.fix, "error": error}


class DoubtError(Exception):
    """The check cannot tell whether a run would fail; the text says what it found, `fix` what to do about it."""

    def __init__(self, found: str, fix: str) -> None:
        super().__init__(found)
        self.fix = fix


class NotApplicableError(Exception):
    """The check does not apply and is skipped; the text is the reason."""


@dataclass(frozen=True)
class Check:
    """A check: a function that describes what it found, or raises UserError, DoubtError or NotApplicableError.

    `of_run`: whether `slipway run` and `compile` make it, too, before anything starts. `cloud`: the target whose Google
    Cloud project it calls; then it is made only for runs with this target, and not by `compile`.
    """

    name: str
    look: Callable[[Context], str]
    of_run: bool = False
    cloud: PlatformName | None = None


def examine(check: Check, context: Context) -> Finding:
    """Run one check and return its finding; user errors become failed findings."""
    try:
        return Finding(check.name, "pass", check.look(context))
    except NotApplicableError as reason:
        return Finding(check.name, "skipped", str(reason))
    except DoubtError as doubt:
        return Finding(check.name, "warning", str(doubt), doubt.fix)
    except UserError as error:
        return Finding(check.name, "fail", error.message, error.fix, error)
    except ModuleNotFoundError as error:
        if missing_extra(error) is None:
            raise
        # The check of the packages fails for this, with the command that installs the package.
        return Finding(check.name, "skipped", f"{error.name} is not installed")
