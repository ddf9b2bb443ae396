"""Prepare new and resumed runs up to their start: the command line and the Python API share it."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slipway.core.errors import UserError, lowered
from slipway.core.values import JsonObject
from slipway.pipelines.options import Runner, check_runner
from slipway.pipelines.platforms.base import Platform, RemotePlatform, Say
from slipway.pipelines.platforms.capabilities import WithTrainerImage
from slipway.pipelines.platforms.table import platform_of, remote

if TYPE_CHECKING:
    from slipway.components.train.tuning import SearchSettings
    from slipway.pipelines.checks import Finding
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.runs.record import RunFolder, RunRecord

# How long a run that was stopped may take to end before it is resumed.
ENDING_SECONDS = 10.0


@dataclass(frozen=True)
class Ready:
    """A run that is ready to start: its configuration, and its folder, which is held, with the record."""

    folder: RunFolder
    configuration: RunConfig
    record: RunRecord

    @property
    def platform(self) -> Platform:
        return platform_of(self.record.platform)


def check(
    configuration: RunConfig,
    target: str,
    *,
    runner: Literal["process", "docker"] = "process",
    rehearsal: bool = False,
    submitting: bool = False,
    builds: bool = True,
    spent: float = 0.0,
    search: SearchSettings | None = None,
    say: Say | None = None,
) -> list[Finding]:
    """Make the doctor's checks that apply to a run; return the warnings.

    For `spent` and others, see `Context`. Checks on another platform, which take seconds, are announced by `say`.

    Raises:
        UserError: A check failed.
    """
    from slipway.pipelines.doctor import refuse_on_failure
    from slipway.pipelines.platforms.base import Context

    if say is not None and remote(target):
        say(f"checking the run for {platform_of(target).title}")
    context = Context(configuration, platform_of(target), rehearsal, Path.cwd(), runner, builds, spent, search)
    return refuse_on_failure(context, submitting=submitting)


def rehearsed(path: Path, overrides: Iterable[str], hardware: str | None, steps: int) -> RunConfig:
    """Return the configuration in `path` for a rehearsal of this many training steps."""
    from slipway.pipelines.config.config import load
    from slipway.trainer.stages import shortened

    overrides = list(overrides)
    train = load(path, overrides, hardware).train
    few = ["evaluate.gate.minimum=null", "evaluate.gate.maximum=null"]
    if train.program is None:  # slipway.training counts a program's steps
        few.append(
            f"train.stages={json.dumps(shortened(train.stages, steps))}" if train.stages else f"train.steps={steps}"
        )
        few.append(f"train.steps_per_call={max(1, steps // 2)}")
    return load(path, [*overrides, *few], hardware)


def folds(
    path: Path, overrides: Iterable[str], hardware: str | None, count: int
) -> tuple[RunConfig, list[dict[str, JsonObject]]]:
    """Return the configuration of a cross-validation, and the arguments of each fold's run; see `RunRecord`.

    These runs end after the evaluation.

    Raises:
        UserError: There are fewer than two folds, or Slipway does not prepare the data.
    """
    from slipway.pipelines.config.config import load

    if count < 2:
        raise UserError(
            f"A cross-validation has at least 2 folds; got {count}.", setting="folds", value=count, fix="folds=5"
        )
    configuration = load(path, [*overrides, "evaluate.champion=none"], hardware)
    if configuration.prepared is None:
        raise UserError(
            "Only data that Slipway prepares can be divided into folds.",
            setting="--folds",
            value=count,
            allowed="a configuration with data.source",
            fix=f"slipway run -c {shlex.quote(str(path))}",
        )
    return configuration, [{"prepare_data": {"folds": count, "fold": number}} for number in range(count)]


@contextlib.contextmanager
def new(
    configuration: RunConfig,
    target: str,
    say: Say,
    *,
    runner: Literal["process", "docker"] = "process",
    rehearsal: int = 0,
    last: str | None = None,
    arguments: Mapping[str, JsonObject] | None = None,
) -> Iterator[Ready]:
    """Return a context with a new run whose steps execute on this machine, in a folder of its own, up to `last`.

    For `arguments`, see `RunRecord`.

    Raises:
        UserError: The trainer's image cannot be built.
    """
    from slipway.pipelines.platforms.local import launch
    from slipway.pipelines.runs import record as runs

    if last is not None or rehearsal:  # a part of something larger, which has been asked for
        configuration = configuration.model_copy(update={"when": "always"})
    folder = runs.create(configuration)
    with folder.held():
        record = launch.new_record(folder, configuration, rehearsal=rehearsal, runner=runner, platform=target)
        if last is not None:
            record.part = runs.Part(first=record.steps[0].name, last=last)
        record.arguments = dict(arguments or {})
        folder.write(record)
        ready = Ready(folder, configuration, record)
        _build_trainer(ready, say)
        yield ready


@contextlib.contextmanager
def rerun(
    source: RunFolder,
    only: str | None,
    from_step: str | None,
    overrides: Iterable[str],
    hardware: str | None,
    *,
    runner: Literal["process", "docker"] = "process",
    last: str | None = None,
    checked: bool = False,
    arguments: Mapping[str, JsonObject] | None = None,
) -> Iterator[Ready]:
    """Return a context with a new run that executes one step of the run in `source`, or all from one on up to `last`.

    The doctor's checks are made for a training, unless they were (`checked`). `arguments` (see `RunRecord`) are added
    to those of the run in `source`.

    Raises:
        UserError: The run is on another platform, or it has not what the step needs, or not with these settings.
    """
    from slipway.pipelines.platforms.local import earlier, launch
    from slipway.pipelines.runs import record as runs
    from slipway.pipelines.runs.continuing import part_configuration, part_of

    record = source.read()
    platform = platform_of(record.platform)
    if not platform.trains_here:
        raise UserError(
            f"Single steps can be run only of runs on this machine; {record.run_id} was on {platform.title}.",
            setting="--from",
            value=record.run_id,
            fix=f"slipway run --resume {record.run_id} --set evaluate.…=…, which repeats the steps after the training",
        )
    part = part_of(record, only, from_step, last)
    asked = part_configuration(source, part, overrides, hardware)
    configuration = asked.model_copy(update={"when": "always"})  # which has been asked for
    if not checked and part.first in ("prepare_data", "plan_training"):
        check(configuration, record.platform, runner=runner)
    folder = runs.create(configuration)
    with folder.held():
        started = launch.new_record(folder, configuration, runner=runner, platform=record.platform)
        started.part = part
        started.arguments = {**record.arguments, **(arguments or {})}
        try:
            earlier.copy_outputs(source, folder, started)
        except BaseException:
            runs.discard(folder)
            raise
        done = {step.name: step for step in record.steps[: [step.name for step in record.steps].index(part.first)]}
        started.steps = [replace(done[step.name], reused=True) if step.name in done else step for step in started.steps]
        if part.first == "register_model":
            started.champion = record.champion
        folder.write(started)
        yield Ready(folder, configuration, started)


@contextlib.contextmanager
def resumed(
    folder: RunFolder, overrides: Iterable[str], hardware: str | None, say: Say, *, runner: Runner = Runner.process
) -> Iterator[Ready]:
    """Return a context with a run that is about to be resumed, with changes to settings after the training.

    Raises:
        UserError: The run cannot be resumed, or not with these settings.
    """
    from slipway.pipelines.runs.continuing import check_resumable, resumed_configuration

    overrides = list(overrides)
    until = time.monotonic() + ENDING_SECONDS
    while folder.read().status != "running" and folder.holder() and time.monotonic() < until:
        time.sleep(0.05)  # the run was just stopped, and its process is ending
    with folder.held():
        record = current(folder, say)
        platform = platform_of(record.platform)
        check_resumable(record, changed=bool(overrides))
        ready = Ready(folder, resumed_configuration(folder, record, overrides, hardware), record)
        if not isinstance(platform, RemotePlatform):
            if isinstance(platform, WithTrainerImage):  # its settings may have changed, and its machines cost money
                trained = record.step("train").status == "succeeded"
                spent = record.cost.dollars if record.cost and not trained else 0.0
                for warning in check(ready.configuration, record.platform, spent=spent):
                    say(f"warning: {warning.check}: {warning.found}")
            check_runner(runner, Runner(record.runner), f"the run {record.run_id}")
            if record.runner == Runner.docker:
                from slipway.pipelines.platforms.local.containers import docker_client

                with docker_client():
                    pass
            _build_trainer(ready, say)
        yield ready


def cost_so_far(folder: RunFolder, record: RunRecord) -> float | None:
    """Return what the training of a running run has cost in US dollars; None if that is nothing, or not known."""
    platform = platform_of(record.platform)
    if platform.trains_here or not any((step.name, step.status) == ("train", "running") for step in record.steps):
        return None
    from slipway.pipelines.config.config import load
    from slipway.pipelines.hardware.prices import per_hour
    from slipway.pipelines.hardware.rules import parse

    bill = platform.bill(load(folder.configuration_file))
    price = per_hour(parse(record.hardware), record.region or bill.region) if bill else None
    earlier = record.cost.dollars if record.cost else 0.0
    return None if price is None else earlier + price * platform.training_seconds(folder, record) / 3600


def current(folder: RunFolder, say: Say) -> RunRecord:
    """Return a run's record; if it is running, updated from its platform. If that fails, say so."""
    record = folder.read()
    if record.status != "running":
        return record
    try:
        return platform_of(record.platform).refresh(folder)
    except UserError as error:
        say(f"as last seen; {lowered(error.message)}")
        if error.fix:
            say(f"  fix:      {error.fix}")
        return folder.read()


