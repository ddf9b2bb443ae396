"""Runs that were cloned in the console with other parameters, with Google's client against the fakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from google.cloud import aiplatform_v1 as vertex

from slipway.components.cloud.connection import Connection
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.ready import BUCKET
from tests.pipelines.platforms.vertex.conftest import Slipway


def cloned(google: FakeGoogle, **parameters: Any) -> vertex.PipelineJob:
    """Do what "Clone" does in the console: create a job with the only one's spec and other parameters; run it."""
    [original] = google.region.pipelines.jobs.values()
    clone = vertex.PipelineJob(
        display_name=original.display_name,
        pipeline_spec=original.pipeline_spec,
        runtime_config=original.runtime_config,
        service_account=original.service_account,
    )
    clone.runtime_config.parameter_values.update(parameters)
    client = Connection(PROJECT, REGION, google.endpoints).pipelines
    made = client.create_pipeline_job(
        parent=f"projects/{PROJECT}/locations/{REGION}", pipeline_job=clone, pipeline_job_id="clone"
    )
    return google.region.pipelines.run_to_end(made.name)


def test_a_cloned_run_trains_with_its_own_parameters(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    assert slipway("run", "-c", "run.yaml", "--target", "vertex", "--no-check", "--hardware", "cpu*2").exit_code == 0
    job = cloned(ready_google, learning_rate=0.25, epochs=2.0, batch_size=600, seed=5)
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED"
    first, second = [job for job in ready_google.region.jobs.jobs.values() if job.display_name == "digits"]
    given = [json.loads(job.job_spec.worker_pool_specs[1].container_spec.args[1]) for job in (first, second)]
    assert [one["train"]["learning_rate"] for one in given] == [0.001, 0.25]
    assert [one["train"]["seed"] for one in given] == [0, 5]
    # The plan follows the parameters: 59,968 examples.
    assert [one["plan"]["batch_per_replica"] for one in given] == [32, 300]
    assert [one["plan"]["steps"] for one in given] == [3 * 937, 2 * 99]
    assert second.job_spec.base_output_directory.output_uri_prefix == f"gs://{BUCKET}/runs/clone"


def test_an_invalid_parameter_is_a_user_error_of_its_step(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    assert slipway("run", "-c", "run.yaml", "--target", "vertex", "--no-check").exit_code == 0
    job = cloned(ready_google, batch_size=0)
    assert job.state.name == "PIPELINE_STATE_FAILED"
    states = {task.task_name: task.state.name for task in job.job_detail.task_details}
    assert (states["plan-training"], states["custom-training-job"]) == ("FAILED", "NOT_TRIGGERED")
    lines = [entry["jsonPayload"]["message"] for entry in ready_google.log.entries if "jsonPayload" in entry]
    assert any("The parameter batch_size is invalid: input should be greater than 0." in line for line in lines)


def test_a_run_shows_its_values_in_the_console(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    changed = ("--set", "train.learning_rate=0.01", "--set", "evaluate.gate.minimum=0.5", "--no-wait")
    assert slipway("run", "-c", "run.yaml", "--target", "vertex", "--no-check", *changed).exit_code == 0
    [job] = ready_google.region.pipelines.jobs.values()
    assert dict(job.runtime_config.parameter_values) == {
        "data_source": "digits",
        "epochs": 3,
        "batch_size": 64,
        "learning_rate": 0.01,
        "seed": 0,
        "gate_minimum": 0.5,
    }
