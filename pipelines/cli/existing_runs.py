"""Existing runs: `slipway status`, `list`, `logs`, `explain` and `cancel`, and watching runs until they end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from slipway.core import dataclass_json
from slipway.core.errors import UserError, lowered
from slipway.pipelines.options import Json, Run
from slipway.pipelines.platforms.table import platform_of, remote
from slipway.pipelines.terminal import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_REJECTED,
    console,
    error_console,
    interrupted,
    print_error,
    print_json,
    printable,
    say,
    user_errors,
)

# Runs that `slipway list` shows unless asked for all.
MAX_LISTED = 20

if TYPE_CHECKING:
    from slipway.pipelines.runs.record import RunFolder, RunRecord
    from slipway.pipelines.selection.selection import Row


@user_errors
def status(
    run_id: Run = "latest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch a run until it ends.")] = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="Show where the seconds of a local run went, by step and phase.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Show all runs that are running, on any platform, and their cost.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a run's steps, result and error."""
    from slipway.pipelines.api import starting
    from slipway.pipelines.cli import display
    from slipway.pipelines.runs import progress, remaining
    from slipway.pipelines.runs import record as runs

    if every:
        _show_running(as_json=as_json)
        return
    folder = runs.find(run_id)
    if follow and folder.read().status == "running":
        shown = error_console if as_json else console
        watch_and_exit(folder, shown, as_json=as_json, require_promotion=False)
        return
    record = current(folder)
    if timings:
        from slipway.pipelines.runs.timings import of_run

        rows = of_run(folder, record)
        if as_json:
            print_json([asdict(row) for row in rows])
        else:
            console.print(display.timings_table(rows))
        return
    if as_json:
        print_record(record)
        return
    for step in record.steps:
        console.print(progress.step_line(step, judged=not record.rehearsal))
    console.print(
        display.summary(record, remaining.lines(folder, record, lambda: starting.cost_so_far(folder, record)))
    )
    if record.error:
        console.print(f"\n{escape(display.explanation(record, with_traceback=False))}")


def _show_running(*, as_json: bool) -> None:
    """Show all runs that are running, and their cost per hour."""
    from slipway.pipelines.api.running import running
    from slipway.pipelines.cli import display
    from slipway.pipelines.runs import record as runs

    active = list(running(runs.folders(), say))
    if as_json:
        print_json([run.as_dict() for run in active])
    elif active:
        for line in display.running_lines(active):
            console.print(line)
    else:
        console.print("No run of this folder is running, and no model is deployed by its files.")


Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="CONDITION", help="Only runs with, e.g., 'accuracy>0.97'. Can be repeated."),
]
Sort = Annotated[
    str | None, typer.Option("--sort", metavar="NAME", help="A metric or setting; -accuracy: the highest first.")
]


@user_errors
def list_(
    where: Where = None,
    sort: Sort = None,
    every: Annotated[bool, typer.Option("--all", help=f"List all runs, not only the first {MAX_LISTED}.")] = False,
    as_json: Json = False,
) -> None:
    """List runs, newest first, with the settings that differ between them."""
    from slipway.pipelines.cli import display
    from slipway.pipelines.runs import record as runs

    folders = list(runs.folders())
    is_short = not (every or where or sort)  # then, the others need not be read
    rows = selected(where, sort, folders[:MAX_LISTED] if is_short else folders)
    more = len(folders) - MAX_LISTED if is_short else len(rows) - MAX_LISTED
    rows = rows if every else rows[:MAX_LISTED]
    records, configurations = [row.record for row in rows], [row.settings for row in rows]
    if as_json:
        print_json([record.as_dict() for record in records])
    elif not records:
        none = "No run meets the conditions." if where else "No runs yet. To start one: slipway run"
        console.print(none)
    else:
        for line in display.run_lines(records, configurations):
            console.print(line)
    if more > 0 and not every:
        error_console.print(f"{more:,} more run{'s' * (more > 1)}: --all")


def selected(where: list[str] | None, sort: str | None, folders: Iterable[RunFolder]) -> list[Row]:
    """Return the runs in these folders that meet the conditions, without those whose record cannot be read."""
    from slipway.pipelines.selection import selection

    rows = []
    for folder in folders:
        try:
            rows.append(selection.read(folder, current(folder)))
        except UserError as error:
            error_console.print(f"skipped: {escape(lowered(error.message))}")
    return selection.described(selection.select(rows, where or (), sort))


