"""The fake accepts what Vertex AI accepts and rejects the rest, called by Google's client."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import status_of
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.ready import AGENTS, BUCKET, REPOSITORY, RUNNER, take_away, vertex_settings
from tests.fakes.vertex.script import Failure


@pytest.fixture(scope="module")
def specification(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The compiled pipeline of configs/digits.yaml with a section vertex, by hardware."""
    folder: Path = tmp_path_factory.mktemp("spec")

    def compiled(settings: dict[str, Any], hardware: str = "l4x4*2") -> dict[str, Any]:
        from slipway.pipelines.config.config import validate
        from slipway.pipelines.images.images import Images
        from slipway.pipelines.platforms.vertex.submission import compile_pipeline

        values = yaml.safe_load(Path("configs/digits.yaml").read_text())
        config = validate({**values, "hardware": hardware, "vertex": settings}, "the test")
        images = Images.one(settings["image"])
        compile_pipeline(config, images, folder / "spec.yaml")
        return dict(yaml.safe_load((folder / "spec.yaml").read_text()))

    return compiled


def request_of(specification: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "parent": f"projects/{PROJECT}/locations/{REGION}",
        "pipeline_job_id": "digits-1",
        "pipeline_job": {
            "display_name": "digits",
            "pipeline_spec": specification,
            "service_account": RUNNER,
            "runtime_config": {"gcs_output_directory": f"gs://{BUCKET}/pipelines"},
            **more,
        },
    }


