"""Current run records, and watching remote runs until they end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from slipway.core.errors import UserError
from slipway.pipelines.cli.terminal import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REJECTED, error_console
from slipway.pipelines.platforms.remote import remote

if TYPE_CHECKING:
    from slipway.pipelines.runs.record import RunFolder, RunRecord


def current(folder: RunFolder) -> RunRecord:
    """Return a run's record, updated from its platform if the run is remote; if that fails, warn."""
    record = folder.read()
    elsewhere = remote(record.platform)
    if elsewhere is None:
        return record
    try:
        return elsewhere.refresh(folder)
    except UserError as error:
        error_console.print(f"as last seen; {escape(error.message)}", highlight=False, soft_wrap=True)
        return folder.read()


def watch_and_exit(folder: RunFolder, shown: Console, *, as_json: bool, require_promotion: bool) -> None:
    """Watch a remote run until it ends, and exit with the code for its outcome."""
    from slipway.pipelines.cli import display

    elsewhere = remote(folder.read().platform)
    assert elsewhere is not None
    try:
        with display.RunDisplay(shown) as watcher:
            record = elsewhere.watch(folder, watcher)
    except KeyboardInterrupt:
        shown.print(display.how_to_watch_on(folder.read()), highlight=False, soft_wrap=True)
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
    if require_promotion and record.verdict and record.verdict["decision"] != "promote":
        raise typer.Exit(EXIT_REJECTED)


def show_failure(record: RunRecord) -> NoReturn:
    """Show why a run failed and the command to continue it, and exit."""
    from slipway.pipelines.cli import display

    error_console.print(f"[red]error:[/] {escape(display.explanation(record))}", highlight=False, soft_wrap=True)
    command = display.next_command(record)
    if command and (record.error is None or command not in (record.error.fix or "")):
        error_console.print(f"  then: {command}", highlight=False, soft_wrap=True)
    raise typer.Exit(EXIT_FAILED)
