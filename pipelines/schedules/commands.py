"""`slipway schedule …`: compare the schedules on Vertex AI with the files, and apply the files."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from slipway.core.errors import UserError
from slipway.pipelines.cli.options import Json
from slipway.pipelines.cli.terminal import EXIT_INTERRUPTED, command_group, console, is_terminal, say, user_errors

if TYPE_CHECKING:
    from slipway.pipelines.schedules.operations import Result

app = command_group("Create, change and delete Vertex AI schedules from the files in configs/schedules.")

Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="Schedule name: the file name without .yaml. Default: all schedules."),
]


@app.command()
@user_errors
def diff(name: Name = None, as_json: Json = False) -> None:
    """Compare the schedules on Vertex AI with the files, field by field."""
    from slipway.pipelines.schedules import operations

    _show(operations.compare(_names(name), say), as_json=as_json)


@app.command()
@user_errors
def apply(name: Name = None, as_json: Json = False) -> None:
    """Create, update or replace the schedules on Vertex AI to match the files."""
    from slipway.pipelines.schedules import operations

    _show(operations.apply(_names(name), sys.stderr, say), as_json=as_json)


@app.command()
@user_errors
def pause(name: Name = None, as_json: Json = False) -> None:
    """Pause a schedule: it starts no new runs. Runs in progress continue."""
    from slipway.pipelines.schedules import operations

    _show(operations.pause(_names(name)), as_json=as_json)


@app.command()
@user_errors
def resume(
    name: Name = None,
    catch_up: Annotated[bool, typer.Option("--catch-up", help="Also start the runs that were missed.")] = False,
    as_json: Json = False,
) -> None:
    """Resume a paused schedule."""
    from slipway.pipelines.schedules import operations

    _show(operations.resume(_names(name), catch_up=catch_up), as_json=as_json)


@app.command()
@user_errors
def delete(
    name: Name = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Delete schedules on Vertex AI. Their files and runs are kept."""
    from slipway.pipelines.schedules import operations

    doomed = operations.doomed(name)
    for schedule in doomed:
        say(f"{schedule.title}: {schedule.state_text}, {schedule.runs} runs started")
    if doomed and not yes:
        if not is_terminal():
            raise UserError(
                "Deleting requires confirmation, and stdin is not a terminal.",
                setting="--yes",
                value=False,
                fix="--yes",
            )
        if not typer.confirm(f"Delete {'it' if len(doomed) == 1 else f'these {len(doomed)}'}?", err=True):
            raise typer.Exit(EXIT_INTERRUPTED)
    _show(operations.delete(doomed), as_json=as_json)


def _names(name: str | None) -> tuple[str, ...]:
    return () if name is None else (name,)


def _show(results: list[Result], *, as_json: bool) -> None:
    """Print each schedule's differences or actions."""
    if as_json:
        sys.stdout.write(json.dumps([result.as_dict() for result in results], indent=2) + "\n")
        return
    for result in results:
        for line in result.lines():
            console.print(escape(line), highlight=False, soft_wrap=True)
