"""Existing runs: `slipway status`, `list`, `logs`, `explain` and `cancel`, and watching remote runs until they end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from slipway.core.errors import UserError, lowered
from slipway.pipelines.options import Json, Run, Timings
from slipway.pipelines.platforms.table import remote
from slipway.pipelines.terminal import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_REJECTED,
    console,
    error_console,
    print_error,
    printable,
    user_errors,
)

if TYPE_CHECKING:
    from slipway.pipelines.runs.record import RunFolder, RunRecord


@user_errors
def status(
    run_id: Run = "latest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch a remote run until it ends.")] = False,
    timings: Timings = False,
    as_json: Json = False,
) -> None:
    """Show a run's steps, result and error."""
    from slipway.pipelines.cli import display
    from slipway.pipelines.runs import record as runs

    folder = runs.find(run_id)
    if follow and remote(folder.read().platform):
        shown = error_console if as_json else console
        watch_and_exit(folder, shown, as_json=as_json, require_promotion=False)
        return
    record = current(folder)
    if timings:
        from slipway.pipelines.runs.timings import of_run

        rows = of_run(folder, record)
        if as_json:
            sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
        else:
            console.print(display.timings_table(rows), highlight=False)
        return
    if as_json:
        sys.stdout.write(record.model_dump_json(indent=2) + "\n")
        return
    for step in record.steps:
        console.print(display.step_line(step, judged=not record.rehearsal), highlight=False, soft_wrap=True)
    console.print(display.summary(record), highlight=False)
    if record.error:
        console.print(f"\n{escape(display.explanation(record, with_traceback=False))}", highlight=False, soft_wrap=True)


@user_errors
def list_(as_json: Json = False) -> None:
    """List all runs, newest first, with the settings that differ between them."""
    from slipway.core.yaml_loader import load_yaml
    from slipway.pipelines.cli import display
    from slipway.pipelines.runs import record as runs

    records, configurations = [], []
    for folder in runs.folders():
        try:
            file = folder.configuration_file
            configuration = load_yaml(file.read_text(), str(file)) if file.is_file() else {}
            records.append(current(folder))
            configurations.append(configuration)
        except UserError as error:
            error_console.print(f"skipped: {escape(lowered(error.message))}", highlight=False, soft_wrap=True)
    if as_json:
        sys.stdout.write(json.dumps([record.model_dump(mode="json") for record in records], indent=2) + "\n")
    elif not records:
        console.print("No runs yet. To start one: slipway run", highlight=False)
    else:
        for line in display.run_lines(records, configurations):
            console.print(line, highlight=False, soft_wrap=True)


@user_errors
def logs(
    run_id: Run = "latest",
    step: Annotated[str | None, typer.Option(metavar="STEP", help="Only this step's log, such as train.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the run ends.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Include the libraries' start-up messages.")] = False,
) -> None:
    """Print a run's logs."""
    from slipway.pipelines.runs import record as runs

    folder = runs.find(run_id)
    shown = printable if sys.stdout.isatty() else str
    for line in _log_lines(folder, step, follow=follow, raw=raw):
        print(shown(line), flush=follow)


def _log_lines(folder: RunFolder, step: str | None, *, follow: bool, raw: bool) -> Iterator[str]:
    from slipway.pipelines.runs import logs

    if elsewhere := remote(folder.read().platform):
        return elsewhere.log_lines(folder, step, follow=follow, raw=raw)
    return logs.read(folder, step, follow=follow, raw=raw)