def cancel(folder: RunFolder, say: Say) -> RunRecord:
    """Stop a run, wait until it has stopped, and return its record.

    Raises:
        UserError: It is not running, and was not stopped before.
    """
    record = current(folder, say)
    if record.status == "cancelled":
        say(f"{record.run_id} was stopped before")
        return record
    if record.status != "running":
        raise UserError(f"Run {record.run_id} is not running; its status is {record.status}.", fix="slipway list")
    return platform_of(record.platform).cancel(folder)


def _build_trainer(ready: Ready, say: Say) -> None:
    """Build the trainer's image if the platform needs it and it does not exist; store its name in the run's folder.

    Raises:
        UserError: It cannot be built; the folder has been removed.
    """
    folder, platform = ready.folder, ready.platform
    if not isinstance(platform, WithTrainerImage) or folder.image_file.exists():
        return
    from slipway.components.step import WorkFailed
    from slipway.core.atomic import replace_file
    from slipway.pipelines.platforms.local import launch
    from slipway.pipelines.runs import record as runs

    try:
        with (folder.logs / "build_image.log").open("w") as log:
            image = platform.build_trainer(ready.configuration, log, say)
            replace_file(folder.image_file, image.encode())
    except BaseException as error:
        tail = launch.last_lines(folder.logs / "build_image.log")
        runs.discard(folder)
        if isinstance(error, WorkFailed):
            raise UserError(f"{error.message}\n{tail}", fix="see the end of the builder's output above") from None
        raise


