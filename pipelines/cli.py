"""The command line: `slipway …`. Heavy packages are imported by the commands that need them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from pipelines.platforms import remote
from pipelines.schedules.commands import app as schedule_app
from pipelines.terminal import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REJECTED, console, error_console, user_errors
from trainer.errors import UserError

app = typer.Typer(
    name="slipway",
    help="From a data set to a trained, evaluated, registered model, as one Kubeflow pipeline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(schedule_app, name="schedule")
DEFAULT_CONFIGURATION = Path("configs/digits.yaml")


class Target(StrEnum):
    """Where a run executes."""

    local = "local"
    vertex = "vertex"
    kubeflow = "kubeflow"


class Runner(StrEnum):
    """What the steps of a run on this machine are."""

    process = "process"
    docker = "docker"


Configuration = Annotated[Path, typer.Option("--config", "-c", help="The run's configuration, a YAML file.")]
Hardware = Annotated[str | None, typer.Option("--hardware", help="What trains: cpu, cpu*2, l4x4*2, tpu-v5e-2x4 …")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="One setting: train.batch_size=256. May be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Run = Annotated[str, typer.Argument(help="A run's id, or latest.")]


@app.command()
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
            _resumable(_current(folder))
            _run_remotely(
                remote(folder.read().platform), folder, wait=wait, as_json=as_json, require_promotion=require_promotion
            )
            return
        configuration = load(folder.configuration_file)
        record = _resumable(folder.read())
        _check_runner(runner, Runner(record.runner), f"the run {record.run_id}")
    else:
        configuration = load(config, overrides or (), hardware)
        _check_runner(runner, runner if target is Target.local else Runner.process, f"a run on {target.value}")
        _check(configuration, target, submitting=check)
        if elsewhere := remote(target.value):
            _run_remotely(elsewhere, configuration, wait=wait, as_json=as_json, require_promotion=require_promotion)
            return
        folder = runs.create(configuration)
        record = launch.new_record(folder, configuration, rehearsal=False, runner=runner.value)
    _run_and_exit(folder, configuration, record, as_json=as_json, require_promotion=require_promotion)


@app.command()
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
    _check(configuration, Target.local, rehearsal=True)
    folder = runs.create(configuration)
    record = launch.new_record(folder, configuration, rehearsal=True)
    _run_and_exit(folder, configuration, record, as_json=as_json, require_promotion=False)


def _check(configuration: Any, target: Target, *, rehearsal: bool = False, submitting: bool = False) -> None:
    """Make the doctor's checks that concern a run, before anything is started."""
    from pipelines.doctor import refuse_on_failure
    from pipelines.doctor.check import Subject

    subject = Subject(configuration, target.value, rehearsal=rehearsal, folder=Path.cwd())
    refuse_on_failure(subject, submitting=submitting)


def _check_runner(asked: Runner, taken: Runner, what: str) -> None:
    """Refuse a runner that would not be the run's, and see that a Docker API answers where one is needed."""
    if asked is Runner.docker and taken is not Runner.docker:
        raise UserError(
            f"--runner is for new runs on this machine, not for {what}.", setting="--runner", value="docker"
        )
    if taken is Runner.docker:
        from pipelines.platforms.local.containers import docker_client

        with docker_client():
            pass


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
        _watch_and_exit(folder, shown, as_json=as_json, require_promotion=require_promotion)
        return
    if as_json:
        sys.stdout.write(folder.record_file.read_text())
    shown.print(f"  watch: slipway status --follow {record.run_id}", highlight=False, soft_wrap=True)


def _watch_and_exit(folder: Any, shown: Console, *, as_json: bool, require_promotion: bool) -> None:
    """Show a run on another platform until it has ended, and exit with the code that tells how it went."""
    from pipelines import display

    elsewhere: Any = remote(folder.read().platform)
    record = elsewhere.watch(folder, shown)
    if record is None:
        shown.print(display.how_to_watch_on(folder.read()), highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED)
    if as_json:
        sys.stdout.write(folder.record_file.read_text())
    _exit_as_it_went(record, shown, require_promotion=require_promotion)


def _exit_as_it_went(record: Any, shown: Console, *, require_promotion: bool) -> None:
    """Show how a run on another platform ended, and exit with the code that tells it."""
    from pipelines import display

    if record.status == "failed":
        error_console.print(f"[red]error:[/] {escape(display.explanation(record))}", highlight=False, soft_wrap=True)
        error_console.print(f"  go on: slipway run --resume {record.run_id}", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED)
    shown.print(display.summary(record), highlight=False)
    if record.status == "cancelled":
        raise typer.Exit(EXIT_INTERRUPTED)
    if require_promotion and record.verdict and record.verdict["decision"] != "promote":
        raise typer.Exit(EXIT_REJECTED)


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
        if record.error is None or record.error.mend != go_on:
            error_console.print(f"  go on: {go_on}", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED)
    if record.rehearsal:
        ended = display.rehearsal_summary(record, configuration.parsed_hardware, configuration.train.optimizer_kind)
        shown.print(ended, highlight=False)
        return
    shown.print(display.summary(record), highlight=False)
    if require_promotion and record.verdict and record.verdict["decision"] != "promote":
        raise typer.Exit(EXIT_REJECTED)