def run(google: FakeGoogle, specification: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """Poll a run to its end; return the job and the states of its tasks by name."""
    client = Connection(PROJECT, REGION, google.endpoints).pipelines
    job = client.create_pipeline_job(request_of(specification))
    for _ in range(40):
        job = client.get_pipeline_job(name=job.name)
        if job.state.name not in ("PIPELINE_STATE_PENDING", "PIPELINE_STATE_RUNNING"):
            break
    return job, {task.task_name: task.state.name for task in job.job_detail.task_details}


def test_a_run_goes_through_its_tasks_and_makes_the_custom_job(ready_google, specification):
    job, tasks = run(ready_google, specification(vertex_settings(ready_google)))
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED"
    assert set(tasks.values()) == {"SUCCEEDED"}
    trained = [made for made in ready_google.region.jobs.jobs.values() if made.display_name == "digits"]
    assert len(trained) == 1
    pools = trained[0].job_spec.worker_pool_specs
    assert [(pool.replica_count, pool.machine_spec.accelerator_count) for pool in pools] == [(1, 4), (1, 4)]
    assert trained[0].job_spec.base_output_directory.output_uri_prefix == f"gs://{BUCKET}/runs/digits-1"
    assert trained[0].job_spec.scheduling.restart_job_on_worker_restart, "replicas that train together start together"


def test_a_failure_stops_what_needs_the_task(ready_google, specification):
    step = ready_google.region.pipelines.script["custom-training-job"]
    step.failure, step.logs = Failure(replica="workerpool1-0"), {"workerpool1-0": ["first", "second"]}
    job, tasks = run(ready_google, specification(vertex_settings(ready_google)))
    assert job.state.name == "PIPELINE_STATE_FAILED"
    assert (tasks["custom-training-job"], tasks["evaluate"]) == ("FAILED", "NOT_TRIGGERED")
    failed = next(task for task in job.job_detail.task_details if task.state.name == "FAILED")
    assert "workerpool1-0 exited with a non-zero status of 1" in failed.error.message
    assert "customJobs/" in failed.execution.metadata["output:gcp_resources"]
    lines = [entry["jsonPayload"]["message"] for entry in ready_google.log.entries]
    assert lines[:2] == ["first", "second"]


@pytest.mark.parametrize(
    ("hardware", "machine", "sentence"),
    [
        ("l4x4*2", {"machine_type": "n1-standard-4"}, 'Accelerator "NVIDIA_L4" is not supported for machine type "n1-'),
        ("l4x4*2", {"accelerator_count": None}, "Both `accelerator_type` and `accelerator_count` should be specified"),
        ("l4x4*2", {"machine_type": "n9-standard-4"}, "Machine type n9-standard-4 is not supported."),
        ("cpu", {"replicas": 2}, "Chief spec replica count cannot be greater than 1."),
        ("tpu-v5e-2x4", {"tpu_topology": "3x3"}, "is not supported for machine type"),
        ("tpu-v5e-2x4", {"twice": True}, "TPU jobs must have exactly one worker pool with a replica count of 1."),
    ],
)
def test_worker_pools_that_cannot_be_are_refused(ready_google, hardware, machine, sentence):
    from slipway.pipelines.hardware import parse

    pools = parse(hardware).worker_pools()
    for pool in pools:
        pool["container_spec"] = {"image_uri": vertex_settings(ready_google)["image"]}
        pool["replica_count"] = machine.get("replicas", pool["replica_count"])
        known = {key: value for key, value in machine.items() if key not in ("replicas", "twice")}
        pool["machine_spec"] = {k: v for k, v in {**pool["machine_spec"], **known}.items() if v is not None}
    jobs = Connection(PROJECT, REGION, ready_google.endpoints).jobs
    spec = {"worker_pool_specs": pools * (2 if machine.get("twice") else 1)}
    with pytest.raises(Exception, match="400") as refused:
        jobs.create_custom_job(
            parent=f"projects/{PROJECT}/locations/{REGION}", custom_job={"display_name": "job", "job_spec": spec}
        )
    assert sentence in str(refused.value)


def test_a_quota_that_is_used_up_refuses_the_job(ready_google, specification):
    metric = "aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus"
    ready_google.world.quotas[(PROJECT, REGION, metric)] = 7
    job, tasks = run(ready_google, specification(vertex_settings(ready_google)))
    assert tasks["custom-training-job"] == "FAILED"
    error = next(task.error.message for task in job.job_detail.task_details if task.state.name == "FAILED")
    assert error == f"RESOURCE_EXHAUSTED: The following quota metrics exceed quota limits: {metric}"


def without_agents(google: FakeGoogle, job: dict[str, Any]) -> None:
    for email in AGENTS:
        google.world.accounts.pop(email)


def by_a_user(google: FakeGoogle, job: dict[str, Any]) -> None:
    google.world.owners.clear()


def no_bucket_rights(google: FakeGoogle, job: dict[str, Any]) -> None:
    take_away(google, f"buckets/{BUCKET}", "roles/storage.objectUser")


def no_account(google: FakeGoogle, job: dict[str, Any]) -> None:
    job["pipeline_job"]["service_account"] = "nobody@slipway-test.iam.gserviceaccount.com"


def set_field(**fields: Any) -> Callable[[FakeGoogle, dict[str, Any]], None]:
    return lambda _google, job: job["pipeline_job"].update(fields)


@pytest.mark.parametrize(
    ("damage", "status", "sentence"),
    [
        (without_agents, 400, "Service agents are being provisioned"),
        (by_a_user, 403, "aiplatform.pipelineJobs.create"),
        (no_bucket_rights, 400, "does not have `[storage.objects.get, storage.objects.create]` IAM permission(s)"),
        (no_account, 403, "You do not have permission to act as service account: nobody@"),
        (set_field(runtime_config={"gcs_output_directory": "gs://bucket"}), 400, "must be gs://bucket/object"),
        (set_field(network="projects/p/global/networks/n"), 400, "must be of the form projects/{project_number}"),
        (set_field(labels={"Upper": "x"}), 400, "Invalid label key"),
        (set_field(pipeline_spec={"schemaVersion": "2.1.0"}), 400, "no pipelineInfo.name"),
        (lambda google, job: job.update(pipeline_job_id="Digits_1"), 400, "must match the regex"),
        (lambda google, job: job.update(parent=f"projects/{PROJECT}/locations/us-central1"), 400, "location us-cent"),
        (
            set_field(
                runtime_config={"gcs_output_directory": "gs://slipway-test-runs/p", "parameter_values": {"champ": "1"}}
            ),
            400,
            "champ is not defined",
        ),
    ],
)
def test_a_pipeline_job_that_cannot_be_is_refused(ready_google, specification, damage, status, sentence):
    request = request_of(specification(vertex_settings(ready_google)))
    damage(ready_google, request)
    client = Connection(PROJECT, REGION, ready_google.endpoints).pipelines
    with pytest.raises(Exception, match=re.escape(sentence)) as refused:
        client.create_pipeline_job(request)
    assert status_of(refused.value) == status
    assert not ready_google.region.pipelines.jobs


def test_a_job_of_the_same_id_exists_already(ready_google, specification):
    client = Connection(PROJECT, REGION, ready_google.endpoints).pipelines
    request = request_of(specification(vertex_settings(ready_google)))
    client.create_pipeline_job(request)
    with pytest.raises(Exception, match="already exists") as refused:
        client.create_pipeline_job(request)
    assert status_of(refused.value) == 409


def test_an_image_that_the_agent_may_not_pull_fails_the_task(ready_google, specification):
    take_away(ready_google, REPOSITORY, "roles/artifactregistry.reader")
    job, _ = run(ready_google, specification(vertex_settings(ready_google)))
    failed = [task for task in job.job_detail.task_details if task.state.name == "FAILED"]
    assert {"prepare-data", "find-champion", "setup-access"} <= {task.task_name for task in failed}
    assert "does not have permission to access Artifact Registry repository" in failed[0].error.message
