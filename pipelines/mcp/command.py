"""`slipway mcp`: serve a project to an assistant over the Model Context Protocol."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from slipway.core.errors import UserError
from slipway.pipelines.terminal import is_terminal, say, user_errors


@user_errors
def mcp(
    folder: Annotated[
        Path, typer.Option("--folder", metavar="FOLDER", help="The project. Some clients start servers elsewhere.")
    ] = Path(),
    allow_runs: Annotated[
        bool, typer.Option("--allow-runs", help="Offer the tools run and cancel; needs --budget and --max-runs.")
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(min=0, metavar="DOLLARS", help="What all runs of this server may cost in the worst case."),
    ] = None,
    max_runs: Annotated[
        int | None, typer.Option("--max-runs", min=1, metavar="COUNT", help="Number of runs that it may start.")
    ] = None,
) -> None:
    """Serve this project to an assistant over the Model Context Protocol. It reads; runs need --allow-runs."""
    from slipway.pipelines.mcp.allowance import Allowance
    from slipway.pipelines.mcp.server import serve

    _check_limits(budget, max_runs, allow_runs=allow_runs)
    if not folder.is_dir():
        raise UserError(
            f"There is no folder {folder}.", setting="--folder", value=str(folder), allowed="the folder of a project",
            fix=f"slipway init {folder}",
        )  # fmt: skip
    os.chdir(folder)
    allowance = Allowance(budget, max_runs) if budget is not None and max_runs is not None else None
    say(f"serving {Path.cwd()} over stdio" + (f"; runs: {allowance}" if allowance else "; read-only"))
    if is_terminal():
        say("waiting for a client's messages on stdin; Ctrl-C ends it")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a thread waits for stdin, which Python's own handler would wait for
    serve(Path.cwd(), allowance)


def _check_limits(budget: float | None, max_runs: int | None, *, allow_runs: bool) -> None:
    """Refuse runs without both limits, a budget that is no number, and limits without runs.

    Raises:
        UserError: One is missing, or is not used.
    """
    if budget is not None and not math.isfinite(budget):
        raise UserError("The budget is not a number of dollars.", setting="--budget", value=budget, fix="--budget 20")
    limits = {"--budget": budget, "--max-runs": max_runs}
    if allow_runs:
        for option, default in (("--budget", "0"), ("--max-runs", "10")):
            if limits[option] is None:
                note = ", with which only runs on this machine start" if option == "--budget" else ""
                fix = f"{option} {default}{note}"
                raise UserError(f"Runs need a limit: {option} is missing.", setting=option, fix=fix)
    elif used := next((option for option, value in limits.items() if value is not None), None):
        raise UserError(
            f"{used} limits runs, and none are allowed.", setting=used, value=limits[used], fix="add --allow-runs"
        )