@user_errors
def explain(
    run_id: Run = "latest",
    raw: Annotated[
        bool, typer.Option("--raw", help="Also print the failed step's whole log, including start-up messages.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Explain why a run failed: step, replica, traceback and fix. Exits with 1 for a failed run."""
    from slipway.pipelines.cli import display
    from slipway.pipelines.runs import record as runs

    folder = runs.find(run_id)
    record = current(folder)
    if as_json:
        sys.stdout.write((record.error.model_dump_json(indent=2) if record.error else "null") + "\n")
    else:
        console.print(escape(display.explanation(record)), highlight=False, soft_wrap=True)
        if raw and record.error:
            for line in _log_lines(folder, record.error.step or "pipeline", follow=False, raw=True):
                print(line)
    if record.status == "failed":
        raise typer.Exit(EXIT_FAILED)


@user_errors
def cancel(run_id: Run = "latest") -> None:
    """Stop a run. Finished steps are kept; slipway run --resume continues it."""
    from slipway.pipelines.runs import record as runs

    folder = runs.find(run_id)
    if elsewhere := remote(folder.read().platform):
        record = current(folder)
        if record.status == "running":
            console.print(f"{record.run_id}: {elsewhere.cancel(folder).status}", highlight=False)
            return
    record = folder.read()
    holder = folder.holder() if record.status == "running" else None
    if holder is None:
        raise UserError(f"Run {record.run_id} is not running; its status is {record.status}.", fix="slipway list")
    if not holder.is_here:
        raise UserError(
            f"Run {record.run_id} is running on {holder.host}.", fix=f"slipway cancel {record.run_id}, on {holder.host}"
        )
    with contextlib.suppress(ProcessLookupError):  # it was killed, and its processes are ending
        os.kill(holder.pid, signal.SIGTERM)
        os.kill(holder.pid, signal.SIGCONT)  # it may have been suspended with Ctrl-Z
    while folder.read().status == "running":
        time.sleep(0.1)
    console.print(f"{record.run_id}: {folder.read().status}", highlight=False)


def current(folder: RunFolder) -> RunRecord:
    """Return a run's record, updated from its platform if the run is remote; if that fails, warn."""
    record = folder.read()
    elsewhere = remote(record.platform)
    if elsewhere is None:
        return record
    try:
        return elsewhere.refresh(folder)
    except UserError as error:
        error_console.print(f"as last seen; {escape(lowered(error.message))}", highlight=False, soft_wrap=True)
        return folder.read()


def watch_and_exit(folder: RunFolder, shown: Console, *, as_json: bool, require_promotion: bool) -> None:
    """Watch a remote run until it ends, and exit with the code for its outcome."""
    from slipway.pipelines.cli.progress import RunDisplay

    elsewhere = remote(folder.read().platform)
    assert elsewhere is not None
    try:
        with RunDisplay(shown) as watcher:
            record = elsewhere.watch(folder, watcher)
    except KeyboardInterrupt:
        run = folder.run_id
        text = f"Run {run} continues in the background.\n  watch:  slipway status --follow {run}\n"
        shown.print(f"{text}  stop:   slipway cancel {run}", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    exit_as_it_went(folder, record, shown, as_json=as_json, require_promotion=require_promotion)


def exit_as_it_went(
    folder: RunFolder, record: RunRecord, shown: Console, *, as_json: bool, require_promotion: bool
) -> None:
    """Show how a remote run ended, and exit with the code for its outcome."""
    from slipway.pipelines.cli import display

    if as_json:
        sys.stdout.write(folder.record_file.read_text())
    if record.status == "failed":
        show_failure(record)
    shown.print(display.summary(record), highlight=False)
    if record.status == "cancelled":
        raise typer.Exit(EXIT_INTERRUPTED)
    if require_promotion and record.is_rejected:
        raise typer.Exit(EXIT_REJECTED)


def show_failure(record: RunRecord) -> NoReturn:
    """Show why a run failed and the command to continue it, and exit."""
    from slipway.pipelines.cli import display

    print_error(display.explanation(record))
    command = display.next_command(record)
    if command and (record.error is None or command not in (record.error.fix or "")):
        error_console.print(f"  then: {command}", highlight=False, soft_wrap=True)
    raise typer.Exit(EXIT_FAILED)
