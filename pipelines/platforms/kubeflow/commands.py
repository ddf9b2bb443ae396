"""Command-line operations for runs on Kubeflow Pipelines."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from slipway.core.errors import UserError
from slipway.pipelines.cli import display
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.platforms.kubeflow import launch
from slipway.pipelines.platforms.kubeflow.checks import settings_of
from slipway.pipelines.runs.record import RunFolder, RunRecord

cancel = launch.cancel


def start(config: RunConfig, shown: Console) -> tuple[RunFolder, RunRecord]:
    """Submit the run and print its address.

    Raises:
        UserError: The configuration is not supported, or the server is unreachable or rejects it.
    """
    return _submitted(*launch.submit(config), shown)


def resume(folder: RunFolder, shown: Console) -> tuple[RunFolder, RunRecord]:
    """Resubmit a failed or cancelled run; with a volume, training resumes from its checkpoint."""
    return _submitted(folder, launch.resume(folder), shown)


def _submitted(folder: RunFolder, record: RunRecord, shown: Console) -> tuple[RunFolder, RunRecord]:
    def say(line: str) -> None:
        shown.print(escape(line), highlight=False, soft_wrap=True)

    settings = settings_of(load(folder.configuration_file))
    say(f"run {record.run_id} on {record.hardware} at {settings.host}, submitted")
    say(f"  console: {record.console}")
    if not settings.registers:
        say("  no model is registered, as kubeflow.volume is not set: it is the artifact `model` of the step train")
    return folder, record


def watch(folder: RunFolder, shown: Console) -> RunRecord | None:
    """Show a run's steps until it ends; None if watching was interrupted. The run continues."""
    try:
        with display.RunDisplay(shown) as watcher:
            return launch.watch(folder, folder.read(), watcher)
    except KeyboardInterrupt:
        return None


def current(folder: RunFolder, warn: Console) -> RunRecord:
    """Return the refreshed record of a run; on failure, warn and return the last known record."""
    try:
        return launch.refresh(folder)
    except UserError as error:
        warn.print(f"as last seen; {escape(error.message)}", highlight=False, soft_wrap=True)
        return folder.read()


def log_lines(folder: RunFolder, step: str | None, *, follow: bool, raw: bool) -> Iterator[str]:  # noqa: ARG001
    """Raise: the Kubeflow Pipelines client has no access to logs.

    Raises:
        UserError: Always, with the command that prints the pod's.
    """
    record = launch.refresh(folder)
    raise UserError(
        "The logs of a run on Kubeflow are its pods', which the server's client does not give.",
        setting="RUN",
        value=record.run_id,
        fix=launch.log_command(folder, record, step) + (" -f" if follow else ""),
    )
