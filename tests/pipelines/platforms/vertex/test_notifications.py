"""Notifications of runs on Vertex AI: sent by exit tasks, with what explains the outcome."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.errors import ServiceError
from tests.fakes.google import PROJECT, FakeGoogle
from tests.fakes.ready import RUNNER, grant
from tests.fakes.vertex.script import Failure
from tests.fakes.webhook import SECRET, FakeWebhook
from tests.pipelines.platforms.vertex.conftest import Slipway

RUN = ("run", "-c", "run.yaml", "--target", "vertex", "--no-check")
TRAIN = "custom-training-job"
TOPIC = f"projects/{PROJECT}/topics/runs"
ADDRESS = f"projects/{PROJECT}/secrets/webhook"
NO_SPACE = 'slipway-error: {"message": "No space is left in gs://b.", "fix": "free space in gs://b"}'


@pytest.fixture
def webhook() -> Iterator[FakeWebhook]:
    with FakeWebhook() as server:
        yield server


@pytest.fixture
def notifying(ready_google: FakeGoogle, workspace: Path, webhook: FakeWebhook) -> FakeWebhook:
    """run.yaml notifies two addresses, a webhook whose address is a secret, and a topic."""
    ready_google.secrets.values[ADDRESS] = webhook.url
    ready_google.pubsub.topics[TOPIC] = []
    services = ready_google.world.projects[PROJECT].services
    services |= {"pubsub.googleapis.com", "secretmanager.googleapis.com"}
    grant(ready_google, ADDRESS, "roles/secretmanager.secretAccessor", RUNNER)
    grant(ready_google, TOPIC, "roles/pubsub.publisher", RUNNER)
    grant(ready_google, f"projects/{PROJECT}", "roles/logging.viewer", RUNNER)
    write(workspace, email=["ada@example.com", "bob@example.com"], webhook=ADDRESS, topic=TOPIC)
    return webhook


def write(workspace: Path, **notify: Any) -> None:
    values = yaml.safe_load((workspace / "run.yaml").read_text())
    (workspace / "run.yaml").write_text(yaml.safe_dump({**values, "notify": notify}))


def run_id(workspace: Path) -> str:
    return (workspace / "runs/latest").resolve().name


def test_a_success_is_reported_with_its_metrics_and_verdict(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway, notifying: FakeWebhook
) -> None:
    result = slipway(*RUN)
    assert result.exit_code == 0, result.output
    run = run_id(workspace)
    [body] = notifying.received
    lines = body["text"].splitlines()
    assert lines[0] == f"✓ {run} succeeded on Vertex AI (cpu)"
    assert {"test: accuracy 0.9833, loss 0.0594", "verdict: promote. There is no champion yet."} < set(lines)
    page = f"https://console.cloud.google.com/vertex-ai/locations/europe-west4/pipelines/runs/{run}?project={PROJECT}"
    assert lines[-1] == f"page: {page}"
    assert body["model"] == "projects/123456789012/locations/europe-west4/models/digits@1"
    assert [(data["run"], about) for data, about in ready_google.pubsub.topics[TOPIC]] == [
        (run, {"run": run, "status": "succeeded"})
    ]
    script = ready_google.region.pipelines.script
    assert script.mails == [(["ada@example.com", "bob@example.com"], "SUCCEEDED")]


def test_a_failure_is_reported_with_step_replica_cause_and_fix(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway, notifying: FakeWebhook
) -> None:
    script = ready_google.region.pipelines.script
    script[TRAIN].failure, script[TRAIN].logs = Failure(replica="workerpool1-0"), {"workerpool1-0": [NO_SPACE]}
    result = slipway(*RUN, "--hardware", "l4x4*2")
    assert result.exit_code == 1, result.output
    [body] = notifying.received
    assert body["text"].splitlines()[:3] == [
        f"✗ {run_id(workspace)} failed on Vertex AI (l4x4*2) in the step train, replica workerpool1-0",
        "No space is left in gs://b.",
        "fix: free space in gs://b",
    ]
    explained = slipway("explain").output
    assert all(text in explained for text in (body["step"], body["replica"], body["error"], body["fix"]))
    assert script.mails == [(["ada@example.com", "bob@example.com"], "FAILED")]


def test_the_earliest_failure_is_reported_too(
    ready_google: FakeGoogle, slipway: Slipway, notifying: FakeWebhook
) -> None:
    ready_google.region.pipelines.script["setup-access"].refused = ServiceError(403, "The caller lacks a permission")
    assert slipway(*RUN).exit_code == 1
    [body] = notifying.received
    assert (body["status"], body["step"]) == ("failed", "setup_access")


def test_a_notification_that_fails_does_not_fail_the_run(
    ready_google: FakeGoogle,
    workspace: Path,
    slipway: Slipway,
    notifying: FakeWebhook,
) -> None:
    notifying.statuses = [500] * 3
    ready_google.faults.plan("pubsub POST", ServiceError(403, "User not authorized to perform this action."), times=9)
    result = slipway(*RUN)
    assert result.exit_code == 0, result.output
    assert json.loads((workspace / "runs/latest/run.json").read_text())["status"] == "succeeded"
    said = result.output  # the exit task ran in this process
    assert "warning: not everyone was notified: The webhook at localhost answered HTTP 500." in said
    assert f"may not publish to {TOPIC}: pubsub.topics.publish is missing." in said


def test_an_address_that_is_a_secret_is_written_nowhere(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway, notifying: FakeWebhook
) -> None:
    notifying.statuses = [404]
    result = slipway(*RUN)
    [job] = ready_google.region.pipelines.jobs.values()
    texts = [path.read_text(errors="replace") for path in (workspace / "runs").rglob("*") if path.is_file()]
    for text in [*texts, result.output, str(job), str(ready_google.log.entries)]:
        assert SECRET not in text


def test_a_variable_does_not_exist_on_vertex(slipway: Slipway, workspace: Path) -> None:
    write(workspace, webhook="env:HOOK")
    result = slipway(*RUN)
    assert result.exit_code == 2
    assert "projects/PROJECT/secrets/slipway-webhook" in result.stderr
    assert not list((workspace / "runs").glob("*/run.json"))


def test_without_notify_the_pipeline_has_no_exit_tasks(slipway: Slipway, workspace: Path) -> None:
    assert slipway(*RUN).exit_code == 0
    specification = (workspace / "runs/latest/spec.yaml").read_text()
    assert "exit-handler" not in specification
    assert "notify" not in specification
