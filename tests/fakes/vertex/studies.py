"""Studies: the service's validation of a StudySpec, the values of its trials, and the median stopping rule.

Sources: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/StudySpec (called REST here), and the comments of
study.proto, which are its text: https://github.com/googleapis/googleapis/blob/master/google/cloud/aiplatform/v1/study.proto
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from google.cloud import aiplatform_v1 as vertex

from tests.fakes.vertex.shapes import invalid

Spec = vertex.StudySpec
Scale = Spec.ParameterSpec.ScaleType
KINDS = ("double_value_spec", "integer_value_spec", "categorical_value_spec", "discrete_value_spec")
CONDITIONS = {
    "parent_categorical_values": "categorical_value_spec",
    "parent_discrete_values": "discrete_value_spec",
    "parent_int_values": "integer_value_spec",
}
MAX_VALUES = 1000
CLOSEST = 1e-10


def check_study(study: vertex.StudySpec) -> None:
    """Raise the service's error for a study that a HyperparameterTuningJob cannot have."""
    if not study.metrics:
        raise invalid("The study has no metrics.")
    for metric in study.metrics:
        _check_id(metric.metric_id, "metric_id")
        if not metric.goal:
            raise invalid(f"The metric {metric.metric_id} has no goal.")
    if not study.parameters:
        raise invalid("The study has no parameters.")
    for parameter in study.parameters:
        _check_parameter(parameter)
    # REST: "Must not contain whitespaces and must be unique amongst all ParameterSpecs."
    names = [parameter.parameter_id for parameter in study.parameters]
    if len(set(names)) < len(names):
        raise invalid(f"The ids of the parameters are not unique: {names}.")
    # REST: "Currently only supported by the Vertex AI Vizier service. Not supported by HyperparameterTuningJob".
    if study.observation_noise:
        raise invalid("observation_noise is not supported by HyperparameterTuningJob.")
    # REST: "To use grid search, all parameters must be INTEGER, CATEGORICAL, or DISCRETE."
    if study.algorithm == Spec.Algorithm.GRID_SEARCH and any("double_value_spec" in one for one in study.parameters):
        raise invalid("GRID_SEARCH does not support DOUBLE parameters.")


def _check_parameter(parameter: Any) -> None:
    name = parameter.parameter_id
    _check_id(name, "parameter_id")
    kind = next((kind for kind in KINDS if kind in parameter), None)
    if kind is None:
        raise invalid(f"The parameter {name} has no value spec.")
    spec = getattr(parameter, kind)
    if "default_value" in spec:  # REST: not supported by HyperparameterTuningJob
        raise invalid(f"The default value of {name} is not supported by HyperparameterTuningJob.")
    if kind in ("double_value_spec", "integer_value_spec"):
        if spec.min_value > spec.max_value:
            raise invalid(f"The minimum of {name} is above its maximum.")
        lowest = spec.min_value
    else:
        values = list(spec.values)
        if not values or len(set(values)) < len(values):
            raise invalid(f"The values of {name} are missing or not unique.")
        lowest = 0.0
        if kind == "discrete_value_spec":
            # REST: "increasing order and at least 1e-10 apart", "should not contain more than 1,000 values".
            if len(values) > MAX_VALUES or any(b - a < CLOSEST for a, b in itertools.pairwise(values)):
                raise invalid(f"The values of {name} must be increasing, 1e-10 apart, and at most {MAX_VALUES}.")
            lowest = values[0]
    # REST: "Leave unset for CATEGORICAL parameters."
    if kind == "categorical_value_spec" and parameter.scale_type:
        raise invalid(f"The CATEGORICAL parameter {name} has a scale type.")
    # REST: "The entire feasible space must be strictly positive."
    if parameter.scale_type in (Scale.UNIT_LOG_SCALE, Scale.UNIT_REVERSE_LOG_SCALE) and lowest <= 0:
        raise invalid(f"The feasible space of {name} must be strictly positive for {parameter.scale_type.name}.")
    _check_conditions(parameter, kind)


