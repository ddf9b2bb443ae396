"""The findings of a run's checks, and how a list of checks is run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from slipway.components.prepare_data.sources import source_kinds
from slipway.core import waiting
from slipway.core.errors import UserError, internal_error
from slipway.pipelines.platforms.base import Check, CheckWarning, Context, NotApplicableError
from slipway.pipelines.platforms.capabilities import WithRemoteChecks
from slipway.trainer.engines.installed import missing_extra

if TYPE_CHECKING:
    pass

SECONDS = 30.0


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


def _imports(check: Check, context: Context) -> tuple[str, ...]:
    return check.imports(context) if callable(check.imports) else check.imports


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
    platform.import_modules(*(name for check in checks for name in _imports(check, context)))
    source_kinds()  # imports those of extensions, which threads must not
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
