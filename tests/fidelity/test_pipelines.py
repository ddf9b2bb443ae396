"""The fake accepts what Vertex AI accepts and rejects the rest, called by Google's client."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.api_core.exceptions import AlreadyExists, NotFound
from google.cloud import aiplatform_v1 as vertex
from google.protobuf.json_format import MessageToDict

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import status_of
from tests.fakes.google import NUMBER, PROJECT, REGION, FakeGoogle
from tests.fakes.ready import AGENTS, BUCKET, REPOSITORY, RUNNER, grant, take_away, vertex_settings
from tests.fakes.vertex.script import Failure


@pytest.fixture(scope="module")
def specification(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The compiled pipeline of configs/digits.yaml with a section vertex, by hardware."""
    folder: Path = tmp_path_factory.mktemp("spec")

    def compiled(settings: dict[str, Any], hardware: str = "l4x4*2") -> dict[str, Any]:
        from slipway.pipelines.config.config import validate
        from slipway.pipelines.platforms.vertex.images import Images
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


def test_the_launcher_creates_the_custom_job_of_its_payload(ready_google, specification):
    """A container with Google's launcher image and `--type CustomJob` creates the job in its argument `--payload`.

    Source (read): google_cloud_pipeline_components/container/v1/custom_job/launcher.py in the package.
    """
    job, tasks = run(ready_google, specification(vertex_settings(ready_google)))
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED"
    assert set(tasks.values()) == {"SUCCEEDED"}
    trained = [made for made in ready_google.region.jobs.jobs.values() if made.display_name == "digits"]
    assert len(trained) == 1
    pools = trained[0].job_spec.worker_pool_specs
    assert [(pool.replica_count, pool.machine_spec.accelerator_count) for pool in pools] == [(1, 4), (1, 4)]
    assert trained[0].job_spec.base_output_directory.output_uri_prefix == f"gs://{BUCKET}/runs/digits-1"
    assert trained[0].job_spec.scheduling.restart_job_on_worker_restart, "replicas that train together start together"


def test_a_failed_task_fails_the_run_and_what_depends_on_it_is_not_triggered(ready_google, specification):
    """The task's error names the replica, and its execution the job (metadata `output:gcp_resources`).

    Source (read): PipelineTaskDetail.State in pipeline_job.proto; gcp_resources.proto of
    google_cloud_pipeline_components.
    """
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


# GoogleCloudPlatform/k8s-config-connector at 729252c2f5: pkg/test/resourcefixture/testdata/basic/aiplatform/v1alpha1/
# vertexaipipelinejob/vertexaipipelinejob-{minimal,maximal}/_http.log


def test_a_new_job_is_stored_as_it_was_sent(ready_google):
    """The spec is a Struct: a field that no PipelineSpec has is kept. The service adds a label and, where none is set,
    the default account of Compute Engine, but no failure policy. An image without a registry is accepted.

    Source (recorded): vertexaipipelinejob-minimal and -maximal (KCC).
    """
    spec = cached_pipeline(enable_cache=False) | {"deploymentConfig": {"@type": "type.googleapis.com/x"}}
    spec["deploymentSpec"] = {"executors": {"exec-one": {"container": {"image": "alpine:latest", "command": ["x"]}}}}
    client = Connection(PROJECT, REGION, ready_google.endpoints).pipelines
    grant(
        ready_google, f"buckets/{BUCKET}", "roles/storage.objectUser", f"{NUMBER}-compute@developer.gserviceaccount.com"
    )
    made = client.create_pipeline_job(request_of(spec, service_account="", labels={"team": "vision"}))
    for job in (made, client.get_pipeline_job(name=made.name)):
        assert MessageToDict(vertex.PipelineJob.pb(job).pipeline_spec) == spec
        assert job.name == f"projects/{NUMBER}/locations/{REGION}/pipelineJobs/digits-1"
        assert (job.state.name, job.service_account) == (
            "PIPELINE_STATE_PENDING",
            f"{NUMBER}-compute@developer.gserviceaccount.com",
        )
        assert job.runtime_config.failure_policy.name == "PIPELINE_FAILURE_POLICY_UNSPECIFIED"
        assert job.labels.pop("team") == "vision"
        assert re.fullmatch(r"\d{18}", job.labels.pop("vertex-ai-pipelines-run-billing-id"))
        assert not job.labels


def test_a_pending_job_has_an_empty_detail(ready_google):
    """Neither contexts nor tasks nor a start time. Source (recorded): vertexaipipelinejob-maximal (KCC)."""
    client = Connection(PROJECT, REGION, ready_google.endpoints).pipelines
    job = client.create_pipeline_job(request_of(cached_pipeline()))
    assert "job_detail" not in job
    job = client.get_pipeline_job(name=job.name)
    assert (job.state.name, "job_detail" in job, "start_time" in job) == ("PIPELINE_STATE_PENDING", True, False)
    assert job.job_detail == vertex.PipelineJobDetail()


