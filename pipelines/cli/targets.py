"""The option --target, and the warnings of the checks of a run on a platform."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from slipway import extensions
from slipway.core.errors import UserError
from slipway.core.values import spoken
from slipway.pipelines.options import Runner, check_runner
from slipway.pipelines.platforms.table import PLATFORMS, platform_of

if TYPE_CHECKING:
    from slipway.core.values import JsonObject
    from slipway.pipelines.checks import Finding
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.platforms.base import Say

NAMES = list(PLATFORMS)


def target_option(help: str, names: list[str] = NAMES) -> Any:
    """Return the option --target, whose value is one of `names`."""
    return typer.Option("--target", metavar="PLATFORM", click_type=click.Choice(names), help=help)


Target = Annotated[
    str,
    target_option(
        f"Where the run executes: {spoken(NAMES)}. vertex is Vertex AI, which Google calls Agent Platform since 2026."
    ),
]


def show_warnings(findings: Iterable[Finding]) -> None:
    """Show the warnings of the checks of a run."""
    from rich.markup import escape

    from slipway.pipelines.terminal import error_console

    for finding in findings:
        error_console.print(f"[yellow]warning:[/] {escape(finding.check)}: {escape(finding.found)}")


def show_cost(config: RunConfig, target: str, say: Say, trials: int = 1) -> None:
    """Show what a run costs at most, if its training costs anything on its platform."""
    platform = platform_of(target)
    for candidate in platform.candidates(config):
        bill = platform.bill(candidate)
        if bill is not None:
            say(f"cost: {bill.times(trials)}")


def cost_of(config: RunConfig, target: str) -> JsonObject:
    """Return what a run costs at most as JSON: the worst case in US dollars, and the bill of each hardware and region.

    The worst case is None if it is not known, as with sections that cost money besides the training (`unpriced`).
    """
    platform = platform_of(target)
    bills = [platform.bill(candidate) for candidate in platform.candidates(config)]
    free = 0.0 if platform.trains_here else None
    worst = [free if bill is None else bill.worst_case for bill in bills]
    known = [dollars for dollars in worst if dollars is not None]
    unpriced = [row.name for row in extensions.sections() if row.is_billed and getattr(config, row.name) is not None]
    if config.prepared is not None and config.prepared.beam is not None:
        unpriced.append("data.beam")
    return {
        "worst_case": max(known) if len(known) == len(worst) and not unpriced else None,
        "bills": [bill.as_dict() for bill in bills if bill is not None],
        "unpriced": unpriced,
    }


def check_runner_on(target: str, runner: Runner) -> None:
    """Refuse --runner docker for a new run whose replicas are not on this machine, and where no image can be built."""
    if runner is Runner.docker and not extensions.references("image_builder"):
        raise UserError(
            "Containers need an image, and no extension is installed that builds one.",
            setting="--runner",
            value=runner.value,
            fix="remove --runner docker",
        )
    check_runner(runner, runner if platform_of(target).trains_here else Runner.process, f"a run on {target}")
