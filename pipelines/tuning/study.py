"""The study of a configuration: Optuna's trials in an SQLite database of the project, and what they are tuned by."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.components.evaluate.settings import known
from slipway.core.errors import UserError
from slipway.core.paths import in_project
from slipway.pipelines.config.config import RunConfig, no_section
from slipway.pipelines.config.tune import ParameterSettings, TuneSettings
from slipway.trainer.engines.installed import verify_extra
from slipway.trainer.tasks import TASKS

if TYPE_CHECKING:
    import optuna

FOLDER = Path("tuning")
# Pruning waits for so many trials, and so many epochs of each, before it compares them.
STARTUP_TRIALS, STARTUP_EPOCHS = 4, 1
# Settings of the section that do not make another study.
FREE = ("trials", "hours", "parallel", "failures")


def settings_of(config: RunConfig) -> TuneSettings:
    """Return the section `tune` of a configuration, with the metric and its direction.

    Raises:
        UserError: There is none, or the metric's direction is not known.
    """
    tune = config.tune
    if tune is None:
        fix = "--set 'tune.parameters={train.learning_rate: {low: 0.0001, high: 0.1, scale: log}}'"
        raise no_section("tune", ", ".join(TuneSettings.model_fields), fix)
    metric = tune.metric or ("loss" if config.model is None else TASKS[config.task].metric)
    meant = known(metric)
    direction = tune.direction or (meant.direction if meant else None)
    if direction is None:
        raise UserError(
            f"It is not known whether higher or lower values of {metric} are better.",
            setting="tune.direction",
            value=None,
            allowed="maximize, minimize",
            fix="--set tune.direction=maximize",
        )
    return tune.model_copy(update={"metric": metric, "direction": direction})


def open_study(config: RunConfig, tune: TuneSettings) -> optuna.Study:
    """Return the study of a configuration; the same one as long as neither its settings nor the ranges change.

    Raises:
        UserError: Optuna is not installed.
    """
    verify_extra("tune")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder = in_project(FOLDER)
    folder.mkdir(exist_ok=True)
    values = config.model_dump(mode="json", by_alias=True)
    values.pop("track", None)
    values["tune"] = {key: value for key, value in tune.model_dump(mode="json").items() if key not in FREE}
    fingerprint = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
    study = optuna.create_study(
        storage=f"sqlite:///{(folder / config.name).absolute()}.db",
        study_name=f"{config.name}-{fingerprint}",
        direction=tune.direction,
        load_if_exists=True,
        pruner=optuna.pruners.SuccessiveHalvingPruner()
        if tune.pruning == "halving"
        else optuna.pruners.MedianPruner(STARTUP_TRIALS, STARTUP_EPOCHS),
    )
    # A sampler that continues a study would draw the values of its first trials again from the same seed.
    seed = config.train.seed + len(study.get_trials(deepcopy=False))
    study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=tune.parallel > 1)
    return study


@contextlib.contextmanager
def locked(config: RunConfig) -> Iterator[None]:
    """Return a context in which only this command tunes a configuration of this name.

    Raises:
        UserError: Another one does.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(in_project(FOLDER) / f"{config.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"Another command tunes {config.name}.", fix="wait for it, or change name") from None
    try:
        yield
    finally:
        lock.release()


def suggest(trial: optuna.Trial, parameters: dict[str, ParameterSettings]) -> dict[str, Any]:
    """Return the values of a trial's parameters, of those that apply."""
    values: dict[str, Any] = {}
    for name, each in parameters.items():
        if not each.applies(values):
            continue
        if each.choices is not None:  # Optuna stores only numbers, texts and truth values
            texts = [json.dumps(choice) for choice in each.choices]
            values[name] = json.loads(trial.suggest_categorical(name, texts))
        elif isinstance(each.low, int) and isinstance(each.high, int):
            log = each.scale != "linear"
            values[name] = trial.suggest_int(name, each.low, each.high, step=int(each.step or 1), log=log)
        else:
            assert each.low is not None
            assert each.high is not None
            log = each.scale != "linear"
            values[name] = trial.suggest_float(name, each.low, each.high, step=each.step, log=log)
        if each.scale == "reverse_log":  # Optuna has only log: it draws, and stores, mirrored values
            values[name] = each.mirrored(values[name])
    return values


def drawn(params: Mapping[str, Any], parameters: dict[str, ParameterSettings]) -> dict[str, Any]:
    """Return the values of a trial's parameters from those that Optuna stores; choices remain JSON."""
    mirrored = {name for name, each in parameters.items() if each.scale == "reverse_log"}
    return {name: parameters[name].mirrored(value) if name in mirrored else value for name, value in params.items()}


def extremes(parameters: dict[str, ParameterSettings]) -> Iterator[dict[str, Any]]:
    """Yield parameters at the ends of all ranges, also of those that apply with some choices only."""
    fixed: list[dict[str, Any]] = [{}]
    for each in parameters.values():
        if each.when:
            chosen: dict[str, Any] = {}
            names = list(each.when.items())
            for name, allowed in names:  # which grows by what those depend on
                chosen.setdefault(name, allowed[0])
                names += [item for item in parameters[name].when.items() if item[0] not in chosen]
            fixed.append(chosen)
    for values, end in itertools.product(fixed, (0, 1)):
        found: dict[str, Any] = {}
        for name, each in parameters.items():
            if each.applies(found):
                found[name] = values.get(name, each.ends[end])
        yield found


def overrides(values: dict[str, Any], arguments: Sequence[str]) -> list[str]:
    """Return the overrides that set parameters; options of a program follow its `arguments`."""
    options = [f"{name}={value}" for name, value in values.items() if name.startswith("--")]
    settings = [f"{name}={json.dumps(value)}" for name, value in values.items() if not name.startswith("--")]
    return [*settings, *([f"train.arguments={json.dumps([*arguments, *options])}"] if options else [])]
