"""Optuna's part of a search: which values its trials have, and which of them stop early."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.components.train.tuning import ParameterSettings, SearchSettings
from slipway.core.atomic import json_lines
from slipway.core.errors import UserError
from slipway.trainer.engines.installed import verify_extra
from slipway.trainer.metrics.history import FILE_NAME

if TYPE_CHECKING:
    import optuna

# Pruning waits for so many trials, and so many epochs of each, before it compares them.
STARTUP_TRIALS, STARTUP_EPOCHS = 4, 1
# Attributes of trials: whether the training is to stop, and the number of the failed trial whose values they have.
PRUNED, REPEATS = "pruned", "repeats"


def open_study(storage: str | optuna.storages.BaseStorage, name: str, search: SearchSettings) -> optuna.Study:
    """Return the study of this name in a storage, or a new one.

    Raises:
        UserError: Optuna is not installed.
    """
    verify_extra("tune")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruners = {
        "none": optuna.pruners.NopPruner,
        "median": lambda: optuna.pruners.MedianPruner(STARTUP_TRIALS, STARTUP_EPOCHS),
        "halving": optuna.pruners.SuccessiveHalvingPruner,
    }
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        direction=search.direction,
        load_if_exists=True,
        pruner=pruners[search.pruning](),
    )
    # A sampler that continues a study would draw the values of its first trials again from the same seed.
    seed = search.seed + len(study.get_trials(deepcopy=False))
    study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=search.parallel > 1)
    return study


def unfinished(study: optuna.Study) -> list[optuna.Trial]:
    """Return the trials that an earlier process has not finished."""
    from optuna.trial import Trial

    trials = study.get_trials(deepcopy=False)
    return [Trial(study, frozen._trial_id) for frozen in trials if frozen.state.name == "RUNNING"]


def suggest(trial: optuna.Trial, parameters: dict[str, ParameterSettings]) -> dict[str, Any]:
    """Return the values of a trial's parameters, of those that apply."""
    values: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if not parameter.applies(values):
            continue
        if parameter.choices is not None:  # Optuna stores only numbers, texts and truth values
            texts = [json.dumps(choice) for choice in parameter.choices]
            values[name] = json.loads(trial.suggest_categorical(name, texts))
        elif parameter.is_whole:
            assert isinstance(parameter.low, int) and isinstance(parameter.high, int)
            log = parameter.scale != "linear"
            values[name] = trial.suggest_int(
                name, parameter.low, parameter.high, step=int(parameter.step or 1), log=log
            )
        else:
            assert parameter.low is not None
            assert parameter.high is not None
            log = parameter.scale != "linear"
            values[name] = trial.suggest_float(name, parameter.low, parameter.high, step=parameter.step, log=log)
        if parameter.scale == "reverse_log":  # Optuna has only log: it draws, and stores, mirrored values
            values[name] = parameter.mirrored(values[name])
    return values


def drawn(params: Mapping[str, Any], parameters: dict[str, ParameterSettings]) -> dict[str, Any]:
    """Return the values of a trial's parameters from those that Optuna stores."""
    values = dict(params)
    for name, value in params.items():
        if parameters[name].choices is not None:
            values[name] = json.loads(value)
        elif parameters[name].scale == "reverse_log":
            values[name] = parameters[name].mirrored(value)
    return values


class Validations:
    """The validations of a trial's training, by which it may be pruned.

    Args:
        trial: The trial.
        metric: The metric that decides.
        logs: The folder in which the training writes its history.
    """

    def __init__(self, trial: optuna.Trial, metric: str, logs: Path) -> None:
        self._trial, self._metric, self._history = trial, metric, logs / FILE_NAME
        self._reported = set(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        self._size = 0
        self.pruned = bool(trial.user_attrs.get(PRUNED))

    def report(self) -> bool:
        """Report the new ones to the study; return whether it prunes the trial for one of them."""
        if not self._history.is_file() or self._history.stat().st_size == self._size:
            return False
        content = self._history.read_bytes()
        self._size = len(content)
        for line in json_lines(content):
            value, epoch = line.get(self._metric), line.get("epoch")
            # Trials with other batch sizes have other steps, so epochs are compared.
            step = round(epoch or line.get("step", 0))
            if line.get("kind") == "validation" and isinstance(value, int | float) and step not in self._reported:
                self._trial.report(value, step)
                self._reported.add(step)
        if self.pruned or not self._reported or not self._trial.should_prune():
            return False
        self.pruned = True
        self._trial.set_user_attr(PRUNED, True)
        return True


def value_of(validation: Mapping[str, float], metric: str) -> float:
    """Return the value of a trial from the last validation of its training.

    Raises:
        UserError: It has none.
    """
    value = validation.get(metric)
    if value is None or not math.isfinite(value):
        reported = ", ".join(validation) or "nothing"
        raise UserError(
            f"the training reported no {metric} of the validation split, but {reported}: a program reports it by "
            f'slipway.training.report(step, kind="validation", {metric}=…)',
            setting="tune.metric",
        )
    return value


def may_start(study: optuna.Study, search: SearchSettings, failed: int) -> bool:
    """Return whether a study with this many failed trials lacks more than those that are running."""
    states = [trial.state.name for trial in study.get_trials(deepcopy=False)]
    return sum(state not in ("FAIL", "WAITING") for state in states) + failed < search.trials


def failed(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Return the failed trials that were not tried again."""
    trials = study.get_trials(deepcopy=False)
    repeated = {trial.user_attrs.get(REPEATS) for trial in trials}
    return [trial for trial in trials if trial.state.name == "FAIL" and trial.number not in repeated]


def repeat_failed(study: optuna.Study) -> int:
    """Let the next trials have the values of the failed ones; return how many there are."""
    trials = failed(study)
    for trial in trials:
        study.enqueue_trial(trial.params, user_attrs={REPEATS: trial.number})
    return len(trials)
