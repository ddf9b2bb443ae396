"""Starting and resuming runs: `slipway run` and `slipway rehearse`."""

from __future__ import annotations

import json
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import click
import typer
from rich.markup import escape

from slipway.core.errors import UserError
from slipway.pipelines.cli.existing_runs import current, exit_as_it_went, show_failure, watch_and_exit
from slipway.pipelines.cli.targets import Target, check_configuration, check_runner_on
from slipway.pipelines.options import (
    Configuration,
    ConfigurationFile,
    Hardware,
    Json,
    Overrides,
    Runner,
    StepRunner,
    Timings,
    check_runner,
    complete_run,
    configuration_path,
)
from slipway.pipelines.platforms.base import Platform, RemotePlatform
from slipway.pipelines.platforms.table import DEFAULT, platform_of, remote
from slipway.pipelines.terminal import EXIT_INTERRUPTED, EXIT_REJECTED, console, error_console, user_errors

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.runs.record import RunFolder, RunRecord


@user_errors
def run(
    file: ConfigurationFile = None,
    config: Configuration = None,
    target: Target = DEFAULT,
    hardware: Hardware = None,
    overrides: Overrides = None,
    runner: StepRunner = Runner.process,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Continue this run (its id, or latest).", autocompletion=complete_run),
    ] = None,
    require_promotion: Annotated[
        bool,
        typer.Option(
            "--require-promotion", help="Exit with 3 unless the model is promoted, or is the champion, unchanged."
        ),
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Submit a run to Vertex AI or Kubeflow without watching it.")
    ] = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Submit without checking the project on Vertex AI first.")
    ] = False,
    timings: Timings = False,
    as_json: Json = False,
) -> None:
    """Run the whole pipeline: prepare data, train, evaluate, register."""
    from slipway.pipelines.config.config import load

    wait = not no_wait
    if timings and not platform_of(target).trains_here:
        raise UserError(
            f"--timings applies only to runs on this machine, not to a run on {target}.",
            setting="--timings",
            fix="remove --timings",
        )
    if resume is not None:
        if given := file or config:
            raise UserError(
                "A resumed run uses its stored configuration.", setting="-c", value=str(given), fix=f"remove {given}"
            )
        from slipway.pipelines.runs import record as runs

        folder = runs.find(resume)
        click.get_current_context().with_resource(folder.held())
        record = _resumable(current(folder), changed=bool(overrides))
        configuration = _resumed_configuration(folder, record, overrides or [], hardware)
        if elsewhere := remote(record.platform):
            _run_remotely(elsewhere, folder, wait=wait, as_json=as_json, require_promotion=require_promotion)
            return
        if platform_of(record.platform).builds_trainer:  # its settings may have changed, and its machines cost money
            check_configuration(configuration, record.platform)
        check_runner(runner, Runner(record.runner), f"the run {record.run_id}")
        if record.runner == Runner.docker:
            from slipway.pipelines.platforms.local.containers import docker_client

            with docker_client():
                pass
    else:
        configuration = load(configuration_path(file, config), overrides or (), hardware)
        check_runner_on(target, runner)
        check_configuration(configuration, target, runner=runner, submitting=not no_check)
        if elsewhere := remote(target):
            _run_remotely(elsewhere, configuration, wait=wait, as_json=as_json, require_promotion=require_promotion)
            return
        from slipway.pipelines.platforms.local import launch
        from slipway.pipelines.runs import record as runs

        folder = runs.create(configuration)
        click.get_current_context().with_resource(folder.held())
        record = launch.new_record(folder, configuration, runner=runner.value, platform=target)
        folder.write(record)
    if platform_of(record.platform).builds_trainer and not folder.image_file.exists():
        _build_trainer(folder, configuration, platform_of(record.platform), as_json=as_json)
    _run_and_exit(folder, configuration, record, as_json=as_json, require_promotion=require_promotion, timings=timings)


@user_errors
def rehearse(
    file: ConfigurationFile = None,
    config: Configuration = None,
    hardware: Hardware = None,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=1, metavar="COUNT", help="Number of training steps.")] = 20,
    as_json: Json = False,
) -> None:
    """Try a hardware layout on this machine for a few training steps."""
    from slipway.pipelines.config.config import load
    from slipway.trainer.stages import shortened

    path = configuration_path(file, config)
    train = load(path, overrides or (), hardware).train
    few = ["evaluate.gate.minimum=null", "evaluate.gate.maximum=null"]
    if train.program is None:  # slipway.training counts a program's steps
        few.append(
            f"train.stages={json.dumps(shortened(train.stages, steps))}" if train.stages else f"train.steps={steps}"
        )
        few.append(f"train.steps_per_call={max(1, steps // 2)}")
    configuration = load(path, [*(overrides or ()), *few], hardware)
    check_configuration(configuration, DEFAULT, rehearsal=True)
    from slipway.pipelines.platforms.local import launch
    from slipway.pipelines.runs import record as runs

    folder = runs.create(configuration)
    click.get_current_context().with_resource(folder.held())
    record = launch.new_record(folder, configuration, rehearsal=steps)
    folder.write(record)
    _run_and_exit(folder, configuration, record, as_json=as_json, require_promotion=False)


