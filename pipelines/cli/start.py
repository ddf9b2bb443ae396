"""Starting and resuming runs: `slipway run` and `slipway rehearse`."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from slipway.core.errors import UserError
from slipway.pipelines.cli.exclusions import check_options
from slipway.pipelines.cli.existing_runs import exit_as_it_went, print_record, show_failure, watch_and_exit
from slipway.pipelines.cli.targets import Target, check_runner_on, show_cost, show_warnings
from slipway.pipelines.options import (
    Configuration,
    ConfigurationFile,
    Hardware,
    Json,
    Overrides,
    Runner,
    StepRunner,
    complete_run,
    configuration_path,
    configured,
)
from slipway.pipelines.platforms.table import DEFAULT, platform_of, remote, with_hardware
from slipway.pipelines.terminal import (
    EXIT_INTERRUPTED,
    EXIT_REJECTED,
    console,
    error_console,
    print_json,
    say,
    user_errors,
)

if TYPE_CHECKING:
    from slipway.core.values import JsonObject
    from slipway.pipelines.api.starting import Ready
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
    only: Annotated[
        str | None, typer.Option("--only", metavar="STEP", help="Run this step alone, on the inputs of an earlier run.")
    ] = None,
    from_step: Annotated[
        str | None, typer.Option("--from-step", metavar="STEP", help="Run the steps from this one on, likewise.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="The earlier run of --only and --from-step; default: latest.",
            autocompletion=complete_run,
        ),
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="COUNT", min=1, help="Also train with other seeds, COUNT in all.")
    ] = 1,
    folds: Annotated[
        int, typer.Option("--folds", metavar="COUNT", min=1, help="Cross-validate: train COUNT times, on other splits.")
    ] = 1,
    require_promotion: Annotated[
        bool,
        typer.Option(
            "--require-promotion", help="Exit with 3 unless the model is promoted, or is the champion, unchanged."
        ),
    ] = False,
    no_wait: Annotated[
        bool,
        typer.Option("--no-wait", help="Start the run, here or elsewhere, and return without watching it."),
    ] = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Submit without checking the project on Vertex AI first.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the whole pipeline: prepare data, train, evaluate, register."""
    from slipway.pipelines.api import starting
    from slipway.pipelines.runs import record as runs

    configuration_file = file or config
    check_options({
        "-c": str(configuration_file or ""), "--target": "" if platform_of(target).trains_here else target,
        "--resume": resume, "--only": only, "--from-step": from_step, "--from": source,
        "--repeat": repeat if repeat > 1 else None, "--folds": folds if folds > 1 else None,
        "--require-promotion": require_promotion, "--no-wait": no_wait,
    })  # fmt: skip
    shown = error_console if as_json else console
    outcome = Outcome(shown, as_json=as_json, require_promotion=require_promotion)
    if only or from_step:
        earlier = runs.find(source or "latest")
        with starting.rerun(earlier, only, from_step, overrides or (), hardware, runner=runner.value) as ready:
            outcome.of_started(ready, wait=not no_wait)
        return
    if resume is not None:
        with starting.resumed(runs.find(resume), overrides or (), hardware, outcome.say, runner=runner) as ready:
            if elsewhere := remote(ready.record.platform):
                outcome.of_remote(elsewhere.resume(ready.folder, outcome.say), wait=not no_wait)
            else:
                outcome.of_started(ready, wait=not no_wait)
        return
    configuration = configured(file, config, overrides, hardware)
    folded: list[dict[str, JsonObject]] = []
    if folds > 1:
        configuration, folded = starting.folds(configuration_path(file, config), overrides or (), hardware, folds)
    configuration = with_hardware(configuration, target, outcome.say)
    check_runner_on(target, runner)
    if repeat > 1:
        _check_seed(configuration, repeat)
    show_warnings(starting.check(configuration, target, runner=runner.value, submitting=not no_check, say=outcome.say))
    show_cost(configuration, target, outcome.say)
    if elsewhere := remote(target):
        outcome.of_remote(elsewhere.start(configuration, outcome.say), wait=not no_wait)
    elif folded:
        _cross_validate(configuration, folded, target, outcome, runner)
    elif repeat > 1:
        repeated = _repeat(configuration, target, repeat, outcome, runner)
        if require_promotion and repeated.is_rejected:
            raise typer.Exit(EXIT_REJECTED)
    else:
        with starting.new(configuration, target, outcome.say, runner=runner.value) as ready:
            outcome.of_started(ready, wait=not no_wait)