def test_a_job_that_is_cancelled_while_it_is_pending_has_no_tasks(ready_google):
    """It has an end but no start; its contexts are that of the run and that of the pipeline, the run's parent.

    Source (recorded): vertexaipipelinejob-maximal (KCC).
    """
    client = Connection(PROJECT, REGION, ready_google.endpoints).pipelines
    name = client.create_pipeline_job(request_of(cached_pipeline())).name
    client.cancel_pipeline_job(name=name)
    job = client.get_pipeline_job(name=name)
    assert (job.state.name, "start_time" in job, "end_time" in job) == ("PIPELINE_STATE_CANCELLED", False, True)
    assert not job.job_detail.task_details
    pipeline, run = job.job_detail.pipeline_context, job.job_detail.pipeline_run_context
    store = f"projects/{NUMBER}/locations/{REGION}/metadataStores/default/contexts"
    assert (pipeline.name, pipeline.schema_title) == (f"{store}/digits", "system.Pipeline")
    assert (run.name, run.schema_title) == (f"{store}/digits-1", "system.PipelineRun")
    assert list(run.parent_contexts) == [pipeline.name]


def test_an_absent_job_is_not_named_in_the_error(ready_google):
    """Source (recorded): vertexaipipelinejob-minimal and -maximal (KCC)."""
    client = Connection(PROJECT, REGION, ready_google.endpoints).pipelines
    with pytest.raises(NotFound) as absent:
        client.get_pipeline_job(name=f"projects/{PROJECT}/locations/{REGION}/pipelineJobs/none")
    assert absent.value.message == "The PipelineJob does not exist."


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
def test_a_pipeline_job_that_cannot_run_is_refused(ready_google, specification, damage, status, sentence):
    """Source (reported): CreatePipelineJobRequest and PipelineJob in pipeline_service.proto and pipeline_job.proto
    (ids, labels, network); the sentences about service agents, actAs and the bucket were reported, the others are not
    documented.
    """
    request = request_of(specification(vertex_settings(ready_google)))
    damage(ready_google, request)
    client = Connection(PROJECT, REGION, ready_google.endpoints).pipelines
    with pytest.raises(Exception, match=re.escape(sentence)) as refused:
        client.create_pipeline_job(request)
    assert status_of(refused.value) == status
    assert not ready_google.region.pipelines.jobs


def test_an_id_of_a_pipeline_job_is_used_once(ready_google, specification):
    """Source (read): CreatePipelineJobRequest.pipeline_job_id in pipeline_service.proto."""
    client = Connection(PROJECT, REGION, ready_google.endpoints).pipelines
    request = request_of(specification(vertex_settings(ready_google)))
    client.create_pipeline_job(request)
    with pytest.raises(Exception, match="already exists") as refused:
        client.create_pipeline_job(request)
    assert status_of(refused.value) == 409


def test_the_service_agent_pulls_the_images_of_steps(ready_google, specification):
    """Without roles/artifactregistry.reader for the agent, the tasks fail, whatever the run-as account may do.

    Source (reported): https://cloud.google.com/vertex-ai/docs/pipelines/configure-project; the sentence was reported.
    """
    take_away(ready_google, REPOSITORY, "roles/artifactregistry.reader")
    job, _ = run(ready_google, specification(vertex_settings(ready_google)))
    failed = [task for task in job.job_detail.task_details if task.state.name == "FAILED"]
    assert {"prepare-data", "find-champion", "setup-access"} <= {task.task_name for task in failed}
    assert "does not have permission to access Artifact Registry repository" in failed[0].error.message


ECHO = {"image": "r.example.com/i:1", "command": ["run", "{{$.inputs.parameters['output']}}"]}


def cached_pipeline(*, enable_cache: bool | None = True, name: str = "digits", output: str = "gs://b/o") -> Any:
    """A pipeline of prepare-data and, with its artifact, evaluate; both are cached unless told otherwise."""
    options = {} if enable_cache is None else {"enableCache": enable_cache}
    dataset = {"dataset": {"artifactType": {"schemaTitle": "system.Dataset", "schemaVersion": "0.0.1"}}}
    text = {"parameters": {"output": {"parameterType": "STRING"}}}
    given = {"parameters": {"output": {"runtimeValue": {"constant": output}}}}
    produced = {"taskOutputArtifact": {"producerTask": "prepare-data", "outputArtifactKey": "dataset"}}
    return {
        "schemaVersion": "2.1.0",
        "pipelineInfo": {"name": name},
        "components": {
            "comp-data": {
                "executorLabel": "exec-one",
                "inputDefinitions": text,
                "outputDefinitions": {"artifacts": dataset},
            },
            "comp-evaluate": {"executorLabel": "exec-one", "inputDefinitions": {**text, "artifacts": dataset}},
        },
        "deploymentSpec": {"executors": {"exec-one": {"container": ECHO}}},
        "root": {
            "dag": {
                "tasks": {
                    "prepare-data": {
                        "taskInfo": {"name": "prepare-data"},
                        "componentRef": {"name": "comp-data"},
                        "cachingOptions": options,
                        "inputs": given,
                    },
                    "evaluate": {
                        "taskInfo": {"name": "evaluate"},
                        "componentRef": {"name": "comp-evaluate"},
                        "cachingOptions": {"enableCache": True},
                        "dependentTasks": ["prepare-data"],
                        "inputs": {**given, "artifacts": {"dataset": produced}},
                    },
                }
            }
        },
    }