def _resumable(record: Any) -> Any:
    """The record of a run that can go on."""
    if record.status == "running":
        raise UserError(f"The run {record.run_id} is still running.", mend=f"slipway status {record.run_id}")
    if record.status == "succeeded":
        raise UserError(f"The run {record.run_id} has succeeded: nothing is left to do.", mend="slipway run")
    return record


@app.command("compile")
@user_errors
def compile_(
    config: Configuration = DEFAULT_CONFIGURATION,
    target: Annotated[Target, typer.Option(help="For which platform.")] = Target.vertex,
    hardware: Hardware = None,
    overrides: Overrides = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The pipeline spec to write.")] = Path("spec.yaml"),
) -> None:
    """Write the pipeline spec that a run executes."""
    from pipelines.config import load
    from pipelines.output import check_folder_of

    configuration = load(config, overrides or (), hardware)
    if target is not Target.local:
        _check(configuration, target)
    if output.suffix not in (".yaml", ".yml", ".json"):
        raise UserError(
            "A pipeline spec is YAML or JSON.", setting="-o", value=str(output), allowed="*.yaml, *.yml, *.json",
            mend=f"-o {output.with_suffix('.yaml')}",
        )  # fmt: skip
    check_folder_of(output)
    if target is Target.vertex:
        from pipelines.images import known_images
        from pipelines.platforms.vertex import steps as vertex_steps

        pipeline = vertex_steps.pipeline(configuration, known_images(configuration, _say))
    elif target is Target.kubeflow:
        from pipelines.platforms.kubeflow import steps as kubeflow_steps

        pipeline = kubeflow_steps.pipeline(configuration)
    else:
        from pipelines.platforms.local import steps

        pipeline = steps.pipeline(configuration)
    from kfp import compiler

    compiler.Compiler().compile(pipeline, str(output))
    console.print(f"{output}: {configuration.name} for {target.value} on {configuration.hardware}", highlight=False)


@app.command()
@user_errors
def build(
    config: Configuration = DEFAULT_CONFIGURATION,
    hardware: Hardware = None,
    overrides: Overrides = None,
    target: Annotated[Target, typer.Option(help="For runs where: vertex, or local (--runner docker).")] = Target.vertex,
    builder: Annotated[str | None, typer.Option(help="cloud-build, docker, podman, buildah; as configured.")] = None,
    push: Annotated[bool, typer.Option(help="Without: build on this machine only.")] = True,
    as_json: Json = False,
) -> None:
    """Build the images that a run needs, unless the registry has them; give them by digest."""
    from pipelines.build_command import build_images
    from pipelines.config import load

    configuration = load(config, overrides or (), hardware)
    images = build_images(configuration, target.value, builder, push=push, log=sys.stderr, say=_say)
    sys.stdout.write(json.dumps(images, indent=2) + "\n" if as_json else "".join(f"{uri}\n" for uri in images.values()))


def _say(line: str) -> None:
    error_console.print(escape(line), highlight=False, soft_wrap=True)


@app.command()
@user_errors
def status(
    run_id: Run = "latest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch a run elsewhere until it has ended.")] = False,
    as_json: Json = False,
) -> None:
    """Show a run: its steps, its result, its error."""
    from pipelines import display, runs

    folder = runs.find(run_id)
    if follow and remote(folder.read().platform):
        shown = Console(stderr=True) if as_json else console
        _watch_and_exit(folder, shown, as_json=as_json, require_promotion=False)
        return
    record = _current(folder)
    if as_json:
        sys.stdout.write(record.model_dump_json(indent=2) + "\n")
        return
    for step in record.steps:
        console.print(display.step_line(step, judged=not record.rehearsal), highlight=False, soft_wrap=True)
    console.print(display.summary(record), highlight=False)
    if record.error:
        console.print(f"\n{escape(display.explanation(record, with_traceback=False))}", highlight=False, soft_wrap=True)


def _current(folder: Any) -> Any:
    """A run's record, brought up to date where the run is on another platform."""
    record = folder.read()
    elsewhere = remote(record.platform)
    return elsewhere.current(folder, error_console) if elsewhere else record


@app.command("list")
@user_errors
def list_(as_json: Json = False) -> None:
    """List the runs, the newest first."""
    from pipelines import display, runs

    records = []
    for folder in runs.folders():
        try:
            records.append(_current(folder))
        except UserError as error:
            error_console.print(f"left out: {escape(error.message)}", highlight=False, soft_wrap=True)
    if as_json:
        sys.stdout.write(json.dumps([record.model_dump(mode="json") for record in records], indent=2) + "\n")
    elif not records:
        console.print("There are no runs yet: slipway run", highlight=False)
    else:
        console.print(display.run_table(records), highlight=False)


