"""Hyperparameter tuning jobs of the fake: the documented limits, the measurement that counts, and early stopping.

Source (read): https://cloud.google.com/vertex-ai/docs/reference/rest/v1/StudySpec, called StudySpec here.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from google.api_core.exceptions import InvalidArgument
from google.cloud import aiplatform_v1 as vertex

from slipway.components.cloud.connection import Connection
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.ready import BUCKET, IMAGE
from tests.fakes.vertex.studies import is_below_median

RATE = {"parameter_id": "rate", "double_value_spec": {"min_value": 0.1, "max_value": 0.9}}
KIND = {"parameter_id": "kind", "categorical_value_spec": {"values": ["a", "b"]}}


def request(parameters: list[dict[str, Any]], study: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    container = {"image_uri": IMAGE, "args": ["--fast"]}
    pool = {"machine_spec": {"machine_type": "n1-standard-4"}, "replica_count": 1, "container_spec": container}
    return {
        "display_name": "search",
        "study_spec": {
            "metrics": [{"metric_id": "loss", "goal": "MINIMIZE"}],
            "parameters": parameters,
            **(study or {}),
        },
        "max_trial_count": 2,
        "parallel_trial_count": 1,
        "trial_job_spec": {
            "worker_pool_specs": [pool],
            "base_output_directory": {"output_uri_prefix": f"gs://{BUCKET}/search/"},
        },
        **fields,
    }


def create(google: FakeGoogle, job: dict[str, Any]) -> Any:
    jobs = Connection(PROJECT, REGION, google.endpoints).jobs
    parent = f"projects/{PROJECT}/locations/{REGION}"
    made = jobs.create_hyperparameter_tuning_job(parent=parent, hyperparameter_tuning_job=job)
    while made.state.name in ("JOB_STATE_PENDING", "JOB_STATE_RUNNING"):
        made = jobs.get_hyperparameter_tuning_job(name=made.name)
    return made


def conditional(values: list[str], child: dict[str, Any] = RATE) -> dict[str, Any]:
    condition = {"parent_categorical_values": {"values": values}, "parameter_spec": child}
    return {**KIND, "conditional_parameter_specs": [condition]}


def discrete(values: list[float]) -> dict[str, Any]:
    return {"parameter_id": "size", "discrete_value_spec": {"values": values}}


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (request([{**RATE, "parameter_id": "my rate"}]), "must not contain whitespaces"),
        (request([RATE, RATE]), "not unique"),
        (request([]), "no parameters"),
        (request([{"parameter_id": "rate"}]), "no value spec"),
        (request([{**KIND, "scale_type": "UNIT_LINEAR_SCALE"}]), "CATEGORICAL parameter kind has a scale type"),
        (
            request([{**RATE, "double_value_spec": {"max_value": 1.0}, "scale_type": "UNIT_REVERSE_LOG_SCALE"}]),
            "strictly positive",
        ),
        (request([discrete([2.0, 1.0])]), "must be increasing"),
        (request([discrete([1.0, 1.0 + 1e-11])]), "1e-10 apart"),
        (request([discrete([float(number) for number in range(1001)])]), "at most 1000"),
        (request([conditional(["c"])]), "values that it cannot have"),
        (
            request([{**RATE, "double_value_spec": {"min_value": 0.1, "max_value": 0.9, "default_value": 0.5}}]),
            "not supported by HyperparameterTuningJob",
        ),
        (request([RATE], {"algorithm": "GRID_SEARCH"}), "GRID_SEARCH does not support DOUBLE"),
        (request([RATE], {"metrics": [{"metric_id": "a loss", "goal": "MINIMIZE"}]}), "must not contain whitespaces"),
        (request([RATE], max_trial_count=1001), "max_trial_count must be 1 to 1000"),
        (request([RATE], parallel_trial_count=0), "parallel_trial_count at least 1"),
    ],
)
def test_what_the_documentation_excludes_is_refused(ready_google: FakeGoogle, job: dict[str, Any], said: str) -> None:
    """Ids, feasible spaces, conditions and numbers of trials; tests/fakes/vertex/studies.py quotes each sentence.

    Source (read): https://cloud.google.com/vertex-ai/docs/reference/rest/v1/StudySpec, and for the number of trials
    https://cloud.google.com/ai-platform/optimizer/docs/quotas
    """
    with pytest.raises(InvalidArgument, match=said):
        create(ready_google, job)


def test_trials_are_custom_jobs_with_arguments_and_folders_of_their_own(ready_google: FakeGoogle) -> None:
    """`--NAME=VALUE` follows the container's arguments; the folder is a subdirectory named after the trial's id.

    Source (read): CustomJobSpec.base_output_directory, and the page "Use hyperparameter tuning".
    """
    job = create(ready_google, request([conditional(["a"])], max_trial_count=8, parallel_trial_count=3))
    assert [trial.id for trial in job.trials] == [str(number) for number in range(1, 9)]
    kinds = set()
    for trial in job.trials:
        spec = ready_google.region.jobs.jobs[trial.custom_job].job_spec
        assert spec.base_output_directory.output_uri_prefix == f"gs://{BUCKET}/search/{trial.id}"
        values = {one.parameter_id: one.value for one in trial.parameters}
        assert ("rate" in values) == (values["kind"] == "a")
        kinds.add(values["kind"])
        told = [f"--{name}={value}" for name, value in values.items()]
        assert list(spec.worker_pool_specs[0].container_spec.args) == ["--fast", *told]
    assert kinds == {"a", "b"}


def test_a_job_fails_with_the_number_of_failed_trials_that_it_allows_to_see(ready_google: FakeGoogle) -> None:
    """Source (read): HyperparameterTuningJob.max_failed_trial_count."""
    ready_google.region.searches.objective = lambda values: None if values["rate"] < 0.99 else 1.0
    job = create(ready_google, request([RATE], max_trial_count=9, max_failed_trial_count=3))
    assert (job.state.name, len(job.trials)) == ("JOB_STATE_FAILED", 3)
    assert {trial.state.name for trial in job.trials} == {"INFEASIBLE"}


def trial(*values: float, every: float = 1.0) -> vertex.Trial:
    measured = [
        {
            "elapsed_duration": timedelta(seconds=every * number),
            "step_count": number,
            "metrics": [{"metric_id": "loss", "value": value}],
        }
        for number, value in enumerate(values, 1)
    ]
    return vertex.Trial(measurements=measured)


@pytest.mark.parametrize(
    ("by_time", "values", "stops"),
    [(False, (0.9, 0.8), True), (False, (0.9, 0.3), False), (True, (0.9, 0.8), False), (False, (), False)],
)
def test_a_trial_is_stopped_if_its_best_value_is_below_the_median_of_averages(
    by_time: bool, values: tuple[float, ...], stops: bool
) -> None:
    """By steps, the others' averages until step 2 are 0.5, 0.55 and 0.9; by time, only the slow one has measured.

    Source (read): StudySpec.MedianAutomatedStoppingSpec.
    """
    study = vertex.StudySpec(
        metrics=[{"metric_id": "loss", "goal": "MINIMIZE"}],
        median_automated_stopping_spec={"use_elapsed_duration": by_time},
    )
    others = [trial(0.6, 0.4, 0.1, every=60.0), trial(0.7, 0.4, every=60.0), trial(0.9, 0.9, every=1.0)]
    assert is_below_median(study, trial(*values), others) == stops


def test_without_a_rule_no_trial_is_stopped() -> None:
    """Source (read): StudySpec.automated_stopping_spec."""
    study = vertex.StudySpec(metrics=[{"metric_id": "loss", "goal": "MINIMIZE"}])
    assert not is_below_median(study, trial(9.0), [trial(0.1)])
