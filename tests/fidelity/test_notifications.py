"""Exit tasks of Vertex AI, Pub/Sub and Secret Manager, called by Google's clients.

kfp reads a pipeline's annotations as objects, so they are not postponed here.
"""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from google_cloud_pipeline_components.v1.vertex_notification_email import VertexNotificationEmailOp
from kfp import compiler, dsl

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import status_of
from tests.fakes.google import PROJECT, REGION, SUBMITTER, FakeGoogle
from tests.fakes.ready import BUCKET, IMAGE, RUNNER, grant
from tests.fakes.vertex.script import Failure

TOPIC = f"projects/{PROJECT}/topics/runs"
SECRET = f"projects/{PROJECT}/secrets/webhook"


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def work() -> None:
    pass


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def end(status: dsl.PipelineTaskFinalStatus) -> None:
    pass


def run(google: FakeGoogle, folder: Path, *exits: Callable[[], Any]) -> tuple[str, dict[str, Any]]:
    """Run a pipeline of two steps and exit tasks to its end; return its state and its tasks' details by name."""
    first, *others = exits or [end]

    @dsl.pipeline(name="exits")
    def pipeline() -> None:
        with dsl.ExitHandler(first()) as group:
            one = work()
            work().after(one)
        for other in others:
            other().after(group).ignore_upstream_failure()

    compiler.Compiler().compile(pipeline, str(folder / "spec.yaml"))
    client = Connection(PROJECT, REGION, google.endpoints).pipelines
    job = client.create_pipeline_job(
        parent=f"projects/{PROJECT}/locations/{REGION}",
        pipeline_job_id="exits-1",
        pipeline_job={
            "display_name": "exits",
            "pipeline_spec": yaml.safe_load((folder / "spec.yaml").read_text()),
            "service_account": RUNNER,
            "runtime_config": {"gcs_output_directory": f"gs://{BUCKET}/p", "failure_policy": 2},
        },
    )
    for _ in range(40):
        job = client.get_pipeline_job(name=job.name)
        if job.state.name not in ("PIPELINE_STATE_PENDING", "PIPELINE_STATE_RUNNING"):
            break
    return job.state.name, {task.task_name: task for task in job.job_detail.task_details}


def test_an_exit_task_starts_after_all_others_even_if_one_failed(ready_google: FakeGoogle, tmp_path: Path) -> None:
    """The exit task of an ExitHandler runs when the tasks in it have ended, also under fail-fast; the run stays failed.

    Source (read): TriggerPolicy.TriggerStrategy.ALL_UPSTREAM_TASKS_COMPLETED in kfp's pipeline_spec.proto;
    documentation of e-mail notifications (https://cloud.google.com/vertex-ai/docs/pipelines/email-notifications: "When
    the pipeline exits, Google Cloud sends a final status notification email").
    """
    ready_google.region.pipelines.script["work"].failure = Failure()
    state, tasks = run(ready_google, tmp_path)
    assert state == "PIPELINE_STATE_FAILED"
    assert {name: task.state.name for name, task in tasks.items()} == {
        "work": "FAILED",
        "work-2": "NOT_TRIGGERED",
        "exit-handler-1": "FAILED",
        "end": "SUCCEEDED",
    }
    assert tasks["end"].start_time >= tasks["work"].end_time


def test_a_final_status_names_the_job_and_the_state(ready_google: FakeGoogle, tmp_path: Path) -> None:
    """An input of the type PipelineTaskFinalStatus has state, job, task and, after a failure, an error.

    Source (read): message PipelineTaskFinalStatus in kfp's pipeline_spec.proto; its JSON keys in kfp/dsl/executor.py.
    """
    _, tasks = run(ready_google, tmp_path)
    given = dict(tasks["end"].execution.metadata["input:status"])
    name = f"projects/123456789012/locations/{REGION}/pipelineJobs/exits-1"
    assert given == {"state": "SUCCEEDED", "pipelineJobResourceName": name, "pipelineTaskName": "exit-handler-1"}


def test_the_final_status_of_failed_steps_names_them(ready_google: FakeGoogle, tmp_path: Path) -> None:
    """The error of an exit task's final status is that of the job, without the job's name; its code is 9.

    Source (reported): kubeflow/pipelines, sdk/python/kfp/dsl/executor_test.py, a status of Vertex AI; the job's error
    in reports of 2026-07.
    """
    ready_google.region.pipelines.script["work"].failure = Failure()
    _, tasks = run(ready_google, tmp_path)
    given = dict(tasks["end"].execution.metadata["input:status"])
    message = "The DAG failed because some tasks failed. The failed tasks are: [work]."
    assert (given["state"], dict(given["error"])) == ("FAILED", {"code": 9, "message": message})
    (job,) = ready_google.region.pipelines.jobs.values()
    assert job.error.code == 9
    assert job.error.message.startswith(f"{message}; Job (project_id = ")


def test_several_exit_tasks_may_wait_for_one_handler(ready_google: FakeGoogle, tmp_path: Path) -> None:
    """A task with the trigger strategy of an exit task is one; the spec does not say more about the first.

    Source (suspected): kfp compiles `ignore_upstream_failure()` and an ExitHandler's task to the same fields
    (kfp/compiler/pipeline_spec_builder.py). Suspected: not seen on Vertex AI.
    """
    ready_google.region.pipelines.script["work"].failure = Failure()
    _, tasks = run(ready_google, tmp_path, end, end)
    assert (tasks["end"].state.name, tasks["end-2"].state.name) == ("SUCCEEDED", "SUCCEEDED")


