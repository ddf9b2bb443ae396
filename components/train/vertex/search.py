"""The best trial of a hyperparameter tuning job of Vertex AI."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import retried
from slipway.core.atomic import replace_file
from slipway.core.errors import UserError
from slipway.core.paths import local_path
from slipway.core.values import whole_numbers
from slipway.trainer.overrides import value_of

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import HyperparameterTuningJob
    from google.cloud.aiplatform_v1.types import Trial as VertexTrial

# The result of a search in the base output directory of its run, for a run that is resumed after it.
FILE_NAME = "search.json"
# The folder in it with those of the jobs, one for each attempt of the run, in which each trial has one.
TRIALS = "trials"


@dataclass(frozen=True)
class Trial:
    """A trial: Vertex AI's id and state, the metric at its end (None: none was reported), and the values."""

    id: str
    state: str
    value: float | None
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Search:
    """The trials of a finished job, and the base output directory of the `best` one."""

    metric: str
    best: Trial
    output: str
    trials: list[Trial]


def find_best(connection: Connection, job: str, output: str) -> Search:
    """Return the result of a search, and store it in `output`.

    Args:
        connection: The project and region of the job.
        job: The output `gcp_resources` of the job's launcher; "" if an earlier attempt of the run stored it.
        output: The run's base output directory.

    Raises:
        UserError: No trial has succeeded.
    """
    file = local_path(output) / FILE_NAME
    if not job:
        stored = json.loads(file.read_bytes())
        best, trials = Trial(**stored.pop("best")), [Trial(**trial) for trial in stored.pop("trials")]
        return Search(best=best, trials=trials, **stored)
    name = json.loads(job)["resources"][0]["resourceUri"].partition("/v1/")[2]
    tuning_job = retried(lambda: connection.jobs.get_hyperparameter_tuning_job(name=name))
    search = result_of(tuning_job, output)
    replace_file(file, json.dumps(asdict(search), indent=2).encode())
    return search


def result_of(job: HyperparameterTuningJob, output: str) -> Search:
    """Return the result of a finished job: of the trials that have exported a model, the one with the best metric.

    `output` is the run's base output directory.

    Raises:
        UserError: There is none.
    """
    metric = job.study_spec.metrics[0]
    sign = -1 if metric.goal.name == "MINIMIZE" else 1
    trials = [_trial(trial, metric.metric_id) for trial in job.trials]
    succeeded = [trial for trial in trials if trial.state == "SUCCEEDED" and trial.value is not None]
    attempt = job.trial_job_spec.base_output_directory.output_uri_prefix.rpartition("/")[2]
    for trial in sorted(succeeded, key=lambda trial: sign * (trial.value or 0.0), reverse=True):
        folder = f"{output}/{TRIALS}/{attempt}/{trial.id}"
        if any(path.is_file() for path in (local_path(folder) / "model").rglob("*")):  # else it was stopped early
            return Search(metric.metric_id, trial, folder, trials)
    failed = next(
        (
            f" Trial {vertex_trial.id}: {vertex_trial.infeasible_reason}"
            for vertex_trial in job.trials
            if vertex_trial.infeasible_reason
        ),
        "",
    )
    raise UserError(
        f"None of the {len(trials)} trials has both reported {metric.metric_id} of the validation split and written a "
        f"model.{failed}",
        setting="tune.metric",
        value=metric.metric_id,
        allowed="a metric that each trial reports: slipway.training.report, or Google's package cloudml-hypertune",
    )


def _trial(trial: VertexTrial, metric: str) -> Trial:
    values = {measurement.metric_id: measurement.value for measurement in trial.final_measurement.metrics}
    value = values.get(metric)
    parameters = {parameter.parameter_id: _value(parameter.value) for parameter in trial.parameters}
    return Trial(trial.id, trial.state.name, value if value is not None and math.isfinite(value) else None, parameters)


def _value(value: object) -> Any:
    """Return a parameter's value: a number, or the choice that travelled as text."""
    return value_of(value) if isinstance(value, str) else whole_numbers(value)
