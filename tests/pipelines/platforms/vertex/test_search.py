"""`slipway tune --target vertex`: the search is the step `train` of a run, a hyperparameter tuning job of the fake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, validate
from slipway.pipelines.platforms.base import Context
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.platforms.vertex import search
from slipway.pipelines.tuning.search import settings_of
from tests.end_to_end.workspace import record_in
from tests.fakes.google import FakeGoogle
from tests.pipelines.platforms.vertex.conftest import Slipway

PARAMETERS = {
    "train.learning_rate": {"low": 0.001, "high": 0.1, "scale": "log"},
    "train.optimizer": {"choices": ["adam", "sgd"]},
    "train.momentum": {"low": 0.5, "high": 0.99, "scale": "reverse_log", "when": {"train.optimizer": ["sgd"]}},
    "train.batch_size": {"choices": [32, 64]},
    "model.arguments.width": {"low": 8, "high": 32, "step": 8},
}
TUNE = ("tune", "-c", "run.yaml", "--target", "vertex", "--set", f"tune={json.dumps({'parameters': PARAMETERS})}")
FEW = (*TUNE, "--set", "tune.trials=6", "--set", "tune.parallel=2")


def record(workspace: Path) -> dict[str, Any]:
    return record_in(workspace / "runs" / "latest")


def only_search(google: FakeGoogle) -> Any:
    (job,) = google.region.searches.jobs.values()
    return job


def test_the_best_trial_is_collected_evaluated_and_registered(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway
) -> None:
    ready_google.region.searches.objective = lambda values: 1 - abs(values["train.learning_rate"] - 0.02)
    result = slipway(*FEW)
    assert result.exit_code == 0, result.output
    job = only_search(ready_google)
    assert (job.state.name, len(job.trials)) == ("JOB_STATE_SUCCEEDED", 6)
    rates = {trial.id: trial.parameters[0].value for trial in job.trials}
    best = min(rates, key=lambda trial: abs(rates[trial] - 0.02))
    kept = record(workspace)
    outputs = next(step for step in kept["steps"] if step["name"] == "train")["outputs"]
    assert (outputs["trial"], outputs["parameters"]["train.learning_rate"]) == (best, rates[best])
    assert outputs["model"].startswith(f"gs://slipway-test-runs/runs/{kept['run_id']}/trials/{kept['run_id']}/{best}/")
    assert (kept["status"], kept["searches"], kept["verdict"]["decision"]) == ("succeeded", True, "promote")
    assert f"of trial {best}: train.learning_rate {rates[best]}" in " ".join(result.output.split())


def test_the_request_has_the_ranges_the_limits_and_the_trials_the_arguments(
    ready_google: FakeGoogle, slipway: Slipway
) -> None:
    result = slipway(
        *FEW, "--hardware", "l4x1+spot+timeout=2h", "--set", "tune.pruning=median", "--set", "tune.hours=1.5",
        "--set", "tune.failures=0", "--set", "vertex.labels={team: vision}",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    job = only_search(ready_google)
    study = job.study_spec
    assert [(metric.metric_id, metric.goal.name) for metric in study.metrics] == [("accuracy", "MAXIMIZE")]
    assert study.measurement_selection_type.name == "LAST_MEASUREMENT"
    assert study.median_automated_stopping_spec.use_elapsed_duration
    assert study.study_stopping_config.maximum_runtime_constraint.max_duration.total_seconds() == 5400
    assert (job.max_trial_count, job.parallel_trial_count, job.max_failed_trial_count) == (6, 2, 1)
    rate, optimizer, batch, width = study.parameters
    assert (rate.double_value_spec.min_value, rate.scale_type.name) == (0.001, "UNIT_LOG_SCALE")
    (condition,) = optimizer.conditional_parameter_specs
    assert list(condition.parent_categorical_values.values) == ["sgd"]
    assert condition.parameter_spec.scale_type.name == "UNIT_REVERSE_LOG_SCALE"
    assert list(batch.categorical_value_spec.values) == ["32", "64"]
    assert list(width.discrete_value_spec.values) == [8, 16, 24, 32]
    assert job.labels["team"] == "vision"
    spec = job.trial_job_spec
    assert (spec.scheduling.strategy.name, spec.scheduling.timeout.total_seconds()) == ("SPOT", 7200)
    for trial in job.trials:
        (pool,) = ready_google.region.jobs.jobs[trial.custom_job].job_spec.worker_pool_specs
        told = {each.name: each.value for each in pool.container_spec.env}
        assert told["SLIPWAY_TUNED_METRIC"] == "accuracy"
        values = {one.parameter_id: one.value for one in trial.parameters}
        assert ("train.momentum" in values) == (values["train.optimizer"] == "sgd")
        arguments = list(pool.container_spec.args)
        assert arguments[0] == "--config"
        assert [argument.partition("=")[0] for argument in arguments[2:]] == [f"--{name}" for name in values]
        assert f"--train.optimizer={values['train.optimizer']}" in arguments


def test_a_failed_search_is_explained_by_a_trials_traceback(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway
) -> None:
    ready_google.region.searches.objective = lambda _values: None
    result = slipway(*FEW, "--set", "tune.failures=1")
    assert result.exit_code == 1, result.output
    job = only_search(ready_google)
    assert (job.state.name, len(job.trials)) == ("JOB_STATE_FAILED", 2)
    error = record(workspace)["error"]
    assert (error["step"], error["job"], error["replica"]) == ("train", job.trials[0].custom_job, "workerpool0-0")
    assert error["message"].startswith("Trial 1: The replica workerpool0-0 exited with a non-zero status of 1.")
    # The lines of all trials are in the log of the search.
    ready_google.log.write_job(job.trials[1].custom_job, "workerpool0-0", "from the second trial")
    assert "trial 2 workerpool0-0 | from the second trial" in slipway("logs", "latest", "--step", "train").output


def test_a_cancelled_search_stops_its_job(ready_google: FakeGoogle, workspace: Path, slipway: Slipway) -> None:
    submitted = slipway(*FEW, "--no-wait")
    assert submitted.exit_code == 0, submitted.output
    while not ready_google.region.searches.jobs:
        slipway("status")
    assert slipway("cancel", "latest").exit_code == 0
    assert only_search(ready_google).state.name == "JOB_STATE_CANCELLING"
    assert record(workspace)["status"] == "cancelled"


def test_a_resumed_search_has_trials_of_its_own_until_it_has_succeeded(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway
) -> None:
    searches = ready_google.region.searches
    searches.objective = lambda _values: None
    assert slipway(*FEW, "--set", "tune.failures=0").exit_code == 1
    searches.objective = lambda _values: 0.5
    resumed = slipway("run", "--resume", "latest")
    assert resumed.exit_code == 0, resumed.output
    first, second = searches.jobs.values()
    run_id = record(workspace)["run_id"]
    places = [job.trial_job_spec.base_output_directory.output_uri_prefix for job in (first, second)]
    assert places == [f"gs://slipway-test-runs/runs/{run_id}/trials/{run_id}{attempt}" for attempt in ("", "-2")]
    assert second.state.name == "JOB_STATE_SUCCEEDED"


def test_the_cost_and_the_quota_are_those_of_all_trials(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway
) -> None:
    one = slipway("run", "-c", "run.yaml", "--target", "vertex", "--hardware", "l4x1+timeout=1h", "--no-wait")
    limited = (*FEW, "--hardware", "l4x1+timeout=1h")
    found = slipway(*limited, "--no-wait")
    assert found.exit_code == 0, found.output

    def worst(text: str) -> float:
        words = text.partition(" in the worst case")[0].split()
        return float(words[-1].strip("$").replace(",", ""))

    assert worst(found.output) == pytest.approx(6 * worst(one.output), rel=1e-2)
    assert "6 trials, 4 tries of 1h each" in " ".join(found.output.split())
    refused = slipway(*limited, "--set", "budget=5")
    assert (refused.exit_code, "may exceed the budget" in refused.output) == (2, True)
    ready_google.world.quotas["slipway-test", "europe-west4", "aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus"] = 1  # fmt: skip  # noqa: E501
    refused = slipway(*limited, "--no-wait")
    assert refused.exit_code == 2, refused.output
    assert "needs 2 of aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus" in refused.output


def configuration(parameters: dict[str, Any], hardware: str = "cpu", **tune: Any) -> RunConfig:
    train = tune.pop("train", {"epochs": 1})
    values = {
        "name": "digits",
        "hardware": hardware,
        "data": {"source": "digits"},
        **({} if "module" in train else {"model": {"builder": "slipway.trainer.models.digits:build"}}),
        "train": train,
        "tune": {"parameters": parameters, "metric": "loss", **tune},
    }
    return validate(values, "test.yaml")


RATE = {"train.learning_rate": {"low": 0.001, "high": 0.1}}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (configuration({"hardware": {"choices": ["cpu", "cpu*2"]}}), "hardware cannot be tuned on Vertex AI"),
        (configuration({"train.engine": {"choices": ["jax", "pytorch"]}}), "train.engine cannot be tuned on Vertex AI"),
        (configuration(RATE, trials=1001), "at most 1,000 trials"),
        (configuration(RATE, pruning="halving"), "Vertex AI has no successive halving"),
        (configuration({"train.learning_rate": {"low": 0.1, "high": 0.9, "step": 1e-4}}), "more than 1,000 values"),
        (
            configuration(
                {
                    "train.optimizer": {"choices": ["sgd", "adam"]},
                    "train.nesterov": {"choices": [True, False]},
                    "train.momentum": {
                        "low": 0.1,
                        "high": 0.9,
                        "when": {"train.optimizer": ["sgd"], "train.nesterov": [True]},
                    },
                }
            ),
            "train.momentum depends on train.optimizer and train.nesterov",
        ),
        (configuration({"train.batch_size": {"choices": [48, 50, 64]}}, hardware="l4x4"), "A batch of 50 examples"),
        (configuration({"train.processes": {"low": 1, "high": 2}}), "train.processes cannot be tuned"),
        (
            configuration({"train.restarts.at_most": {"low": 1, "high": 2}}, train={"module": "own"}),
            "own receives options only",
        ),
        (configuration(RATE, metric="my loss", direction="minimize"), "The metric 'my loss' contains a space"),
    ],
)
def test_what_vertex_ai_cannot_tune_is_refused(config: RunConfig, said: str) -> None:
    with pytest.raises(UserError) as refused:
        search.check(Context(config, platform_of("vertex"), search=settings_of(config)))
    assert said in refused.value.message


def test_values_of_options_are_as_on_this_machine() -> None:
    tune = settings_of(
        configuration(
            {"--fast": {"choices": [True, "1"]}, "model.arguments.kind": {"choices": ["a", "1", None]}},
            train={"module": "own"},
        )
    )
    fast, kind = search.parameters_of(tune.parameters)
    assert fast == {"parameter_id": "fast", "categorical_value_spec": {"values": ["True", "1"]}}
    assert kind["categorical_value_spec"]["values"] == ["a", '"1"', "null"]


def test_another_platform_refuses_a_search(slipway: Slipway) -> None:
    result = slipway("tune", "-c", "run.yaml", "--target", "tpu")
    assert (result.exit_code, "slipway tune does not search on" in result.output) == (2, True), result.output


def test_a_search_on_vertex_is_continued_as_a_run(slipway: Slipway) -> None:
    result = slipway("tune", "-c", "run.yaml", "--target", "vertex", "--continue")
    assert (result.exit_code, "a run is continued by slipway run --resume RUN" in result.output) == (2, True)