def _check_conditions(parameter: Any, kind: str) -> None:
    """Check the parameters that depend on this one."""
    taken: dict[str, set[Any]] = {}
    for child in parameter.conditional_parameter_specs:
        condition = next((one for one in CONDITIONS if one in child), None)
        if condition is None or CONDITIONS[condition] != kind:
            raise invalid(f"A condition of {parameter.parameter_id} is not of its type.")
        values = set(getattr(child, condition).values)
        # REST: "All values must exist in categorical_value_spec of parent parameter."
        if kind == "integer_value_spec":
            spec = parameter.integer_value_spec
            known = all(spec.min_value <= value <= spec.max_value for value in values)
        else:
            known = values <= set(getattr(parameter, kind).values)
        if not values or not known:
            raise invalid(f"A condition of {parameter.parameter_id} has values that it cannot have: {sorted(values)}.")
        # REST: "If two items in conditional_parameter_specs have the same name, they must have disjoint".
        name = child.parameter_spec.parameter_id
        if taken.setdefault(name, set()) & values:
            raise invalid(f"The conditions of {name} are not disjoint.")
        taken[name] |= values
        _check_parameter(child.parameter_spec)


def _check_id(text: str, field: str) -> None:
    if not text or any(letter.isspace() for letter in text):
        raise invalid(f"The {field} {text!r} must not be empty and must not contain whitespaces.")


def draw(parameters: Sequence[Any], dice: random.Random) -> Iterator[tuple[str, Any]]:
    """Yield values at random within the specs, by their scales; Vizier's own choice is better, not other values."""
    for parameter in parameters:
        value = _drawn(parameter, dice)
        yield parameter.parameter_id, value
        for child in parameter.conditional_parameter_specs:
            condition = next(one for one in CONDITIONS if one in child)
            if value in getattr(child, condition).values:
                yield from draw([child.parameter_spec], dice)


def _drawn(parameter: Any, dice: random.Random) -> Any:
    kind = next(kind for kind in KINDS if kind in parameter)
    spec = getattr(parameter, kind)
    if kind in ("categorical_value_spec", "discrete_value_spec"):
        return dice.choice(list(spec.values))
    low, high = float(spec.min_value), float(spec.max_value)
    if parameter.scale_type == Scale.UNIT_LOG_SCALE:
        value = math.exp(dice.uniform(math.log(low), math.log(high)))
    elif parameter.scale_type == Scale.UNIT_REVERSE_LOG_SCALE:
        value = low + high - math.exp(dice.uniform(math.log(low), math.log(high)))
    else:
        value = dice.uniform(low, high)
    value = min(max(value, low), high)
    return round(value) if kind == "integer_value_spec" else value


def argument_of(name: str, value: Any) -> str:
    """Return the argument of a container for a value; integral numbers have no fraction."""
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return f"--{name}={text}"


def is_below_median(study: vertex.StudySpec, trial: vertex.Trial, completed: Sequence[vertex.Trial]) -> bool:
    """Return whether the median rule stops a trial.

    study.proto: "stops a pending Trial if the Trial's best objective_value is strictly below the median 'performance'
    of all completed Trials reported up to the Trial's last measurement", the running average of their values.
    """
    if "median_automated_stopping_spec" not in study or not trial.measurements:
        return False
    metric = study.metrics[0]
    sign = -1 if metric.goal == Spec.MetricSpec.GoalType.MINIMIZE else 1
    by_time = study.median_automated_stopping_spec.use_elapsed_duration

    def place(measurement: vertex.Measurement) -> float:
        return measurement.elapsed_duration.total_seconds() if by_time else measurement.step_count

    def values(of: vertex.Trial, until: float) -> list[float]:
        return [sign * one.metrics[0].value for one in of.measurements if place(one) <= until]

    last = place(trial.measurements[-1])
    averages = [statistics.mean(found) for other in completed if (found := values(other, last))]
    return bool(averages) and max(values(trial, last)) < statistics.median(averages)
