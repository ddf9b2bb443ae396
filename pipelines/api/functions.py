"""The functions of the Python API: `run`, `cross_validate`, `rehearse`, `check`, `runs` and `model`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from slipway import extensions
from slipway.core.errors import UserError
from slipway.core.paths import in_project
from slipway.pipelines.api import starting
from slipway.pipelines.api.errors import in_python, public
from slipway.pipelines.api.existing import Run, Runs, reject, start
from slipway.pipelines.api.notebook import findings_table, show_line
from slipway.pipelines.options import Runner, check_runner, configuration_path
from slipway.pipelines.platforms.table import DEFAULT, platform_of, remote, with_hardware
from slipway.pipelines.runs import record as records

if TYPE_CHECKING:
    from slipway.core.values import JsonObject
    from slipway.pipelines.api.models import Model
    from slipway.pipelines.checks import Finding
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.selection.repeats import OverRuns

# A run configuration's path; None is the project's slipway.yaml.
Configuration: TypeAlias = str | os.PathLike[str] | None
Settings: TypeAlias = Mapping[str, Any]
# A function, also one from a notebook's cell, or its name as "module:function".
Code: TypeAlias = Callable[..., Any] | str


@public
def run(
    configuration: Configuration = None,
    settings: Settings | None = None,
    *,
    model: Code | None = None,
    program: Code | None = None,
    hardware: str | None = None,
    target: str = DEFAULT,
    runner: Literal["process", "docker"] = "process",
    wait: bool = True,
    require_promotion: bool = False,
    check_project: bool = True,
) -> Run:
    """Run the whole pipeline: prepare data, train, evaluate, register.

    A KeyboardInterrupt stops a run on this machine; one on another platform continues.

    Args:
        configuration: The run configuration, a YAML file; default: slipway.yaml.
        settings: Settings to override by dotted name, such as {"train.epochs": 8}.
        model: The function that builds the network, in place of model.builder. One that was defined in a notebook's
            cell is written, with what it uses, to a module of the project.
        program: The function to run in every replica in place of Slipway's trainer, as train.module.
        hardware: The training hardware, such as "cpu*2" or "l4x4*2".
        target: Where the run executes: local, vertex, kubeflow or tpu.
        runner: What runs the steps of a local run: process, or docker (containers).
        wait: Whether to show the run until it has ended.
        require_promotion: Whether to raise `Rejected` if the model is not promoted, nor the champion itself.
        check_project: Whether to check the project on Google Cloud before a run there is submitted.

    Raises:
        UserError: The configuration or a setting is not valid, or a check failed.
        RunFailed: The run failed.
        Rejected: See `require_promotion`.
    """
    loaded = with_hardware(_loaded(configuration, settings, hardware, model, program), target, show_line)
    check_runner(Runner(runner), Runner(runner) if platform_of(target).trains_here else Runner.process, target)
    _show_warnings(starting.check(loaded, target, runner=runner, submitting=check_project, say=show_line))
    if elsewhere := remote(target):
        started = Run(elsewhere.start(loaded, show_line)[0])
    else:
        started = _start_here(loaded, target, runner=runner)
    return _ended(started, require_promotion=require_promotion) if wait else started


@dataclass(frozen=True)
class CrossValidation:
    """The runs of a cross-validation, one for each fold, and their metrics by name.

    A metric has its `mean`, the 95% confidence interval of the mean from `low` to `high` (Student's t), `lowest` and
    `highest`.
    """

    runs: tuple[Run, ...]
    metrics: dict[str, OverRuns]

    def __repr__(self) -> str:
        from slipway.pipelines.selection.repeats import as_text

        return as_text(self.metrics, f"{len(self.runs)} folds")


@public
def cross_validate(
    configuration: Configuration = None,
    settings: Settings | None = None,
    *,
    folds: int = 5,
    model: Code | None = None,
    program: Code | None = None,
    hardware: str | None = None,
    runner: Literal["process", "docker"] = "process",
) -> CrossValidation:
    """Prepare, train and evaluate once for each fold on this machine, as `slipway run --folds`; register nothing.

    Args:
        configuration: The run configuration; default: slipway.yaml.
        settings: Settings to override by dotted name.
        folds: Number of test splits, at least 2. Each example is in one of them.
        model: The function that builds the network; see `run`.
        program: The function to run in every replica; see `run`.
        hardware: The training hardware.
        runner: What runs the steps: process, or docker (containers).

    Raises:
        UserError: The configuration or a setting is not valid, a check failed, or the source has a test split.
        RunFailed: The run of a fold failed.
    """
    from slipway.pipelines.selection.repeats import over_runs

    path, changes = _sources(configuration, settings, model, program)
    loaded, folded = starting.folds(path, changes, hardware, folds)
    _show_warnings(starting.check(loaded, DEFAULT, runner=runner))
    ended = tuple(
        _ended(_start_here(loaded, DEFAULT, runner=runner, last="evaluate", arguments=arguments))
        for arguments in folded
    )
    return CrossValidation(ended, over_runs([ended_run.metrics for ended_run in ended]))


@public
def rehearse(
    configuration: Configuration = None,
    settings: Settings | None = None,
    *,
    model: Code | None = None,
    program: Code | None = None,
    hardware: str | None = None,
    steps: int = 20,
    wait: bool = True,
) -> Run:
    """Try a hardware layout on this machine for a few training steps; see `run`.

    Args:
        configuration: The run configuration; default: slipway.yaml.
        settings: Settings to override by dotted name.
        model: The function that builds the network.
        program: The function to run in every replica.
        hardware: The hardware whose layout is tried, such as "l4x4*2".
        steps: Number of training steps.
        wait: Whether to show the rehearsal until it has ended.
    """
    path, changes = _sources(configuration, settings, model, program)
    loaded = starting.rehearsed(path, changes, hardware, steps)
    _show_warnings(starting.check(loaded, DEFAULT, rehearsal=True))
    started = _start_here(loaded, DEFAULT, rehearsal=steps)
    return _ended(started) if wait else started


class Findings(Sequence["Finding"]):
    """The findings of `check`, which a notebook shows as a table; false if a check failed."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = tuple(findings)

    def __getitem__(self, index: Any) -> Any:
        return self._findings[index]

    def __len__(self) -> int:
        return len(self._findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._findings)

    def __bool__(self) -> bool:
        return all(finding.status != "fail" for finding in self)

    def __repr__(self) -> str:
        lines = [f"{finding.status:<8} {finding.check}: {finding.found}" for finding in self]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return findings_table(
            [(finding.check, finding.status, finding.found, in_python(finding.fix)) for finding in self]
        )


@public
def check(
    configuration: Configuration = None,
    settings: Settings | None = None,
    *,
    model: Code | None = None,
    program: Code | None = None,
    hardware: str | None = None,
    target: str = DEFAULT,
) -> Findings:
    """Return what `slipway doctor` finds about this machine and a run; nothing is started.

    Args:
        configuration: The run configuration; default: slipway.yaml.
        settings: Settings to override by dotted name.
        model: The function that builds the network.
        program: The function to run in every replica.
        hardware: The training hardware.
        target: Where the run would execute.

    Raises:
        UserError: The configuration or a setting is not valid.
    """
    from slipway.pipelines.doctor import examine_all
    from slipway.pipelines.platforms.base import Context

    loaded = with_hardware(_loaded(configuration, settings, hardware, model, program), target, show_line)
    return Findings(examine_all(Context(loaded, platform_of(target), False, Path.cwd())))


def runs() -> Runs:
    """Return the runs of the project: of this folder, or of the nearest one above that has runs."""
    return Runs(in_project(records.ROOT))


@public
def model(name: str | os.PathLike[str] | None = None) -> Model:
    """Return a model to predict with.

    Args:
        name: A registered model (its champion), NAME/VERSION, a run's id, or a model's folder; default: the only
            registered model.

    Raises:
        UserError: There is no such model on this machine.
    """
    from slipway.pipelines.api.models import Model

    return Model.find(None if name is None else os.fspath(name))


def _sources(
    configuration: Configuration, settings: Settings | None, model: Code | None, program: Code | None
) -> tuple[Path, list[str]]:
    """Return the configuration's path, and all that overrides it."""
    path = configuration_path(None if configuration is None else Path(configuration), None)
    changes = dict(settings or {})
    include: list[str] = []
    if model is not None:
        changes["model.builder"] = _reference(model, include)
    if program is not None:
        changes["train.module"] = _reference(program, include, program=True).partition(":")[0]
    if include:
        changes["build.include"] = [*_included(path), *include]
    return path, starting.overrides(changes)


def _included(path: Path) -> list[str]:
    from slipway.pipelines.config.values import read_values

    build = read_values(path).get("build")
    patterns = build.get("include") if isinstance(build, Mapping) else None
    return list(patterns) if isinstance(patterns, list) else []


def _loaded(
    configuration: Configuration,
    settings: Settings | None,
    hardware: str | None,
    model: Code | None,
    program: Code | None,
) -> RunConfig:
    from slipway.pipelines.config.config import load

    path, changes = _sources(configuration, settings, model, program)
    return load(path, changes, hardware)


def _reference(code: Code, include: list[str], *, program: bool = False) -> str:
    """Return how the configuration names a function; add to `include` the files that images need for it."""
    if isinstance(code, str):
        return code
    references = extensions.references("capture")
    if not references:
        raise UserError(
            "Functions are captured by an extension that is not installed.",
            value=repr(code),
            allowed='the name of a function in a module of the project, as "module:function"',
        )
    captured = extensions.load(references[0])(code, Path.cwd(), program=program)
    include += captured.include
    if captured.taken:
        show_line(f"{captured.path.name}: {captured.taken}")
    reference: str = captured.reference
    return reference


def _show_warnings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        show_line(f"warning: {finding.check}: {finding.found}")


def _start_here(
    loaded: RunConfig,
    target: str,
    *,
    runner: Literal["process", "docker"] = "process",
    rehearsal: int = 0,
    last: str | None = None,
    arguments: Mapping[str, JsonObject] | None = None,
) -> Run:
    with starting.new(
        loaded, target, show_line, runner=runner, rehearsal=rehearsal, last=last, arguments=arguments
    ) as ready:
        start(ready)
        return Run(ready.folder)


def _ended(started: Run, *, require_promotion: bool = False) -> Run:
    ended = started._waited()
    if require_promotion and ended._record.is_rejected:
        raise reject(ended)
    return ended
