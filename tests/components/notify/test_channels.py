"""Notices reach a webhook and a Pub/Sub topic; a failure is one sentence without the webhook's address."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from slipway.components.notify import channels
from slipway.components.notify.channels import send
from slipway.components.notify.notice import LONGEST_ERROR, Notice
from slipway.components.notify.settings import ExitTask, NotifySettings
from slipway.core.errors import UserError
from tests.fakes.errors import ServiceError
from tests.fakes.google import PROJECT, SUBMITTER, FakeGoogle
from tests.fakes.ready import grant
from tests.fakes.webhook import SECRET, FakeWebhook

DONE = Notice(
    run="digits-1", name="digits", where="Vertex AI", hardware="l4x4*2", status="succeeded",
    metrics={"accuracy": 0.98334, "loss": 0.05941, "macro_f1": 0.98, "examples": 10_000},
    decision="promote", reasons=("There is no champion yet.",), report="gs://b/report", page="https://console/1",
)  # fmt: skip
FAILED = Notice(
    run="digits-2", name="digits", where="Vertex AI", hardware="l4x4*2", status="failed",
    step="train", replica="workerpool1-0", error="No space is left.", fix="slipway run --resume digits-2",
)  # fmt: skip
TOPIC = f"projects/{PROJECT}/topics/runs"
ADDRESS = f"projects/{PROJECT}/secrets/webhook"


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWebhook]:
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.001")
    with FakeWebhook() as server:
        yield server


def by_webhook(url: str, **endpoints: str) -> list[str]:
    return send(NotifySettings(webhook=url), DONE, endpoints)


def test_the_text_says_the_outcome_and_what_explains_it() -> None:
    assert DONE.text().splitlines() == [
        "✓ digits-1 succeeded on Vertex AI (l4x4*2)",
        "test: accuracy 0.9833, loss 0.0594, macro_f1 0.9800",
        "verdict: promote. There is no champion yet.",
        "report: gs://b/report",
        "page: https://console/1",
    ]
    assert FAILED.text().splitlines() == [
        "✗ digits-2 failed on Vertex AI (l4x4*2) in the step train, replica workerpool1-0",
        "No space is left.",
        "fix: slipway run --resume digits-2",
    ]


@pytest.mark.parametrize("wrong", [["https://chat/secret"], {"url": "https://chat/secret"}, "http://chat/secret", 5])
def test_a_webhook_of_another_form_is_refused_without_showing_it(wrong: object) -> None:
    with pytest.raises(UserError, match="none of the accepted forms") as caught:
        NotifySettings.model_validate({"webhook": wrong})
    assert "secret" not in str(caught.value).replace("secrets/SECRET", "")


def test_a_long_error_is_cut() -> None:
    assert len(Notice("r", "n", "w", "cpu", "failed", error="x" * 9_000).text()) < LONGEST_ERROR + 100


def test_a_webhook_receives_the_text_and_the_fields(webhook: FakeWebhook) -> None:
    assert by_webhook(webhook.url) == []
    [body] = webhook.received
    assert body["text"] == DONE.text()
    assert (body["run"], body["status"], body["metrics"]["accuracy"]) == ("digits-1", "succeeded", 0.98334)


def test_google_chat_receives_only_the_text(webhook: FakeWebhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "TEXT_ONLY", ("localhost",))
    assert by_webhook(webhook.url) == []
    assert webhook.received == [{"text": DONE.text()}]


def test_the_address_may_be_in_a_variable(webhook: FakeWebhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", webhook.url + "\n")
    assert by_webhook("env:HOOK") == []
    assert len(webhook.received) == 1
    monkeypatch.delenv("HOOK")
    assert by_webhook("env:HOOK") == [
        "The environment variable HOOK is not set to an https:// URL, so the webhook was not called."
    ]


def test_the_address_may_be_a_secret(google: FakeGoogle, webhook: FakeWebhook) -> None:
    google.secrets.values[ADDRESS] = webhook.url
    google.world.projects[PROJECT].services.add("secretmanager.googleapis.com")
    google.world.owners.clear()
    grant(google, ADDRESS, "roles/secretmanager.secretAccessor", SUBMITTER)
    assert by_webhook(ADDRESS, **google.endpoints) == []
    assert len(webhook.received) == 1


@pytest.mark.parametrize(("statuses", "calls", "delivered"), [([503, 429], 3, True), ([503] * 3, 3, False)])
def test_an_unavailable_webhook_is_tried_three_times(
    webhook: FakeWebhook, statuses: list[int], calls: int, delivered: bool
) -> None:
    webhook.statuses = statuses
    problems = by_webhook(webhook.url)
    assert (webhook.calls, len(webhook.received)) == (calls, int(delivered))
    assert problems == ([] if delivered else ["The webhook at localhost answered HTTP 503."])


@pytest.mark.parametrize("status", [302, 308, 400, 404])
def test_a_refusal_is_not_tried_again_and_no_redirection_is_followed(webhook: FakeWebhook, status: int) -> None:
    webhook.statuses = [status]
    assert by_webhook(webhook.url) == [f"The webhook at localhost answered HTTP {status}."]
    assert webhook.calls == 1


def test_no_message_and_no_log_contains_the_address(
    webhook: FakeWebhook, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.INFO):
        webhook.statuses = [503] * 3
        said = by_webhook(webhook.url)
        said += by_webhook(f"http://localhost:1/services/{SECRET}")
        monkeypatch.setenv("HOOK", f"http://example.com/{SECRET}")  # not https
        said += by_webhook("env:HOOK")
        with pytest.raises(UserError) as refused:
            NotifySettings(webhook=f"http://example.com/{SECRET}")
    assert len(said) == 3
    assert "could not be reached (ConnectionError)" in said[1]
    assert SECRET not in caplog.text + str(said) + str(refused.value)


def test_a_topic_receives_the_notice_with_attributes(google: FakeGoogle, monkeypatch: pytest.MonkeyPatch) -> None:
    google.pubsub.topics[TOPIC] = []
    google.world.projects[PROJECT].services.add("pubsub.googleapis.com")
    google.faults.plan("pubsub POST", ServiceError(503, "The service was unable to fulfill your request."), times=2)
    assert send(NotifySettings(topic=TOPIC), FAILED, google.endpoints) == []
    [(data, attributes)] = google.pubsub.topics[TOPIC]
    assert attributes == {"run": "digits-2", "status": "failed"}
    assert (data["step"], data["replica"], data["fix"]) == ("train", "workerpool1-0", "slipway run --resume digits-2")


def test_a_channel_that_fails_does_not_stop_the_other(google: FakeGoogle, webhook: FakeWebhook) -> None:
    google.world.projects[PROJECT].services.add("pubsub.googleapis.com")
    settings = NotifySettings(webhook=webhook.url, topic=TOPIC)
    [problem] = send(settings, DONE, google.endpoints)
    assert TOPIC in problem
    assert len(webhook.received) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"webhook": "slack"},
        {"webhook": "http://hooks.example.com/x"},
        {"topic": "runs"},
        {"topic": f"projects/{PROJECT}/topics/1"},
        {"email": ["a@b.c"] * 4},
        {"email": ["ada"]},
    ],
    ids=str,
)
def test_settings_that_notify_nobody_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises((UserError, ValueError)):
        NotifySettings.model_validate(settings)


def test_a_bug_is_in_the_log_with_its_traceback_but_without_the_address(monkeypatch, caplog) -> None:
    def fail(*_: object) -> None:
        raise TypeError(f"cannot post to {SECRET}")

    monkeypatch.setattr(channels, "_post", fail)
    assert by_webhook(f"https://chat.example{SECRET}") == ["An internal error: TypeError."]
    assert "in fail" in caplog.text
    assert SECRET not in caplog.text


def test_a_bug_in_the_explanation_is_in_the_log_with_its_traceback(monkeypatch, caplog) -> None:
    task = ExitTask(
        notify=NotifySettings(webhook="https://chat.example/x"), name="a", hardware="cpu", where="Vertex AI"
    )
    task = task.model_copy(update={"region": "europe-west4", "facts": {"project": PROJECT}})
    monkeypatch.setattr(channels, "send", lambda *_: [])
    monkeypatch.setattr(channels, "_details", lambda *_: [].missing)  # type: ignore[attr-defined]
    job = f"projects/{PROJECT}/locations/europe-west4/pipelineJobs/x"
    problems = channels.notify(task.model_dump_json(), "x", "https://page", state="FAILED", job=job, message="m")
    assert problems == ["The job's details could not be read (AttributeError)."]
    assert "Traceback" in caplog.text