def _check_seed(configuration: RunConfig, repeat: int) -> None:
    """Refuse --repeat with a program that does not receive the seed."""
    if not configuration.train.program or configuration.train.receives_seed:
        return
    from slipway.trainer.config import SEED

    arguments = json.dumps([*configuration.train.arguments, "--seed", SEED])
    raise UserError(
        f"--repeat changes train.seed, which {configuration.train.program} does not receive.",
        setting="--repeat",
        value=repeat,
        allowed=f"a program with {SEED} among its arguments",
        fix=f"--set {shlex.quote(f'train.arguments={arguments}')}",
    )


def _repeat(configuration: RunConfig, target: str, count: int, outcome: Outcome, runner: Runner) -> RunRecord:
    """Train and evaluate with other seeds, too, on the same data, and show the metrics over all seeds.

    Only the model of the first seed is compared with the champion and registered, in a run of its own, once the gate
    has the others' metrics. Returns the record of that run.
    """
    from slipway.pipelines.api import starting
    from slipway.pipelines.runs.deadline import deadline

    quiet = replace(outcome, as_json=False, require_promotion=False)
    repeats: list[RunRecord] = []
    with starting.new(configuration, target, outcome.say, runner=runner.value, last="train") as ready:
        first = quiet.of_local(ready)
    for number in range(1, count):
        changes = (f"train.seed={configuration.train.seed + number}", "evaluate.champion=none")
        again = starting.rerun(
            ready.folder, None, "train", changes, None, runner=runner.value, last="evaluate", checked=True
        )
        with again as repeated:
            repeats.append(quiet.of_local(repeated, deadline(earlier.seconds or 0.0 for earlier in (first, *repeats))))
    gate = configuration.evaluate.gate.of(configuration.task)
    values = [repeat.metrics[gate.among(repeat.metrics).name] for repeat in repeats]
    arguments = {"evaluate": {"seed_metrics": values}}
    with starting.rerun(
        ready.folder, None, "evaluate", (), None, runner=runner.value, arguments=arguments
    ) as evaluated:
        record = quiet.of_local(evaluated)
    _show_all([record, *repeats], f"{count} seeds", outcome, as_json=outcome.as_json)
    return record


def _cross_validate(
    configuration: RunConfig, folds: Sequence[dict[str, JsonObject]], target: str, outcome: Outcome, runner: Runner
) -> None:
    """Prepare, train and evaluate once for each fold, register nothing, and show the metrics over all folds."""
    from slipway.pipelines.api import starting
    from slipway.pipelines.runs.deadline import deadline

    quiet = replace(outcome, as_json=False)
    records: list[RunRecord] = []
    for arguments in folds:
        with starting.new(
            configuration, target, quiet.say, runner=runner.value, last="evaluate", arguments=arguments
        ) as ready:
            records.append(quiet.of_local(ready, deadline(earlier.seconds or 0.0 for earlier in records)))
    _show_all(records, f"{len(folds)} folds", outcome, as_json=outcome.as_json)