@app.command()
@user_errors
def logs(
    run_id: Run = "latest",
    step: Annotated[str | None, typer.Option(help="One step's log; without it, all in order.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the run writes.")] = False,
) -> None:
    """Print a run's logs."""
    from pipelines import runs

    folder = runs.find(run_id)
    try:
        for line in _log_lines(folder, step, follow=follow):
            print(line, flush=follow)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _log_lines(folder: Any, step: str | None, *, follow: bool) -> Any:
    if elsewhere := remote(folder.read().platform):
        return elsewhere.log_lines(folder, step, follow=follow)
    from pipelines import log_reader

    return log_reader.read(folder, step, follow=follow)


@app.command()
@user_errors
def explain(run_id: Run = "latest", as_json: Json = False) -> None:
    """Say why a run failed: which step, which replica, its traceback, what mends it."""
    from pipelines import display, runs

    record = _current(runs.find(run_id))
    if as_json:
        sys.stdout.write((record.error.model_dump_json(indent=2) if record.error else "null") + "\n")
    else:
        console.print(escape(display.explanation(record)), highlight=False, soft_wrap=True)


@app.command()
@user_errors
def cancel(run_id: Run = "latest") -> None:
    """Stop a run; what it has finished stays, and --resume goes on from there."""
    from pipelines import runs

    folder = runs.find(run_id)
    if elsewhere := remote(folder.read().platform):
        record = _current(folder)
        if record.status == "running":
            console.print(f"{record.run_id}: {elsewhere.cancel(folder).status}", highlight=False)
            return
    record = folder.read()
    if record.status != "running" or record.process is None:
        raise UserError(f"The run {record.run_id} is not running: it is {record.status}.", mend="slipway list")
    os.kill(record.process.pid, signal.SIGTERM)
    while folder.read().status == "running":
        time.sleep(0.1)
    console.print(f"{record.run_id}: {folder.read().status}", highlight=False)


@app.command()
@user_errors
def doctor(
    config: Configuration = DEFAULT_CONFIGURATION,
    target: Annotated[Target, typer.Option(help="Where the run is to be.")] = Target.local,
    hardware: Hardware = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Make every check of the machine and the configuration: what was found, and how to mend it."""
    from pipelines.config import load
    from pipelines.display import findings_table
    from pipelines.doctor import examine_all
    from pipelines.doctor.check import Subject

    configuration = load(config, overrides or (), hardware)
    findings = examine_all(Subject(configuration, target.value, rehearsal=False, folder=Path.cwd()))
    if as_json:
        rows = [{key: getattr(row, key) for key in ("check", "status", "found", "mend")} for row in findings]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        console.print(findings_table(findings), highlight=False)
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(EXIT_FAILED)


@app.command()
@user_errors
def setup(
    config: Configuration = DEFAULT_CONFIGURATION,
    apply: Annotated[bool, typer.Option("--apply", help="Make what is missing; without it, only show it.")] = False,
    hardware: Hardware = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Show what runs on Vertex AI need in the project (APIs, bucket, accounts, roles) and, with --apply, make it."""
    from pipelines import access
    from pipelines.config import load

    sound, rows = access.setup(load(config, overrides or (), hardware), console, make=apply, as_json=as_json)
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    elif not apply and any(row["status"] == "missing" for row in rows):
        console.print("make it so: the same command with --apply", highlight=False)
    if not sound:
        raise typer.Exit(EXIT_FAILED)


@app.command("hardware")
@user_errors
def hardware_(
    choice: Annotated[str | None, typer.Argument(help="One choice, such as l4x4*2; without it, all there is.")] = None,
    region: Annotated[str | None, typer.Option(help="Only what this region has.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="Only this kind: t4, a100, tpu-v5e, cpu …")] = None,
    engine: Annotated[str | None, typer.Option(help="Only what this engine runs on: tensorflow, jax, pytorch.")] = None,
    as_json: Json = False,
) -> None:
    """List the hardware that there is, or show what one choice becomes and why it is refused."""
    from pipelines.hardware import command

    if choice is None:
        if as_json:
            sys.stdout.write(command.list_as_json(region, accelerator, engine) + "\n")
        else:
            command.show_list(console, region, accelerator, engine)
    elif as_json:
        sys.stdout.write(command.choice_as_json(choice, region, engine) + "\n")
    else:
        command.show_choice(console, choice, region, engine)


@app.command()
@user_errors
def migrate(
    source: Annotated[
        list[str] | None, typer.Argument(help="A config.yaml; or, behind --, gcloud's own flags.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The run configuration to write.")] = None,
) -> None:
    """Turn an AI Platform Training job (config.yaml, or gcloud's flags behind --) into a run configuration."""
    from pipelines.legacy import command

    given = source or []
    is_file = len(given) == 1 and not given[0].startswith("-")
    migration = command.migration_of(Path(given[0]) if is_file else None, [] if is_file else given)
    if output is None:
        sys.stdout.write(migration.yaml)
        command.show(error_console, migration)
        return
    command.save(migration, output)
    command.show(console, migration)
    console.print(f"{output}: decide what is marked DECIDE, then", highlight=False, soft_wrap=True)
    console.print(f"  slipway doctor -c {output} --target vertex", highlight=False, soft_wrap=True)


def main() -> None:
    """The console script's entry."""
    app()
