"""Schedules of the fake Vertex AI through Google's client: what is stored, refused and started."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from google.api_core.exceptions import InvalidArgument
from google.cloud import aiplatform_v1 as vertex
from google.protobuf.json_format import MessageToDict

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import status_of
from tests.fakes.google import NUMBER, PROJECT, REGION, FakeGoogle
from tests.fakes.ready import BUCKET, RUNNER

PARENT = f"projects/{PROJECT}/locations/{REGION}"


def specification() -> dict[str, Any]:
    """A spec of one task with every kind of value that has several forms."""
    task = {
        "taskInfo": {"name": "one"},
        "componentRef": {"name": "comp-one"},
        "cachingOptions": {"enableCache": False},
        "retryPolicy": {"maxRetryCount": 1, "backoffDuration": "30s"},
        "inputs": {"parameters": {"rate": {"runtimeValue": {"constant": 0}}}},
    }
    container = {"image": "r.example.com/i:1", "command": ["run"], "resources": {"resourceCpuLimit": "2"}}
    parameters = {"rate": {"parameterType": "NUMBER_DOUBLE", "isOptional": False}}
    return {
        "schemaVersion": "2.1.0",
        "pipelineInfo": {"name": "digits"},
        "components": {"comp-one": {"executorLabel": "exec-one", "inputDefinitions": {"parameters": parameters}}},
        "deploymentSpec": {"executors": {"exec-one": {"container": container}}},
        "root": {"dag": {"tasks": {"one": task}}},
    }


def schedule_of(**fields: Any) -> dict[str, Any]:
    job = {
        "display_name": "digits",
        "pipeline_spec": specification(),
        "service_account": RUNNER,
        "runtime_config": {"gcs_output_directory": f"gs://{BUCKET}/pipelines"},
    }
    return {
        "display_name": "nightly",
        "cron": "TZ=Europe/Berlin 0 3 * * *",
        "max_concurrent_run_count": 1,
        "create_pipeline_job_request": {"parent": PARENT, "pipeline_job": job},
        **fields,
    }


def client(google: FakeGoogle) -> Any:
    return Connection(PROJECT, REGION, google.endpoints).schedules


# GoogleCloudPlatform/k8s-config-connector at 4575135b8c: pkg/test/resourcefixture/testdata/basic/aiplatform/v1alpha1/
# vertexaischedule/vertexaischedule-{minimal,maximal}/_http.log


def test_the_job_of_a_schedule_is_stored_as_it_was_sent(ready_google):
    """Names, values and defaults of the spec stay; no account, label or failure policy is filled in. The parent keeps
    the project's id, while the schedule's name has its number.

    Source (recorded): vertexaischedule-minimal and -maximal (KCC).
    """
    sent = schedule_of()
    del sent["create_pipeline_job_request"]["pipeline_job"]["service_account"]
    made = client(ready_google).create_schedule(parent=PARENT, schedule=sent)
    for found in (made, client(ready_google).get_schedule(name=made.name)):
        request = MessageToDict(vertex.Schedule.pb(found), preserving_proto_field_name=True)
        assert request["create_pipeline_job_request"] == sent["create_pipeline_job_request"]
    assert re.fullmatch(rf"projects/{NUMBER}/locations/{REGION}/schedules/\d+", made.name)


def test_the_answer_has_times_and_no_defaults(ready_google):
    """`startTime` is filled in; startedRunCount, catchUp, allowQueueing, endTime and maxRunCount are absent. In JSON,
    numbers of 64 bits are text.

    Source (recorded): vertexaischedule-minimal and -maximal (KCC).
    """
    made = client(ready_google).create_schedule(parent=PARENT, schedule=schedule_of())
    shown = MessageToDict(vertex.Schedule.pb(made))
    names = {"name", "displayName", "cron", "state", "maxConcurrentRunCount", "createPipelineJobRequest"}
    assert shown.keys() == names | {"startTime", "nextRunTime", "createTime", "updateTime"}
    assert (shown["state"], shown["maxConcurrentRunCount"]) == ("ACTIVE", "1")


def test_the_job_is_checked_when_a_run_starts(ready_google):
    """A spec without deploymentSpec is accepted; that the runs are refused for it is in lastScheduledRunResponse.

    Source (recorded): vertexaischedule-minimal and -maximal (KCC), whose executors are in an unknown field.
    """
    sent = schedule_of()
    spec = sent["create_pipeline_job_request"]["pipeline_job"]["pipeline_spec"]
    spec["deploymentConfig"] = spec.pop("deploymentSpec")
    made = client(ready_google).create_schedule(parent=PARENT, schedule=sent)
    assert ready_google.region.schedules.move(timedelta(days=2)) == []
    found = client(ready_google).get_schedule(name=made.name)
    assert (found.state.name, found.started_run_count) == ("ACTIVE", 2)
    assert "refers to the executor exec-one" in found.last_scheduled_run_response.run_response


def test_the_id_of_a_schedule_is_a_number(ready_google):
    """Source (recorded): vertexaischedule-minimal and -maximal (KCC)."""
    with pytest.raises(InvalidArgument) as refused:
        client(ready_google).get_schedule(name=f"{PARENT}/schedules/nightly")
    assert refused.value.message == "List of found errors:\t1.Field: name; Message: Invalid Schedule resource name.\t"


def test_a_deletion_is_done_at_once(ready_google):
    """Its operation is below the location, not below the resource.

    Source (recorded): deletions of pipeline jobs and tensorboards in KCC (vertexaipipelinejob at 729252c2f5,
    vertexaitensorboard at 0d9461e184); none of a schedule was recorded.
    """
    made = client(ready_google).create_schedule(parent=PARENT, schedule=schedule_of())
    operation = client(ready_google).delete_schedule(name=made.name).operation
    assert operation.done
    assert operation.name.startswith(f"projects/{NUMBER}/locations/{REGION}/operations/")
    assert operation.metadata.Is(vertex.DeleteOperationMetadata.pb().DESCRIPTOR)
    assert not ready_google.region.schedules.schedules


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_concurrent_run_count": 0}, "max_concurrent_run_count is required"),
        ({"cron": "0 3 * *"}, "Invalid cron schedule"),
        ({"display_name": ""}, "display_name must be 1 to 128 characters"),
    ],
)
def test_a_schedule_needs_a_name_a_cron_and_a_limit_of_runs(ready_google, fields, sentence):
    """All three are required. Source (read): proto of Schedule."""
    with pytest.raises(Exception, match=sentence) as refused:
        client(ready_google).create_schedule(parent=PARENT, schedule=schedule_of(**fields))
    assert status_of(refused.value) == 400


def test_a_missed_run_is_started_only_with_catch_up(ready_google):
    """`catch_up` backfills the runs that a pause missed; it is false by default. Source (read): proto of Schedule."""
    service = ready_google.region.schedules
    made = client(ready_google).create_schedule(parent=PARENT, schedule=schedule_of())
    client(ready_google).pause_schedule(name=made.name)
    service.move(timedelta(days=2))
    client(ready_google).resume_schedule(name=made.name)
    assert service.move(timedelta()) == []
    client(ready_google).pause_schedule(name=made.name)
    service.move(timedelta(days=2))
    client(ready_google).resume_schedule(request={"name": made.name, "catch_up": True})
    assert len(service.move(timedelta())) == 2