def overrides(settings: Mapping[str, Any] | None) -> list[str]:
    """Return settings as texts "dotted.name=value" in YAML.

    Raises:
        UserError: A value has no form in YAML.
    """
    import yaml

    changes = []
    for name, value in (settings or {}).items():
        if hasattr(value, "to_parquet"):
            raise UserError(
                f"The setting {name} is a DataFrame, which another process does not have.",
                setting=str(name),
                value=type(value).__name__,
                allowed="a source, such as parquet:FILE or csv:FILE",
                fix=f'df.to_parquet("data.parquet"), and {{"{name}": "parquet:data.parquet"}}',
            )
        try:
            text = yaml.safe_dump(_plain(value), default_flow_style=True, width=2**31, allow_unicode=True)
        except yaml.YAMLError:
            raise UserError(
                f"The setting {name} is {type(value).__name__}, which a configuration cannot contain.",
                setting=str(name),
                value=repr(value),
                allowed="a number, a text, a truth value, None, or a list or dict of these",
            ) from None
        changes.append(f"{name}={text.removesuffix('...' + chr(10)).strip()}")
    return changes


def _plain(value: Any) -> Any:
    """Return a value without NumPy's types: np.float32(0.002) is 0.002, not 0.0020000000949949026."""
    if isinstance(value, Mapping):
        return {key: _plain(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    if isinstance(value, Path):
        return str(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return float(str(value)) if value.dtype.kind == "f" and value.ndim == 0 else value.tolist()
    return value
