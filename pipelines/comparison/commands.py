"""`slipway compare`, `runs reproduce` and `runs diagnose`: how runs differ, and where the time of one went."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from slipway.core.errors import UserError
from slipway.core.paths import short
from slipway.pipelines.cli.existing_runs import Sort, Where, selected
from slipway.pipelines.cli.start import Outcome
from slipway.pipelines.cli.targets import show_warnings
from slipway.pipelines.options import Json, Run, complete_run
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.terminal import EXIT_FAILED, console, error_console, print_json, user_errors

# Runs that `compare` shows in the terminal.
SHOWN = 20


@user_errors
def compare(
    run_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Runs; default: all.", autocompletion=complete_run)
    ] = None,
    where: Where = None,
    sort: Sort = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: runs/comparison.html.")
    ] = None,
) -> None:
    """Write a page that compares runs: metrics, settings that differ, learning curves, data, code and time."""
    from slipway.pipelines.cli import display
    from slipway.pipelines.comparison.page import write
    from slipway.pipelines.runs import record as runs

    rows = selected(where, sort, map(runs.find, run_ids) if run_ids else runs.folders())
    if not rows:
        raise UserError("No run meets the conditions." if where else "There are no runs yet.", fix="slipway list")
    page = write(rows, output)
    for line in display.run_lines([row.record for row in rows[:SHOWN]], [row.settings for row in rows[:SHOWN]]):
        console.print(line)
    console.print(f"\npage: {short(str(page))}")


@user_errors
def reproduce(
    run_id: Run = "latest",
    verify: Annotated[bool, typer.Option("--verify", help="Exit with 1 unless data and weights are equal.")] = False,
    as_json: Json = False,
) -> None:
    """Prepare and train a run again from its record, and compare data, checkpoints and weights bit for bit."""
    from slipway.pipelines.api import starting
    from slipway.pipelines.comparison import reproduction
    from slipway.pipelines.config.config import load
    from slipway.pipelines.runs import record as runs
    from slipway.pipelines.selection import selection

    original = selection.read(runs.find(run_id))
    record, platform = original.record, platform_of(original.record.platform)
    if not platform.trains_here or record.rehearsal or record.step("train").status != "succeeded":
        raise UserError(
            f"Run {record.run_id} cannot be reproduced: only runs that have trained on this machine can.",
            setting="RUN",
            value=f"{record.run_id} ({platform.title}, {record.status})",
            fix="slipway list --where status=succeeded",
        )
    outcome = Outcome(error_console if as_json else console, as_json=False)
    configuration = load(original.folder.configuration_file)
    show_warnings(starting.check(configuration, record.platform))
    with starting.new(
        configuration, record.platform, outcome.say, runner=record.runner, last="train", arguments=record.arguments
    ) as ready:
        outcome.of_local(ready)
    result = reproduction.compare(original, selection.read(ready.folder))
    if as_json:
        print_json(result.as_dict())
    for comparison in result.compared:
        mark = {True: "[green]=[/]", False: "[red]≠[/]", None: "[dim]–[/]"}[comparison.equal]
        outcome.shown.print(f"{mark} {comparison.name:<12} {escape(comparison.detail)}")
    outcome.say(f"{result.again} is {'equal to' if result.equal else 'not equal to'} {result.original}")
    if not result.equal:
        outcome.say("likely cause: " + ("; ".join(result.causes) or "an operation that is not deterministic"))
    if verify and not result.equal:
        raise typer.Exit(EXIT_FAILED)


@user_errors
def diagnose(
    run_id: Run = "latest",
    try_it: Annotated[
        bool, typer.Option("--try", help="Train some steps with and without the proposed change, and compare.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say where the time of a training on this machine went, and the setting that would save most."""
    from slipway.pipelines.api import starting
    from slipway.pipelines.comparison import diagnosis
    from slipway.pipelines.config.config import load
    from slipway.pipelines.runs import record as runs
    from slipway.pipelines.selection import selection

    row = selection.read(runs.find(run_id))
    diagnosed = diagnosis.of_run(row)
    outcome = Outcome(error_console if as_json else console, as_json=False)
    outcome.say(diagnosed.text)
    tried: list[float] = []
    if try_it:
        if diagnosed.change is None:
            raise UserError("No setting is known that would save time, so none is tried.", fix="slipway list")
        few = diagnosis.shortened(load(row.folder.configuration_file))
        first = "prepare_data" if diagnosed.change.startswith("data.") else "train"
        for changes in ([], [diagnosed.change]):
            with starting.rerun(row.folder, None, first, [*few, *changes], None, last="train") as ready:
                outcome.of_local(ready)
            tried.append(diagnosis.seconds_for(selection.read(ready.folder), diagnosis.trained_examples(row)))
        outcome.say(
            f"with --set {shlex.quote(diagnosed.change)}, it would take {tried[1]:.1f} s instead of {tried[0]:.1f} s, "
            f"by at most {diagnosis.TRIED_STEPS} steps of each"
        )
    if as_json:
        print_json({**diagnosed.as_dict(), "tried": tried})
