"""A run on this machine tells a webhook and MLflow how it ended, by the commands that a user types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.workspace import QUICK_PROGRAM, Workspace
from tests.fakes.mlflow import FakeMlflow
from tests.fakes.webhook import SECRET, FakeWebhook

CONFIGURATION = """
name: told
train:
  module: program
evaluate:
  gate: {metric: accuracy, minimum: 0.5}
"""


@pytest.fixture
def webhook() -> Iterator[FakeWebhook]:
    with FakeWebhook() as server:
        yield server


@pytest.fixture
def mlflow() -> Iterator[FakeMlflow]:
    with FakeMlflow() as server:
        yield server


def test_success_failure_and_what_cannot_be_reached(tmp_path: Path, webhook: FakeWebhook, mlflow: FakeMlflow) -> None:
    workspace = Workspace(tmp_path)
    (tmp_path / "told.yaml").write_text(CONFIGURATION)
    (tmp_path / "program.py").write_text(QUICK_PROGRAM)
    command = ("run", "-c", "told.yaml", "--set", "notify.webhook=env:HOOK", "--set", f"track.mlflow={mlflow.url}")
    done = workspace.slipway(*command, HOOK=webhook.url)
    assert done.returncode == 0, done.stderr
    [body] = webhook.received
    assert (body["status"], body["decision"]) == ("succeeded", "promote")
    assert f"accuracy {body['metrics']['accuracy']:.4g}" in body["text"]
    tracked = mlflow.run(body["run"])
    assert (tracked.info["status"], tracked.tags["slipway.verdict"]) == ("FINISHED", "promote")
    assert tracked.series("test/accuracy")[0][1] == body["metrics"]["accuracy"]
    assert Path(body["report"]).read_bytes() in mlflow.artifacts.values()

    failed = workspace.slipway(*command, "--set", "train.module=missing", HOOK=webhook.url)
    assert failed.returncode == 2  # refused before anything starts: there is no run to tell of
    assert len(webhook.received) == 1
    (tmp_path / "failing.py").write_text("raise ValueError('no such layer')\n" + QUICK_PROGRAM)
    failed = workspace.slipway(*command, "--set", "train.module=failing", HOOK=webhook.url)
    assert failed.returncode == 1, failed.stdout
    body = webhook.received[1]
    assert (body["status"], body["step"]) == ("failed", "train")
    explained = workspace.call("explain").stdout
    assert all(text in explained for text in (body["error"], body["fix"]))
    assert "no such layer" in body["text"]
    tracked = mlflow.run(body["run"])
    assert (tracked.info["status"], tracked.tags["slipway.error"]) == ("FAILED", body["error"])

    mlflow.stop()
    unreachable = workspace.slipway(*command, HOOK=f"http://localhost:1/{SECRET}", SLIPWAY_RETRY_SECONDS="0.01")
    assert unreachable.returncode == 0, unreachable.stderr
    output = unreachable.stdout + unreachable.stderr
    assert "warning: not everyone was notified: The webhook at localhost could not be reached" in output
    assert "Not sent: parameters" in output
    written = [path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in text for text in [output.encode(), *written])