def test_an_exit_task_that_fails_fails_the_run(ready_google: FakeGoogle, tmp_path: Path) -> None:
    """Not documented: the fake takes the strict side, so that Slipway's exit task must never fail.

    Source (read): none; PipelineJob.state in the proto of PipelineService says nothing of exit tasks.
    """
    ready_google.region.pipelines.script["end"].failure = Failure()
    state, _ = run(ready_google, tmp_path)
    assert state == "PIPELINE_STATE_FAILED"


def test_google_mails_three_recipients_at_most(ready_google: FakeGoogle, tmp_path: Path) -> None:
    """The component for e-mail accepts up to three addresses.

    Source (read): https://cloud.google.com/vertex-ai/docs/pipelines/email-notifications (RECIPIENTS_LIST: up to three).
    """
    mails = ready_google.region.pipelines.script.mails
    state, _ = run(ready_google, tmp_path, lambda: VertexNotificationEmailOp(recipients=["a@b.c"] * 4))
    assert (state, mails) == ("PIPELINE_STATE_FAILED", [])


def test_google_mails_the_outcome(ready_google: FakeGoogle, tmp_path: Path) -> None:
    """The service executes the component for e-mail itself, as an exit task with a final status.

    Source (read): docstring of VertexNotificationEmailOp in google_cloud_pipeline_components.
    """
    ready_google.region.pipelines.script["work"].failure = Failure()
    run(ready_google, tmp_path, end, lambda: VertexNotificationEmailOp(recipients=["a@b.c"] * 3))
    assert ready_google.region.pipelines.script.mails == [(["a@b.c"] * 3, "FAILED")]


@pytest.fixture
def topics(google: FakeGoogle) -> Any:
    google.world.projects[PROJECT].services |= {"pubsub.googleapis.com", "secretmanager.googleapis.com"}
    google.pubsub.topics[TOPIC] = []
    return Connection(PROJECT, REGION, google.endpoints).api("pubsub", "v1").projects().topics()


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"data": ""},
        {"data": "not base64!"},
        {"data": "e30=", "attributes": {"k": "x" * 1025}},
        {"data": "e30=", "id": 1},
    ],
    ids=str,
)
def test_pubsub_refuses_a_message_that_is_empty_or_malformed(topics: Any, message: dict[str, Any]) -> None:
    """A message has data in base64 or an attribute; attributes are limited to 1,024 bytes.

    Source (read): schema PubsubMessage in the API's discovery document ("must contain either a non-empty data field or
    at least one attribute"); https://cloud.google.com/pubsub/quotas#resource_limits.
    """
    with pytest.raises(Exception, match="400") as refused:
        topics.publish(topic=TOPIC, body={"messages": [message]}).execute()
    assert status_of(refused.value) == 400


def test_publishing_needs_the_topic_and_the_permission(google: FakeGoogle, topics: Any) -> None:
    """Publishing to a topic that does not exist answers 404; roles/pubsub.publisher on the topic is what it takes.

    Source (read): method pubsub.projects.topics.publish in the discovery document ("Returns NOT_FOUND if the topic does
    not exist"); https://cloud.google.com/pubsub/docs/access-control#roles.
    """
    body = {"messages": [{"data": base64.b64encode(b"{}").decode()}]}
    with pytest.raises(Exception, match="404"):
        topics.publish(topic=f"projects/{PROJECT}/topics/none", body=body).execute()
    google.world.owners.clear()
    with pytest.raises(Exception, match="403"):
        topics.publish(topic=TOPIC, body=body).execute()
    grant(google, TOPIC, "roles/pubsub.publisher", SUBMITTER)
    assert len(topics.publish(topic=TOPIC, body=body).execute()["messageIds"]) == 1


def test_reading_a_secret_needs_a_version_and_the_permission(google: FakeGoogle, topics: Any) -> None:
    """The value is in a version; access takes roles/secretmanager.secretAccessor, which cannot see the secret itself.

    Source (read): method secretmanager.projects.secrets.versions.access in the discovery document;
    https://cloud.google.com/secret-manager/docs/access-control.
    """
    secrets = Connection(PROJECT, REGION, google.endpoints).api("secretmanager", "v1").projects().secrets()
    google.secrets.values[SECRET] = None
    with pytest.raises(Exception, match="404"):
        secrets.versions().access(name=f"{SECRET}/versions/latest").execute()
    google.secrets.values[SECRET] = "x"
    google.world.owners.clear()
    with pytest.raises(Exception, match="403"):
        secrets.versions().access(name=f"{SECRET}/versions/latest").execute()
    grant(google, SECRET, "roles/secretmanager.secretAccessor", SUBMITTER)
    answer = secrets.versions().access(name=f"{SECRET}/versions/latest").execute()
    assert base64.b64decode(answer["payload"]["data"]) == b"x"
    with pytest.raises(Exception, match="403"):
        secrets.get(name=SECRET).execute()
