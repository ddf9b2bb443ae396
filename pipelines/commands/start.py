"""What starts a run, or goes on with one: `slipway run` and `slipway rehearse`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from pipelines.commands.checks import check_configuration, check_runner
from pipelines.commands.options import DEFAULT_CONFIGURATION, Configuration, Hardware, Json, Overrides, Runner, Target
from pipelines.commands.watching import current, watch_and_exit
from pipelines.platforms import remote
from pipelines.terminal import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REJECTED, console, error_console, user_errors
from trainer.errors import UserError


@user_errors
def run(
    config: Configuration = DEFAULT_CONFIGURATION,
    target: Annotated[Target, typer.Option(help="Where to run.")] = Target.local,
    hardware: Hardware = None,
    overrides: Overrides = None,
    runner: Annotated[
        Runner, typer.Option(help="Steps as processes, or in containers (DOCKER_HOST).")
    ] = Runner.process,
    resume: Annotated[
        str | None, typer.Option(help="Go on with this run (its id, or latest) where it stopped.")
    ] = None,
    require_promotion: Annotated[bool, typer.Option(help="Exit with 3 when the gate rejects the model.")] = False,
    wait: Annotated[bool, typer.Option(help="On Vertex AI and Kubeflow: watch until it has ended.")] = True,
    check: Annotated[
        bool, typer.Option(help="On Vertex AI: look at the project first, as slipway doctor does.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Run the whole pipeline: prepare data, train, evaluate, register."""
    from pipelines import runs
    from pipelines.config import load
    from pipelines.platforms.local import launch

    if resume:
        if overrides or hardware:
            raise UserError(
                "A run goes on with the settings that it was started with.",
                setting="--set" if overrides else "--hardware",
                value=overrides or hardware,
                mend=f"slipway run --resume {resume}, or start a new run without --resume",
            )
        folder = runs.find(resume)
        if remote(folder.read().platform):
            _resumable(current(folder))
            _run_remotely(
                remote(folder.read().platform), folder, wait=wait, as_json=as_json, require_promotion=require_promotion
            )
            return
        configuration = load(folder.configuration_file)
        record = _resumable(folder.read())
        check_runner(runner, Runner(record.runner), f"the run {record.run_id}")
    else:
        configuration = load(config, overrides or (), hardware)
        check_runner(runner, runner if target is Target.local else Runner.process, f"a run on {target.value}")
        check_configuration(configuration, target, submitting=check)
        if elsewhere := remote(target.value):
            _run_remotely(elsewhere, configuration, wait=wait, as_json=as_json, require_promotion=require_promotion)
            return
        folder = runs.create(configuration)
        record = launch.new_record(folder, configuration, rehearsal=False, runner=runner.value)
    _run_and_exit(folder, configuration, record, as_json=as_json, require_promotion=require_promotion)


@user_errors
def rehearse(
    config: Configuration = DEFAULT_CONFIGURATION,
    hardware: Hardware = None,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=1, help="How many training steps.")] = 20,
    as_json: Json = False,
) -> None:
    """Try a worker layout for a few steps on this machine; nothing is registered."""
    from pipelines import runs
    from pipelines.config import load
    from pipelines.platforms.local import launch

    if module := load(config, overrides or (), hardware).train.module:
        raise UserError(
            "A training module of your own can not be shortened to a few steps.",
            setting="train.module",
            value=module,
            allowed="in a run; a rehearsal is for Slipway's trainer",
            mend="slipway run with the same options, and train.arguments that make the module stop early",
        )
    few = [f"train.steps={steps}", f"train.steps_per_call={max(1, steps // 2)}", "evaluate.gate.minimum=null"]
    configuration = load(config, [*(overrides or ()), *few], hardware)
    check_configuration(configuration, Target.local, rehearsal=True)
    folder = runs.create(configuration)
    record = launch.new_record(folder, configuration, rehearsal=True)
    _run_and_exit(folder, configuration, record, as_json=as_json, require_promotion=False)


def _resumable(record: Any) -> Any:
    """The record of a run that can go on."""
    if record.status == "running":
        raise UserError(f"The run {record.run_id} is still running.", mend=f"slipway status {record.run_id}")
    if record.status == "succeeded":
        raise UserError(f"The run {record.run_id} has succeeded: nothing is left to do.", mend="slipway run")
    return record


def _run_remotely(elsewhere: Any, given: Any, *, wait: bool, as_json: bool, require_promotion: bool) -> None:
    """Submit a configuration, or a run's folder again; watch it; exit with the code that tells how it went."""
    from pipelines.runs import RunFolder

    shown = Console(stderr=True) if as_json else console
    begin = elsewhere.resume if isinstance(given, RunFolder) else elsewhere.start
    try:
        folder, record = begin(given, shown)
    except UserError as error:
        error_console.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    if wait:
        watch_and_exit(folder, shown, as_json=as_json, require_promotion=require_promotion)
        return
    if as_json:
        sys.stdout.write(folder.record_file.read_text())
    shown.print(f"  watch: slipway status --follow {record.run_id}", highlight=False, soft_wrap=True)


def _run_and_exit(folder: Any, configuration: Any, record: Any, *, as_json: bool, require_promotion: bool) -> None:
    """Run, show it, and exit with the code that tells how it went."""
    from pipelines import display
    from pipelines.platforms.local import launch

    shown = Console(stderr=True) if as_json else console
    kind = "rehearsal" if record.rehearsal else "run"
    shown.print(
        f"{kind} {folder.run_id} on {configuration.hardware}, logs in {folder.logs}", highlight=False, soft_wrap=True
    )
    with display.RunDisplay(shown) as watcher:
        record = launch.run(folder, configuration, record, watcher)
    if as_json:
        sys.stdout.write(folder.record_file.read_text())
    if record.status == "cancelled":
        shown.print(f"stopped; go on with: slipway run --resume {record.run_id}", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED)
    if record.status == "failed":
        error_console.print(f"[red]error:[/] {escape(display.explanation(record))}", highlight=False, soft_wrap=True)
        go_on = f"slipway run --resume {record.run_id}"
        if record.error is None or go_on not in (record.error.mend or ""):
            error_console.print(f"  go on: {go_on}", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED)
    if record.rehearsal:
        ended = display.rehearsal_summary(record, configuration.parsed_hardware, configuration.train.optimizer_kind)
        shown.print(ended, highlight=False)
        return
    shown.print(display.summary(record), highlight=False)
    if require_promotion and record.verdict and record.verdict["decision"] != "promote":
        raise typer.Exit(EXIT_REJECTED)