def _show_all(records: Sequence[RunRecord], of: str, outcome: Outcome, *, as_json: bool) -> None:
    """Show the metrics over several runs: `of` says what differs between them."""
    from slipway.pipelines.selection.repeats import as_text, over_runs

    summaries = over_runs([record.metrics for record in records])
    if as_json:
        values = {name: asdict(summary) for name, summary in summaries.items()}
        print_json({"runs": [record.run_id for record in records], "metrics": values})
    outcome.say("\n" + as_text(summaries, of))


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
    from slipway.pipelines.api import starting

    configuration = starting.rehearsed(configuration_path(file, config), overrides or (), hardware, steps)
    configuration = with_hardware(configuration, DEFAULT, say)
    show_warnings(starting.check(configuration, DEFAULT, rehearsal=True))
    outcome = Outcome(error_console if as_json else console, as_json=as_json)
    with starting.new(configuration, DEFAULT, outcome.say, rehearsal=steps) as ready:
        outcome.of_local(ready)


@dataclass(frozen=True)
class Outcome:
    """Shows how a run proceeds and how it ended, and exits with the code for that."""

    shown: Console
    as_json: bool
    require_promotion: bool = False

    def say(self, line: str) -> None:
        self.shown.print(escape(line))

    def of_remote(self, submitted: tuple[RunFolder, RunRecord], *, wait: bool) -> None:
        """Watch a submitted run if `wait`."""
        folder, record = submitted
        if record.status == "failed":
            exit_as_it_went(record, self.shown, as_json=self.as_json, require_promotion=self.require_promotion)
        if wait:
            watch_and_exit(folder, self.shown, as_json=self.as_json, require_promotion=self.require_promotion)
            return
        self._leave(record)

    def of_started(self, ready: Ready, *, wait: bool) -> None:
        """Run in this process if `wait`, else in one of its own, which outlives this one."""
        if wait:
            self.of_local(ready)
            return
        from slipway.pipelines.platforms.local import launch

        launch.start(ready.folder, ready.record)
        self.say(f"run {ready.folder.run_id} on {ready.record.hardware}, logs in {ready.folder.logs}")
        self._leave(ready.record)

    def _leave(self, record: RunRecord) -> None:
        if self.as_json:
            print_record(record)
        self.say(f"  watch: slipway status --follow {record.run_id}")

    def of_local(self, ready: Ready, limit: float = math.inf) -> RunRecord:
        """Run in this process for at most `limit` seconds, and show it; return its record, or exit if it failed."""
        from slipway.pipelines.cli import display
        from slipway.pipelines.platforms.local import launch
        from slipway.pipelines.runs import observers
        from slipway.pipelines.runs.progress import RunDisplay

        folder, configuration, record = ready.folder, ready.configuration, ready.record
        kind = "rehearsal" if record.rehearsal else "run"
        self.say(f"{kind} {folder.run_id} on {configuration.training_hardware}, logs in {folder.logs}")
        with RunDisplay(self.shown) as watcher:
            limit = limit if ready.platform.trains_here else math.inf  # others may wait for machines
            record = launch.run(folder, configuration, record, watcher, limit)
        observers.ended(folder, configuration, record, self.say)
        if self.as_json:
            print_record(record)
        if record.status == "cancelled":
            raise typer.Exit(EXIT_INTERRUPTED)  # the launcher said how to continue
        if record.status == "failed":
            show_failure(record)
        if record.rehearsal:
            hardware, compiled = configuration.training_hardware, self._compiled(configuration, record)
            ended = display.rehearsal_summary(record, hardware, configuration.train, compiled)
            self.shown.print(ended)
            return record
        self.shown.print(display.summary(record))
        if self.require_promotion and record.is_rejected:
            raise typer.Exit(EXIT_REJECTED)
        return record

    def _compiled(self, configuration: RunConfig, record: RunRecord) -> list[str]:
        """Return what the accelerator's compiler says of a rehearsed step; raise UserError if no TPU can execute it."""
        from slipway.core.paths import local_path
        from slipway.pipelines.hardware import compiled

        hardware, model = configuration.training_hardware, configuration.model
        if model is None or compiled.missing(hardware, configuration.train.engine):
            return []
        self.say(f"compiling the step for {compiled.title(hardware)}, up to a minute")
        job = compiled.job_of(model, configuration.train, local_path(record.step("prepare_data").outputs["dataset"]))
        return compiled.sentences(hardware, job, compiled.compiled(hardware, job))
