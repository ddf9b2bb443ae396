"""A run's record as it is now, and a run elsewhere watched until it has ended."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from slipway.pipelines.cli.terminal import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REJECTED, error_console
from slipway.pipelines.platforms import remote


def current(folder: Any) -> Any:
    """A run's record, brought up to date where the run is on another platform."""
    record = folder.read()
    elsewhere = remote(record.platform)
    return elsewhere.current(folder, error_console) if elsewhere else record


def watch_and_exit(folder: Any, shown: Console, *, as_json: bool, require_promotion: bool) -> None:
    """Show a run on another platform until it has ended, and exit with the code that tells how it went."""
    from slipway.pipelines.cli import display

    elsewhere: Any = remote(folder.read().platform)
    record = elsewhere.watch(folder, shown)
    if record is None:
        shown.print(display.how_to_watch_on(folder.read()), highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED)
    exit_as_it_went(folder, record, shown, as_json=as_json, require_promotion=require_promotion)


def exit_as_it_went(folder: Any, record: Any, shown: Console, *, as_json: bool, require_promotion: bool) -> None:
    """Show how a run on another platform ended, and exit with the code that tells it."""
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


def show_failure(record: Any) -> NoReturn:
    """Show why a run failed and the command that takes it further, and exit."""
    from slipway.pipelines.cli import display

    error_console.print(f"[red]error:[/] {escape(display.explanation(record))}", highlight=False, soft_wrap=True)
    command = display.next_command(record)
    if command and (record.error is None or command not in (record.error.fix or "")):
        error_console.print(f"  then: {command}", highlight=False, soft_wrap=True)
    raise typer.Exit(EXIT_FAILED)
