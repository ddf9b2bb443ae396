"""The doctor: every check, its finding, its fix."""

from __future__ import annotations

from slipway.pipelines.doctor.check import Check, Finding, Subject, examine
from slipway.pipelines.doctor.engine import TrainingEngine
from slipway.pipelines.doctor.machine import Accelerators, Cores, Disk, Folder, Packages, PythonVersion
from slipway.pipelines.doctor.memory import ModelMemory
from slipway.pipelines.doctor.run import (
    Batch,
    Champion,
    DataSource,
    HardwareChoice,
    ImageContext,
    KubeflowServer,
    ModelBuilder,
    ServingImage,
)

CHECKS: tuple[Check, ...] = (
    PythonVersion(),
    Folder(),
    Disk(),
    Cores(),
    Accelerators(),
    Packages(),
    HardwareChoice(),
    Batch(),
    TrainingEngine(),
    DataSource(),
    ModelBuilder(),
    ModelMemory(),
    ImageContext(),
    ServingImage(),
    KubeflowServer(),
    Champion(),
)


def examine_all(subject: Subject) -> list[Finding]:
    """Every check's finding, in order; those of the cloud are made side by side where the run is to be there."""
    findings = [examine(check, subject) for check in CHECKS]
    return findings + (_examine_cloud(subject) if subject.target == "vertex" else [])


def refuse_on_failure(subject: Subject, *, submitting: bool = False) -> None:
    """Make the checks that concern a run.

    Args:
        subject: What is looked at.
        submitting: Whether the run is about to be submitted: then its project is looked at too.

    Raises:
        UserError: The first one that failed.
    """
    for check in CHECKS:
        if check.of_run:
            _refuse(examine(check, subject))
    if submitting and subject.target == "vertex":
        for finding in _examine_cloud(subject, of_run=True):
            _refuse(finding)


def _refuse(finding: Finding) -> None:
    if finding.error is not None:
        raise finding.error


def _examine_cloud(subject: Subject, *, of_run: bool = False) -> list[Finding]:
    """The findings of the checks of the project; only of those that concern a run, where that is all that is asked."""
    from slipway.pipelines.doctor import image, quotas, vertex
    from slipway.pipelines.doctor.cloud import View, examine_side_by_side

    view = View(subject)
    checks: list[Check] = [
        vertex.Credentials(view),
        vertex.Project(view),
        vertex.Apis(view),
        vertex.ServiceAgents(view),
        vertex.OwnRights(view),
        vertex.RunAsAccount(view),
        vertex.BucketPlace(view),
        vertex.BucketRights(view),
        vertex.Repository(view),
        image.Image(view),
        vertex.Roles(view),
        quotas.HardwareQuota(view),
        quotas.ScheduleQuota(view),
        vertex.FirstJob(view),
    ]
    return examine_side_by_side([check for check in checks if check.of_run or not of_run], view, subject)
