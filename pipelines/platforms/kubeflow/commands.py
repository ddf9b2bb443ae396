"""The commands for runs on Kubeflow Pipelines; see slipway.pipelines.platforms.remote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.platforms.kubeflow import launch
from slipway.pipelines.platforms.kubeflow.checks import settings_of
from slipway.pipelines.platforms.remote import Say
from slipway.pipelines.runs.record import RunFolder, RunRecord

refresh, watch, cancel = launch.refresh, launch.watch, launch.cancel


def compile_to(path: Path, config: RunConfig, say: Say) -> None:  # noqa: ARG001
    """Write the pipeline spec."""
    launch.compile_to(path, config)


def start(config: RunConfig, say: Say) -> tuple[RunFolder, RunRecord]:
    """Submit the run and print its URL.

    Raises:
        UserError: The configuration is not supported, or the server is unreachable or rejects it.
    """
    return _submitted(*launch.submit(config), say)


def resume(folder: RunFolder, say: Say) -> tuple[RunFolder, RunRecord]:
    """Resubmit a failed or cancelled run; with a volume, training resumes from its checkpoint."""
    return _submitted(folder, launch.resume(folder), say)


def _submitted(folder: RunFolder, record: RunRecord, say: Say) -> tuple[RunFolder, RunRecord]:
    settings = settings_of(load(folder.configuration_file))
    say(f"run {record.run_id} on {record.hardware} at {settings.host}, submitted")
    say(f"  console: {record.console}")
    if not settings.registers:
        say("  no model is registered, as kubeflow.volume is not set: it is the artifact `model` of the step train")
    return folder, record


def log_lines(folder: RunFolder, step: str | None, *, follow: bool, raw: bool) -> Iterator[str]:  # noqa: ARG001
    """Raise: the Kubeflow Pipelines client has no access to logs.

    Raises:
        UserError: Always, with the command that prints the log of the pod.
    """
    record = launch.refresh(folder)
    raise UserError(
        "The Kubeflow Pipelines client cannot read the logs of a run: its pods have them.",
        setting="RUN",
        value=record.run_id,
        fix=launch.log_command(folder, record, step) + (" -f" if follow else ""),
    )
