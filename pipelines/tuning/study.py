"""The study of a configuration: Optuna's trials in an SQLite database of the project, and what they are tuned by."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.core.errors import UserError
from slipway.core.paths import in_project
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.tune import ParameterSettings, TuneSettings
from slipway.trainer.engines.installed import verify_extra

if TYPE_CHECKING:
    import optuna

FOLDER = Path("tuning")
# Pruning waits for so many trials, and so many epochs of each, before it compares them.
STARTUP_TRIALS, STARTUP_EPOCHS = 4, 1
# Settings of the section that do not make another study.
FREE = ("trials", "hours", "parallel", "failures")


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