@user_errors
def open_(run_id: Run = "latest") -> None:
    """Open the report of a run in a browser."""
    import webbrowser

    from slipway.pipelines.runs import record as runs

    record = current(runs.find(run_id))
    if record.report is None or not Path(record.report).is_file():
        raise UserError(
            f"Run {record.run_id} has no report on this machine; its status is {record.status}.",
            fix=f"slipway status {record.run_id}",
        )
    page = Path(record.report)
    opened = webbrowser.open(page.absolute().as_uri())
    console.print(f"{'opened' if opened else 'there is no browser here; open'} {page}")


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
    count = 0
    for count, line in enumerate(_log_lines(folder, step, follow=follow, raw=raw), 1):  # noqa: B007
        print(shown(line), flush=follow)
    if not count:
        state, of = folder.read().status, f"the step {step} of run" if step else "run"
        say(f"{of} {folder.run_id} has no log lines{' yet' if state == 'running' else ''}; its status is {state}")


def _log_lines(folder: RunFolder, step: str | None, *, follow: bool, raw: bool) -> Iterator[str]:
    return platform_of(folder.read().platform).log_lines(folder, step, follow=follow, raw=raw)


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
        sys.stdout.write(dataclass_json.text(record.error) + "\n")
    else:
        console.print(escape(display.explanation(record)))
        if raw and record.error:
            for line in _log_lines(folder, record.error.step or "pipeline", follow=False, raw=True):
                print(line)
    if record.status == "failed":
        raise typer.Exit(EXIT_FAILED)


@user_errors
@interrupted("the run may be stopping; slipway status RUN shows it")
def cancel(run_id: Run = "latest", as_json: Json = False) -> None:
    """Stop a run. Finished steps are kept; slipway run --resume continues it."""
    from slipway.pipelines.api import starting
    from slipway.pipelines.runs import record as runs

    folder = runs.find(run_id)
    record = starting.cancel(folder, say)
    if as_json:
        print_record(record)
    else:
        console.print(f"{folder.run_id}: {record.status}")


def current(folder: RunFolder) -> RunRecord:
    """Return a run's record, updated from its platform if the run is remote; if that fails, warn."""
    from slipway.pipelines.api import starting

    return starting.current(folder, say)


def watch_and_exit(folder: RunFolder, shown: Console, *, as_json: bool, require_promotion: bool) -> None:
    """Watch a run until it ends, and exit with the code for its outcome."""
    from slipway.pipelines.runs.continuing import how_to_watch_on
    from slipway.pipelines.runs.observers import observers
    from slipway.pipelines.runs.progress import RunDisplay

    try:
        with RunDisplay(shown) as watcher:
            record = platform_of(folder.read().platform).watch(folder, watcher)
    except KeyboardInterrupt:
        shown.print(how_to_watch_on(folder.read()))
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if remote(record.platform):  # the process that executes a run on this machine has observers, too
        for observer in observers():
            observer.ended_elsewhere(folder, record, say)
    exit_as_it_went(record, shown, as_json=as_json, require_promotion=require_promotion)


def print_record(record: RunRecord) -> None:
    """Print a run's record as JSON."""
    sys.stdout.write(dataclass_json.text(record.as_dict()) + "\n")


def exit_as_it_went(record: RunRecord, shown: Console, *, as_json: bool, require_promotion: bool) -> None:
    """Show how a run ended, and exit with the code for its outcome."""
    from slipway.pipelines.cli import display

    if as_json:
        print_record(record)
    if record.status == "failed":
        show_failure(record)
    shown.print(display.summary(record))
    if record.status in ("cancelled", "pruned"):
        raise typer.Exit(EXIT_INTERRUPTED)
    if require_promotion and record.is_rejected:
        raise typer.Exit(EXIT_REJECTED)


def show_failure(record: RunRecord) -> NoReturn:
    """Show why a run failed and the command to continue it, and exit."""
    from slipway.pipelines.cli import display
    from slipway.pipelines.runs.continuing import next_command

    print_error(display.explanation(record))
    command = next_command(record)
    if command and (record.error is None or command not in (record.error.fix or "")):
        error_console.print(f"  then: {command}")
    raise typer.Exit(EXIT_FAILED)
