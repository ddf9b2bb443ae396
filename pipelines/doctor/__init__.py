"""`slipway doctor`: the list of checks and how they are run."""

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
    """Run all checks and return their findings in order; for Vertex AI, the cloud checks run in parallel."""
    findings = [examine(check, subject) for check in CHECKS]
    return findings + (_examine_cloud(subject) if subject.target == "vertex" else [])


def refuse_on_failure(subject: Subject, *, submitting: bool = False) -> None:
    """Run the checks that apply to a run.

    Args:
        subject: The run to check.
        submitting: Whether the run is about to be submitted; if so, its project is checked, too.

    Raises:
        UserError: The error of the first check that failed.
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
    """Run the checks of the project; with `of_run`, only those that apply to every run."""
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
