"""Runs on Vertex AI from Python, with Google's clients against the fakes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import slipway
from slipway.pipelines.api import existing
from tests.fakes.google import FakeGoogle
from tests.fakes.vertex.script import Failure

TRAIN = "custom-training-job"


def test_two_runs_are_awaited_at_once(
    ready_google: FakeGoogle, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(existing, "POLL_SECONDS", 0.01)
    both = [slipway.run("run.yaml", target="vertex", wait=False) for _ in range(2)]
    assert [run.status for run in both] == ["running", "running"]

    async def ended() -> list[slipway.Run]:
        return await asyncio.gather(*both)

    assert [(run.status, run.verdict) for run in asyncio.run(ended())] == [("succeeded", "promote")] * 2
    assert both[0].metrics == {"loss": 0.0594, "accuracy": 0.9833}
    assert {f"runs/{run.id}" for run in both} == {f"runs/{run.id}" for run in slipway.runs()}
    assert len(ready_google.region.pipelines.jobs) == 2


def test_an_interrupted_wait_leaves_the_run_running(
    ready_google: FakeGoogle, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        existing, "time", SimpleNamespace(sleep=interrupted, monotonic=time.monotonic)
    )  # the fakes' threads sleep on
    with pytest.raises(KeyboardInterrupt) as stopped:
        slipway.run("run.yaml", target="vertex")
    run = slipway.runs()["latest"]
    assert run.status == "running"
    assert f'slipway.runs()["{run.id}"].wait()' in str(stopped.value)


def test_a_failed_run_raises_its_traceback(
    ready_google: FakeGoogle, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(existing, "POLL_SECONDS", 0.01)
    step = ready_google.region.pipelines.script[TRAIN]
    step.failure = Failure(replica="workerpool1-0")
    with pytest.raises(slipway.RunFailed, match="The step train of run") as raised:
        slipway.run("run.yaml", target="vertex")
    assert raised.value.run.status == "failed"


def test_settings_and_checks_are_refused_in_python(ready_google: FakeGoogle, workspace: Path) -> None:
    findings = slipway.check("run.yaml", target="vertex")
    assert findings, findings
    assert "bucket" in repr(findings)
    bad = slipway.check("run.yaml", hardware="tpu-v5e-2x4", target="vertex", settings={"vertex.region": "me-west1"})
    assert not bad
    assert "fail" in repr(bad)
