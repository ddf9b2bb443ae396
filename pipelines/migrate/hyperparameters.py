"""The section `tune` for the hyperparameters of an AI Platform Training job (HyperparameterSpec)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slipway.core.errors import UserError

if TYPE_CHECKING:
    from slipway.pipelines.migrate.replacement import Notes

METRIC = "training/hptuning/metric"  # of a job that names none
# Of a parameter; linear is the default.
SCALES = {
    "": None,
    "NONE": None,
    "UNIT_LINEAR_SCALE": None,
    "UNIT_LOG_SCALE": "log",
    "UNIT_REVERSE_LOG_SCALE": "reverse_log",
}


def tune_section(values: Mapping[str, object], notes: Notes) -> dict[str, object] | None:
    """Return the section; None if the job tunes no parameters.

    Raises:
        UserError: A parameter has no name, or no range and no values.
    """
    parameters = values.get("params")
    if not isinstance(parameters, list) or not parameters:
        return None
    metric = str(values.get("hyperparameterMetricTag") or METRIC)
    section: dict[str, object] = {
        "metric": metric,
        "direction": "minimize" if values.get("goal") == "MINIMIZE" else "maximize",
        "trials": _count(values, "maxTrials"),
        "parallel": _count(values, "maxParallelTrials"),
    }
    if values.get("maxFailedTrials"):
        section["failures"] = _count(values, "maxFailedTrials")
    if str(values.get("enableTrialEarlyStopping")).lower() == "true":
        section["pruning"] = "median"
    section["parameters"] = dict(_parameter(parameter) for parameter in parameters)
    notes.changed.append("hyperparameters became tune, for slipway tune")
    notes.decisions.append(
        f'tune: the program reports the metric by slipway.training.report(step, kind="validation", '
        f'**{{"{metric}": value}}), in place of a summary, and of hypertune on this machine.'
    )
    notes.dropped.extend(
        f"hyperparameters.{key}: Optuna's TPE sampler chooses the values"
        for key in ("algorithm", "resumePreviousJobId")
        if values.get(key)
    )
    return section


def _count(values: Mapping[str, object], key: str) -> int:
    """Return a field that is a number of trials; 1 if it is not set."""
    text = str(values.get(key) or 1)
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise UserError(
            f"hyperparameters.{key} is not a whole number.",
            setting=f"hyperparameters.{key}",
            value=text,
            allowed="a whole number",
            fix=f"correct {key}",
        )
    return int(text)


def _parameter(values: object) -> tuple[str, dict[str, object]]:
    """Return the option of a parameter, and its range or choices."""
    parameter = values if isinstance(values, Mapping) else {}
    name, kind = str(parameter.get("parameterName") or ""), str(parameter.get("type") or "")
    choices = parameter.get("categoricalValues") or parameter.get("discreteValues")
    try:
        if not name:
            raise ValueError("has no parameterName")
        if kind in ("CATEGORICAL", "DISCRETE"):
            if not isinstance(choices, list) or not choices:
                raise ValueError("has no values")
            return f"--{name}", {"choices": [_number(choice) for choice in choices] if kind == "DISCRETE" else choices}
        low, high = _number(parameter.get("minValue")), _number(parameter.get("maxValue"))
        if (scaled := str(parameter.get("scaleType") or "")) not in SCALES:
            raise ValueError(f"has an unknown scaleType {scaled}; known are {', '.join(filter(None, SCALES))}")
    except ValueError as error:
        raise UserError(
            f"A parameter of hyperparameters.params {error}.",
            setting="hyperparameters.params",
            value=str(values),
            allowed="parameterName, type, and minValue and maxValue, categoricalValues or discreteValues",
            fix="correct hyperparameters.params",
        ) from None
    scale = SCALES[scaled]
    ends: tuple[int | float, ...] = (low, high) if kind == "INTEGER" else (float(low), float(high))
    section: dict[str, object] = {"low": ends[0], "high": ends[1]}
    return f"--{name}", section | ({"scale": scale} if scale else {})


def _number(value: object) -> int | float:
    """Return a number that may be written as text."""
    number = float(str(value))
    return int(number) if number.is_integer() else number
