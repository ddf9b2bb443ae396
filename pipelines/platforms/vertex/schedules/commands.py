"""`slipway schedule …`: compare the schedules on Vertex AI with the files, and apply the files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from slipway.pipelines.options import Json
from slipway.pipelines.terminal import command_group, interrupted, print_results, say, user_errors

if TYPE_CHECKING:
    from slipway.pipelines.platforms.vertex.schedules.service import Schedules

app = command_group("Create, change and delete Vertex AI schedules from the files in configs/schedules.")

CHANGED = "schedules may have been changed; slipway schedule list shows them"
Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="Schedule name: the file name without .yaml. Default: all schedules."),
]


def _schedules() -> type[Schedules]:
    from slipway.pipelines.platforms.vertex.schedules.service import Schedules  # imports much

    return Schedules


@app.command("list")
@user_errors
def list_schedules(as_json: Json = False) -> None:
    """List the schedules with their state, and whether Vertex AI started or refused the last run."""
    print_results(_schedules().observe(), as_json=as_json)


@app.command()
@user_errors
def diff(name: Name = None, as_json: Json = False) -> None:
    """Compare the schedules on Vertex AI with the files, field by field."""
    print_results(_schedules().compare(say, name), as_json=as_json)


@app.command()
@user_errors
@interrupted(CHANGED)
def apply(name: Name = None, as_json: Json = False) -> None:
    """Create, update or replace the schedules on Vertex AI to match the files."""
    say("compiling what the schedules run")
    print_results(_schedules().apply(sys.stderr, say, name), as_json=as_json)


@app.command()
@user_errors
@interrupted(CHANGED)
def pause(name: Name = None, as_json: Json = False) -> None:
    """Pause a schedule: it starts no new runs. Runs in progress continue."""
    print_results(_schedules().steer(name, "paused"), as_json=as_json)


@app.command()
@user_errors
@interrupted(CHANGED)
def resume(
    name: Name = None,
    catch_up: Annotated[bool, typer.Option("--catch-up", help="Also start the runs that were missed.")] = False,
    as_json: Json = False,
) -> None:
    """Resume a paused schedule."""
    print_results(_schedules().steer(name, "active", catch_up=catch_up), as_json=as_json)


@app.command()
@user_errors
@interrupted(CHANGED)
def delete(
    name: Name = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Delete schedules on Vertex AI. Their files and runs are kept."""
    print_results(_schedules().remove(name, say, yes=yes), as_json=as_json)
