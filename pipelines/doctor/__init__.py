"""The doctor: every check, its finding, its mend."""

from __future__ import annotations

from pipelines.doctor.check import Check, Finding, Subject, examine
from pipelines.doctor.engine import TrainingEngine
from pipelines.doctor.machine import Accelerators, Cores, Disk, Packages, PythonVersion
from pipelines.doctor.memory import ModelMemory
from pipelines.doctor.run import Champion, DataSource, HardwareChoice, ModelBuilder

CHECKS: tuple[Check, ...] = (
    PythonVersion(),
    Disk(),
    Cores(),
    Accelerators(),
    Packages(),
    HardwareChoice(),
    TrainingEngine(),
    DataSource(),
    ModelBuilder(),
    ModelMemory(),
    Champion(),
)


def examine_all(subject: Subject) -> list[Finding]:
    """Every check's finding, in order."""
    return [examine(check, subject) for check in CHECKS]


def refuse_on_failure(subject: Subject) -> None:
    """Make the checks that concern a run.

    Raises:
        UserError: The first one that failed.
    """
    for check in CHECKS:
        if check.of_run:
            finding = examine(check, subject)
            if finding.error is not None:
                raise finding.error
