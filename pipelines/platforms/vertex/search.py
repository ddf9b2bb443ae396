"""A search (`slipway tune`) as a HyperparameterTuningJob of Vertex AI: its request, and what Vertex AI cannot tune."""

from __future__ import annotations

import math
from itertools import islice

from slipway.components.train.tuning import ParameterSettings, SearchSettings
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.base import Context, NotApplicableError
from slipway.pipelines.tuning.search import check_same_machines
from slipway.trainer.overrides import text_of

# "Maximum number of trials in a study": https://cloud.google.com/ai-platform/optimizer/docs/quotas
MAX_TRIALS = 1000
# "This list should not contain more than 1,000 values", and "must not contain whitespaces" of ids:
# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/StudySpec
MAX_VALUES = 1000
SCALES = {"linear": "UNIT_LINEAR_SCALE", "log": "UNIT_LOG_SCALE", "reverse_log": "UNIT_REVERSE_LOG_SCALE"}
OPTION = "--"


def check(context: Context) -> str:
    """Vertex AI can execute the search: its trials, parameters and rule of stopping early."""
    config, tune = context.config, context.search
    if tune is None:
        raise NotApplicableError("no search")
    if tune.trials > MAX_TRIALS:
        raise UserError(
            f"A search on Vertex AI has at most {MAX_TRIALS:,} trials.",
            setting="tune.trials",
            value=tune.trials,
            nearest=str(MAX_TRIALS),
            fix=f"--set tune.trials={MAX_TRIALS}",
        )
    if tune.pruning == "halving":
        raise UserError(
            "Vertex AI has no successive halving.",
            setting="tune.pruning",
            value=tune.pruning,
            allowed="none or median",
            nearest="median",
            fix="--set tune.pruning=median",
        )
    for name, parameter in tune.parameters.items():
        _check_parameter(name, parameter)
    if any(letter.isspace() for letter in tune.metric):
        raise _refused(f"The metric {tune.metric!r} contains a space.", "tune.metric", tune.metric)
    check_same_machines(config, tune, "Vertex AI")
    return f"{tune.trials} trials, {tune.parallel} at once, of {', '.join(tune.parameters)}"


def _check_parameter(name: str, parameter: ParameterSettings) -> None:
    setting = f"tune.parameters.{name}"
    if any(letter.isspace() for letter in name):
        raise _refused(f"The parameter {name!r} contains a space.", setting, name)
    if len(parameter.when) > 1:
        raise UserError(
            f"{name} depends on {' and '.join(parameter.when)}; on Vertex AI, a parameter depends on one other.",
            setting=f"{setting}.when",
            value=str(parameter.when),
            allowed="one parameter",
        )
    if (
        "discrete_value_spec" in _spec(name, parameter)
        and len(list(islice(parameter.steps(), MAX_VALUES + 1))) > MAX_VALUES
    ):
        raise _refused(
            f"{name} has more than {MAX_VALUES:,} values; on Vertex AI, a parameter with a step has at most that many.",
            f"{setting}.step",
            parameter.step,
        )


def _refused(message: str, setting: str, value: object) -> UserError:
    return UserError(message, setting=setting, value=value, fix=f"change {setting}, or tune on this machine")


def request(config: RunConfig, tune: SearchSettings, job: JsonObject) -> JsonObject:
    """Return the HyperparameterTuningJob of a search.

    GCPC's launcher removes false, 0 and empty values from the request, at all depths (`recursive_remove_empty`), so the
    median rule compares trials after equal times rather than equal steps, which would be `false`.

    Args:
        config: The run's configuration.
        tune: How to search, with the metric and its direction.
        job: The CustomJobSpec of each trial.
    """
    study: JsonObject = {
        "metrics": [{"metric_id": tune.metric, "goal": tune.direction.upper()}],
        "parameters": parameters_of(tune.parameters),
        # The trainer's last one is the exported model's.
        "measurement_selection_type": "LAST_MEASUREMENT",
    }
    if tune.pruning == "median":
        study["median_automated_stopping_spec"] = {"use_elapsed_duration": True}
    if tune.hours is not None:
        limit = {"max_duration": f"{math.ceil(3600 * tune.hours)}s"}
        study["study_stopping_config"] = {"maximum_runtime_constraint": limit}
    return {
        "display_name": config.name,
        "study_spec": study,
        "max_trial_count": tune.trials,
        "parallel_trial_count": min(tune.parallel, tune.trials),
        # The number that fails the job; 0 lets Vertex AI decide.
        "max_failed_trial_count": tune.failures + 1,
        "trial_job_spec": job,
    }


def parameters_of(parameters: dict[str, ParameterSettings]) -> list[JsonObject]:
    """Return the ParameterSpecs; one that depends on another is a part of that."""
    specs = {name: _spec(name, parameter_settings) for name, parameter_settings in parameters.items()}
    for name, parameter in parameters.items():
        for other, values in parameter.when.items():
            condition = {"parent_categorical_values": {"values": [_choice(other, value) for value in values]}}
            children = specs[other].setdefault("conditional_parameter_specs", [])
            children.append({**condition, "parameter_spec": specs[name]})
    return [spec for name, spec in specs.items() if not parameters[name].when]


def _spec(name: str, parameter: ParameterSettings) -> JsonObject:
    spec: JsonObject = {"parameter_id": name.removeprefix(OPTION)}
    if parameter.choices is not None:
        return {**spec, "categorical_value_spec": {"values": [_choice(name, choice) for choice in parameter.choices]}}
    spec["scale_type"] = SCALES[parameter.scale]
    if parameter.step not in (None, 1) or (parameter.step == 1 and not parameter.is_whole):
        return {**spec, "discrete_value_spec": {"values": list(parameter.steps())}}
    kind = "integer_value_spec" if parameter.is_whole else "double_value_spec"
    return {**spec, kind: {"min_value": parameter.low, "max_value": parameter.high}}


def _choice(name: str, value: object) -> str:
    """Return a choice as the text that follows `=` in the argument."""
    return str(value) if name.startswith(OPTION) else text_of(value)