def _resumable(record: RunRecord, *, changed: bool) -> RunRecord:
    """Return `record`; raise UserError if its run is still running, or has succeeded and nothing changes."""
    if record.status == "running":
        raise UserError(f"Run {record.run_id} is still running.", fix=f"slipway status {record.run_id}")
    if record.status == "succeeded" and (record.rehearsal or not changed):
        raise UserError(f"Run {record.run_id} has already succeeded.", fix="slipway run")
    return record


def _resumed_configuration(
    folder: RunFolder, record: RunRecord, overrides: list[str], hardware: str | None
) -> RunConfig:
    """Store and return a resumed configuration with `overrides`, which must not change what the weights depend on."""
    from slipway.core.atomic import replace_file
    from slipway.pipelines.cli.display import is_changeable, new_run_with
    from slipway.pipelines.config.config import load

    trained = record.step("train").status == "succeeded"
    names = [text.partition("=")[0] for text in overrides]
    fixed = [
        f"--set {shlex.quote(text)}"
        for name, text in zip(names, overrides, strict=True)
        if not is_changeable(name) or (trained and name == "train.export")  # exported already
    ]
    if hardware:
        fixed.append(f"--hardware {shlex.quote(hardware)}")
    if fixed:
        raise UserError(
            f"{fixed[0]} cannot be applied to a resumed run: its data and checkpoints depend on the original value.",
            setting=fixed[0].partition(" ")[0],
            value=fixed[0].partition(" ")[2],
            allowed="data.workers, evaluate.*, register.*, train.restarts.* and tpu.*, which do not affect the "
            "weights, and before the model is exported train.export",
            fix=new_run_with(record, " ".join(fixed)),
        )
    configuration = load(folder.configuration_file, overrides)
    if overrides:
        replace_file(folder.configuration_file, configuration.as_yaml().encode())
        record.champion = None  # the registry may have changed
    return configuration


def _run_remotely(
    elsewhere: RemotePlatform, given: RunConfig | RunFolder, *, wait: bool, as_json: bool, require_promotion: bool
) -> None:
    """Submit a configuration, or resubmit a run's folder; watch the run and exit with the code for its outcome."""
    from slipway.pipelines.runs.record import RunFolder

    shown = error_console if as_json else console

    def say(line: str) -> None:
        shown.print(escape(line), highlight=False, soft_wrap=True)

    if isinstance(given, RunFolder):
        folder, record = elsewhere.resume(given, say)
    else:
        folder, record = elsewhere.start(given, say)
    if record.status == "failed":
        exit_as_it_went(folder, record, shown, as_json=as_json, require_promotion=require_promotion)
    if wait:
        watch_and_exit(folder, shown, as_json=as_json, require_promotion=require_promotion)
        return
    if as_json:
        sys.stdout.write(folder.record_file.read_text())
    shown.print(f"  watch: slipway status --follow {record.run_id}", highlight=False, soft_wrap=True)


def _build_trainer(folder: RunFolder, configuration: RunConfig, platform: Platform, *, as_json: bool) -> None:
    """Build the trainer's image, and store its name in the run's folder, which is removed if that fails."""
    from slipway.components.step import WorkFailed
    from slipway.core.atomic import replace_file
    from slipway.pipelines.platforms.local import launch
    from slipway.pipelines.runs import record as runs

    shown = error_console if as_json else console

    def say(line: str) -> None:
        shown.print(escape(line), highlight=False, soft_wrap=True)

    try:
        with (folder.logs / "build_image.log").open("w") as log:
            image = platform.build_images(configuration, log, say, None)["trainer"]
            replace_file(folder.image_file, image.encode())
    except BaseException as error:
        tail = launch.last_lines(folder.logs / "build_image.log")
        runs.discard(folder)
        if isinstance(error, WorkFailed):
            raise UserError(f"{error.message}\n{tail}", fix="see the end of the builder's output above") from None
        raise


def _run_and_exit(
    folder: RunFolder,
    configuration: RunConfig,
    record: RunRecord,
    *,
    as_json: bool,
    require_promotion: bool,
    timings: bool = False,
) -> None:
    from slipway.pipelines.cli import display
    from slipway.pipelines.cli.progress import RunDisplay
    from slipway.pipelines.platforms.local import launch
    from slipway.pipelines.runs.notification import notify

    shown = error_console if as_json else console
    kind = "rehearsal" if record.rehearsal else "run"
    shown.print(
        f"{kind} {folder.run_id} on {configuration.hardware}, logs in {folder.logs}", highlight=False, soft_wrap=True
    )
    with RunDisplay(shown) as watcher:
        record = launch.run(folder, configuration, record, watcher)
    for problem in notify(configuration, record):
        shown.print(f"warning: not everyone was notified: {escape(problem)}", highlight=False, soft_wrap=True)
    if as_json:
        sys.stdout.write(record.as_json())  # the file may be older: it could not be written on a full disk
    if timings:
        from slipway.pipelines.runs.timings import of_run

        shown.print(display.timings_table(of_run(folder, record)), highlight=False)
    if record.status == "cancelled":
        shown.print(f"stopped; to continue: slipway run --resume {record.run_id}", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED)
    if record.status == "failed":
        show_failure(record)
    if record.rehearsal:
        ended = display.rehearsal_summary(record, configuration.parsed_hardware, configuration.train)
        shown.print(ended, highlight=False)
        return
    shown.print(display.summary(record), highlight=False)
    if require_promotion and record.is_rejected:
        raise typer.Exit(EXIT_REJECTED)
