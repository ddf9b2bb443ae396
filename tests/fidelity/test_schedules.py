"""Schedules of the fake Vertex AI through Google's client: what is stored, refused and started."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import status_of
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.ready import BUCKET, RUNNER
from tests.fakes.vertex.stored import Stored

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
    accelerator = {"resourceType": "nvidia.com/gpu", "resourceCount": "2"}
    container = {"image": "r.example.com/i:1", "command": ["run"], "resources": {"accelerator": accelerator}}
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


def stored_job(google: FakeGoogle) -> Any:
    made = client(google).create_schedule(parent=PARENT, schedule=schedule_of())
    return client(google).get_schedule(name=made.name).create_pipeline_job_request.pipeline_job


def test_a_stored_spec_may_lack_what_is_false_or_zero(ready_google):
    """A spec that is parsed as a PipelineSpec and printed again has no fields with their default values.

    Source: suspected; the field is a Struct (proto of PipelineJob.pipeline_spec), which would keep them, but the
    service parses it, and protobuf's JSON mapping (protobuf.dev/programming-guides/json) leaves defaults out.
    """
    task = stored_job(ready_google).pipeline_spec["root"]["dag"]["tasks"]["one"]
    assert dict(task["cachingOptions"]) == {}
    # A value is not a field: 0 stays.
    assert task["inputs"]["parameters"]["rate"]["runtimeValue"]["constant"] == 0


def test_a_stored_spec_may_have_other_names_enums_and_defaults(ready_google):
    """Parsers accept both names of a field and both forms of an enum, and printers write either.

    Source: suspected of the service; protobuf's JSON mapping (protobuf.dev/programming-guides/json) allows it.
    """
    ready_google.region.schedules.stored = Stored(snake_case=True, numbers=True, defaults=True)
    spec = stored_job(ready_google).pipeline_spec
    assert spec["root"]["dag"]["tasks"]["one"]["caching_options"]["enable_cache"] is False
    parameter = spec["components"]["comp-one"]["input_definitions"]["parameters"]["rate"]
    assert parameter["parameter_type"] == 1
    accelerator = spec["deployment_spec"]["executors"]["exec-one"]["container"]["resources"]["accelerator"]
    assert accelerator["resource_count"] == "2"


def test_the_failure_policy_and_the_billing_label_are_filled_in(ready_google):
    """FAIL_SLOW is the default of the policy; the label vertex-ai-pipelines-run-billing-id is the service's own.

    Source: proto of PipelineJob (RuntimeConfig.failure_policy, labels). That a schedule's job shows them is suspected.
    """
    job = stored_job(ready_google)
    assert job.runtime_config.failure_policy.name == "PIPELINE_FAILURE_POLICY_FAIL_SLOW"
    assert list(job.labels) == ["vertex-ai-pipelines-run-billing-id"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_concurrent_run_count": 0}, "max_concurrent_run_count is required"),
        ({"cron": "0 3 * *"}, "Invalid cron schedule"),
        ({"display_name": ""}, "display_name must be 1 to 128 characters"),
    ],
)
def test_a_schedule_needs_a_name_a_cron_and_a_limit_of_runs(ready_google, fields, sentence):
    """All three are required. Source: proto of Schedule."""
    with pytest.raises(Exception, match=sentence) as refused:
        client(ready_google).create_schedule(parent=PARENT, schedule=schedule_of(**fields))
    assert status_of(refused.value) == 400


def test_a_missed_run_is_started_only_with_catch_up(ready_google):
    """`catch_up` backfills the runs that a pause missed; it is false by default. Source: proto of Schedule."""
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
