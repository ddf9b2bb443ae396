"""The checks of a run: what one is, its finding, and how a list of checks is run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from slipway.core import waiting
from slipway.core.errors import UserError, internal_error
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.capabilities import WithRemoteChecks
from slipway.trainer.engines.installed import missing_extra

if TYPE_CHECKING:
    from slipway.components.train.tuning import SearchSettings
    from slipway.pipelines.platforms.base import Platform

SECONDS = 30.0
Shared = TypeVar("Shared")


@dataclass(frozen=True)
class Context:
    """The run to check: its configuration, platform and working folder.

    `runner` is how local steps execute; `builds` is False if its pipeline is only compiled. `spent` is what the
    training has cost before the run is resumed, in US dollars. `search` says how to search, if the training is a search
    on the platform.
    """

    config: RunConfig
    platform: Platform
    rehearsal: bool = False
    folder: Path = field(default_factory=Path.cwd)
    runner: Literal["process", "docker"] = "process"
    builds: bool = True
    spent: float = 0.0
    search: SearchSettings | None = None
    _shared: dict[object, Any] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def shared(self, make: Callable[[RunConfig], Shared]) -> Shared:
        """Return what `make` returns for the configuration, which all checks share."""
        with self._lock:
            if make not in self._shared:
                self._shared[make] = make(self.config)
            result: Shared = self._shared[make]
            return result

    def candidates(self) -> list[Context]:
        """Return the context of each configuration with which the run may execute, the first one first."""
        configs = self.platform.candidates(self.config)
        return [replace(self, config=config, _shared={}, _lock=threading.RLock()) for config in configs]


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


# Shows a finding.
Show: TypeAlias = Callable[[Finding], None]


class CheckWarning(Exception):
    """The check cannot tell whether a run would fail; the text says what it found, `fix` what to do about it."""

    def __init__(self, found: str, fix: str) -> None:
        super().__init__(found)
        self.fix = fix


class NotApplicableError(Exception):
    """The check does not apply and is skipped; the text is the reason."""


@dataclass(frozen=True)
class Check:
    """A check: a function that describes what it found, or raises UserError, CheckWarning or NotApplicableError.

    Attributes:
        name: What it checks.
        run: The function.
        of_run: Whether `slipway run` and `compile` make it, too, before anything starts.
        remote: Whether it calls services of its platform, a `WithRemoteChecks`; then `compile` does not make it.
        each: "hardware" or "candidate" if it depends on the hardware, or on hardware and region: it is made for each on
            which the run may execute.
        moves: Whether a run that fails it may execute on other hardware or in another region, and is not refused.
        imports: The modules that it imports, besides those that all checks of the platform do, if it is remote: such
            checks run on threads.
    """

    name: str
    run: Callable[[Context], str]
    of_run: bool = False
    remote: bool = False
    each: Literal["hardware", "candidate"] | None = None
    moves: bool = False
    imports: tuple[str, ...] = ()


def examine(check: Check, context: Context) -> Finding:
    """Run one check and return its finding; user errors become failed findings."""
    try:
        return Finding(check.name, "pass", check.run(context))
    except NotApplicableError as reason:
        return Finding(check.name, "skipped", str(reason))
    except CheckWarning as warning:
        return Finding(check.name, "warning", str(warning), warning.fix)
    except UserError as error:
        return Finding(check.name, "fail", error.message, error.fix, error)
    except ModuleNotFoundError as error:
        if missing_extra(error) is None:
            raise
        # The check of the packages fails for this, with the command that installs the package.
        return Finding(check.name, "skipped", f"{error.name} is not installed")


def examine_in_parallel(
    checks: Sequence[Check], context: Context, seconds: float = SECONDS, show: Show = lambda _: None
) -> list[Finding]:
    """Run remote checks in parallel and return their findings in order; a check that exceeds `seconds` fails.

    `show` receives each finding as soon as it is known.
    """
    if not checks:
        return []
    platform = context.platform
    assert isinstance(platform, WithRemoteChecks)
    platform.import_modules(*(name for check in checks for name in check.imports))
    answers: queue.Queue[tuple[int, Finding]] = queue.Queue()
    started = time.monotonic()

    def make(index: int, check: Check) -> None:
        answers.put((index, _examine_remote(check, context, platform)))

    for index, check in enumerate(checks):
        # Daemon threads, so that a hanging call does not keep the command from exiting.
        threading.Thread(target=make, args=(index, check), daemon=True).start()
    findings: dict[int, Finding] = {}
    until = started + seconds
    while len(findings) < len(checks):
        try:
            index, finding = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        findings[index] = finding
        show(finding)
    for index in range(len(checks)):
        if index not in findings:
            error = platform.late(seconds, waiting.newest_failure(started))
            findings[index] = Finding(checks[index].name, "fail", error.message, error.fix, error)
            show(findings[index])
    return [findings[index] for index in range(len(checks))]


def refuse(findings: Iterable[Finding]) -> list[Finding]:
    """Raise the error of the first check that failed; return the warnings."""
    warnings = []
    for finding in findings:
        if finding.error is not None:
            raise finding.error
        if finding.status == "warning":
            warnings.append(finding)
    return warnings


def _examine_remote(check: Check, context: Context, platform: WithRemoteChecks) -> Finding:
    try:
        return examine(check, context)
    except Exception as error:
        problem = platform.problem_of(error, context, f"check the {check.name}") or internal_error(error)
        return Finding(check.name, "fail", problem.message, problem.fix, problem)
