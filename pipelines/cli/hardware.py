"""`slipway hardware`: list hardware, or show what one choice resolves to."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipway.core.errors import UserError
from slipway.pipelines.options import Configuration, Json, Overrides, configured
from slipway.pipelines.terminal import console, error_console, print_json, user_errors
from slipway.trainer.engines.table import ENGINES

if TYPE_CHECKING:
    from slipway.core.values import JsonObject
    from slipway.pipelines.config.config import RunConfig
    from slipway.trainer.engines.ahead import Answer


@user_errors
def hardware(
    choice: Annotated[
        str | None, typer.Argument(metavar="[CHOICE]", help="One choice, such as l4x4*2; default: list all.")
    ] = None,
    region: Annotated[
        str | None, typer.Option(metavar="REGION", help="Only hardware available in this region.")
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option(metavar="KIND", help="Only this kind: cpu, t4, a100, tpu-v5e and others.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="ENGINE", help=f"Only hardware that this engine supports: {', '.join(ENGINES)}."),
    ] = None,
    config: Configuration = None,
    overrides: Overrides = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare the time and price of a configuration's training on all.")
    ] = False,
    spot: Annotated[bool, typer.Option("--spot", help="With --compare, Spot machines.")] = False,
    max_replicas: Annotated[
        int, typer.Option("--max-replicas", min=1, metavar="N", help="With --compare, replicas at most.")
    ] = 4,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --compare, only what trains in this time, such as 6h.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="DOLLARS", min=0, help="With --compare, only what costs at most as much.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="With --compare, the page to write.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the available hardware, or show what one choice resolves to or why it is refused.

    With CHOICE and --config, the training step is compiled for it: its memory, the largest batch, the least time. With
    --compare, all hardware is compared for a configuration: whether it fits, how long the training takes, what it
    costs, and what limits it. Before anything runs, the step is compiled for GPUs and TPUs and timed on this CPU.
    """
    if compare:
        limits = {
            "region": region, "accelerator": accelerator, "spot": spot, "max_replicas": max_replicas,
            "deadline": deadline, "budget": budget,
        }  # fmt: skip
        _compare(choice, configured(None, config, overrides), limits, output, as_json=as_json)
        return
    _check_alone({"--spot": spot, "--deadline": deadline, "--budget": budget, "--output": output})
    from slipway.pipelines.hardware import command

    step = _compiled(choice, config, overrides or ()) if choice and config else None
    if as_json:
        kinds, facts = command.listing, command.describe
        listing = kinds(region, accelerator, engine) if choice is None else facts(choice, region, engine)
        if step is not None and isinstance(listing, dict):
            listing["compiled"] = step[0].model_dump()
        print_json(listing)
    elif choice is None:
        command.show_list(console, region, accelerator, engine)
    else:
        command.show_choice(console, choice, region, engine, step[1] if step else ())


def _compare(choice: str | None, config: RunConfig, limits: JsonObject, output: Path | None, *, as_json: bool) -> None:
    from slipway import extensions

    if choice is not None:
        raise UserError(
            f"--compare compares all hardware, and {choice} is one choice.",
            setting="CHOICE",
            value=choice,
            fix="slipway hardware --compare, with --accelerator for one kind",
        )
    comparisons = extensions.references("comparison")
    if not comparisons:
        raise UserError("No extension compares hardware.", setting="--compare", value=True, fix="slipway hardware")
    extensions.load(comparisons[0])(config, limits, output, as_json=as_json)


def _check_alone(options: dict[str, object]) -> None:
    """Refuse options that mean nothing without --compare."""
    for name, value in options.items():
        if value:
            typed = name if value is True else f"{name} {shlex.quote(str(value))}"
            raise UserError(f"{name} applies only with --compare.", setting=name, fix=f"--compare {typed}")


def _compiled(choice: str, config: Path, overrides: Iterable[str]) -> tuple[Answer, list[str]]:
    """Compile a configuration's step for accelerators; return what their compiler found, and that as sentences.

    Raises:
        UserError: It cannot be compiled without a compiler for it or prepared data, or does not fit.
    """
    from slipway.pipelines.config.config import load
    from slipway.pipelines.doctor.configuration import prepared_folder
    from slipway.pipelines.hardware import compiled

    configuration = load(config, overrides, choice)
    hardware, folder = configuration.training_hardware, prepared_folder(configuration)
    if why := compiled.missing(hardware, configuration.train.engine):
        raise UserError(
            f"The step cannot be compiled here: {why}.",
            setting="CHOICE",
            value=choice,
            allowed="an accelerator with a compiler for it",
        )
    if configuration.model is None or folder is None:
        raise UserError(
            "The step cannot be compiled before the data are prepared, and a program's own one cannot at all.",
            setting="--config",
            value=str(config),
            fix=f"slipway rehearse -c {shlex.quote(str(config))} --hardware '{choice}'",
        )
    error_console.print(f"compiling the step for {compiled.title(hardware)}, up to two minutes")
    job = compiled.job_of(configuration.model, configuration.train, folder)
    answer = compiled.compiled(hardware, job, largest=True)
    return answer, compiled.sentences(hardware, job, answer, steps=job.plan.steps)