def states(google: FakeGoogle, *specifications: Any) -> list[tuple[str, str]]:
    """The states of prepare-data and evaluate in one run of each specification after the other."""
    client = Connection(PROJECT, REGION, google.endpoints).pipelines
    found = []
    for number, specification in enumerate(specifications):
        request = request_of(specification) | {"pipeline_job_id": f"digits-{number}"}
        job = client.create_pipeline_job(request)
        while job.state.name in ("PIPELINE_STATE_PENDING", "PIPELINE_STATE_RUNNING"):
            job = client.get_pipeline_job(name=job.name)
        tasks = {task.task_name: task.state.name for task in job.job_detail.task_details}
        found.append((tasks["prepare-data"], tasks["evaluate"]))
    return found


def test_a_cached_task_with_the_same_inputs_is_skipped_for_ever(ready_google):
    """Cached results have no time to live; what a task reads (the files of a bucket) is not among its inputs.

    Source (read): documentation page cloud.google.com/vertex-ai/docs/pipelines/configure-caching; SKIPPED is "due to
    cache hit" in the proto of PipelineTaskDetail.State.
    """
    assert states(ready_google, *[cached_pipeline()] * 3) == [
        ("SUCCEEDED", "SUCCEEDED"),
        ("SKIPPED", "SKIPPED"),
        ("SKIPPED", "SKIPPED"),
    ]


@pytest.mark.parametrize("off", [False, None])
def test_a_task_is_cached_only_if_its_spec_says_so(ready_google, off):
    """kfp writes `cachingOptions: {}` for set_caching_options(False), which the page gives to turn the cache off.

    Source (read): documentation page cloud.google.com/vertex-ai/docs/pipelines/configure-caching; kfp's
    compiler_test.py::test_compile_pipeline_with_caching_disabled.
    """
    assert states(ready_google, *[cached_pipeline(enable_cache=off)] * 2)[1][0] == "SUCCEEDED"


def test_another_artifact_is_another_input_even_with_the_same_uri(ready_google):
    """The interface has the ids of the input artifacts: after a task that runs each time, all that need it run.

    Source (read): documentation page cloud.google.com/vertex-ai/docs/pipelines/configure-caching.
    """
    assert states(ready_google, *[cached_pipeline(enable_cache=False)] * 2)[1] == ("SUCCEEDED", "SUCCEEDED")


@pytest.mark.parametrize("change", [{"name": "letters"}, {"output": "gs://b/other"}])
def test_only_equal_inputs_in_pipelines_of_one_name_share_results(ready_google, change):
    """Another value of a parameter, or another name of the pipeline, is a miss.

    Source (read): documentation page cloud.google.com/vertex-ai/docs/pipelines/configure-caching.
    """
    assert states(ready_google, cached_pipeline(), cached_pipeline(**change))[1] == ("SUCCEEDED", "SUCCEEDED")


def test_a_placeholder_does_not_distinguish_runs_in_the_cache(ready_google):
    """`{{$.pipeline_job_name}}` in a value is compared as it stands: suspected, and the worse of the two.

    Source (read): the page (cloud.google.com/vertex-ai/docs/pipelines/configure-caching) does not say; the driver of
    Kubeflow Pipelines (backend/src/v2/driver, resolving input parameters) replaces only a value that is nothing else.
    """
    runs = [cached_pipeline(output="gs://b/runs/{{$.pipeline_job_name}}")] * 2
    assert states(ready_google, *runs)[1] == ("SKIPPED", "SKIPPED")


def test_a_pipeline_has_a_context_with_its_name(ready_google):
    """An experiment of that name cannot be created; it would be a context of another schema.

    Source (recorded): jobDetail.pipelineContext in vertexaipipelinejob-maximal (KCC).
    """
    connection = Connection(PROJECT, REGION, ready_google.endpoints)
    name = connection.pipelines.create_pipeline_job(request_of(cached_pipeline())).name
    while not connection.pipelines.get_pipeline_job(name=name).job_detail.task_details:
        pass
    store = f"projects/{PROJECT}/locations/{REGION}/metadataStores/default"
    context = {"schema_title": "system.Experiment", "schema_version": "0.0.1"}
    with pytest.raises(AlreadyExists):
        connection.metadata.create_context(parent=store, context=context, context_id="digits")
