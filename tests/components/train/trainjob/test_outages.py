"""A training while the API of the cluster fails: what is retried, for how long, and what the log says."""

from __future__ import annotations

import io
import logging
import os
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from kubernetes import client

from slipway.components.train.trainjob import replica, retries
from slipway.core.errors import UserError
from tests.components.train.trainjob.conftest import Step, meanwhile, pools, started
from tests.components.train.trainjob.test_job import digits, train_here_and_disturbed, wait_for_checkpoint
from tests.fakes.kubernetes.outages import Refusal

AWAY, BACK = "the Kubernetes API fails", "the Kubernetes API answers again"
FORBIDDEN = 'trainjobs "job" is forbidden: User "pipeline-runner" cannot do it'


def test_each_kind_of_failure_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an hour without the API, it denies access for two minutes: both pass. A first call is denied at once."""
    now = 0.0
    monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: now, sleep=None))
    away, denied = client.ApiException(status=503), client.ApiException(status=403)
    tried = retries.Retries(retries.AT_FIRST, retries.TRAINING)
    assert not tried.may_pass(denied)
    tried.answered()
    passed = []
    for error, seconds in ((away, 3599), (away, 0), (denied, 119), (denied, 2), (denied, 0)):
        passed.append(tried.may_pass(error))
        now += seconds
    assert passed == [True, True, True, True, False]
    tried.answered()
    assert tried.may_pass(denied)


def test_a_trainjob_is_created_again_until_the_webhook_knows_its_runtime(step: Step) -> None:
    step.grant()
    step.cluster.outages.lag(5)
    assert step.run(pools("print('trained')", 2)) == []
    assert step.cluster.outages.struck == 5


def test_a_trainjob_whose_runtime_the_webhook_never_knows_is_refused(step: Step) -> None:
    step.grant()
    step.cluster.outages.lag(10**6)
    with pytest.raises(UserError, match="specified trainingRuntime must be created before"):
        step.run(pools("pass", 2))
    step.cluster.wait(lambda: not step.cluster.left())


@pytest.mark.long
def test_a_training_outlasts_ten_kills_of_the_api_server_with_the_weights_of_the_same_layout_here(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.05")  # 12 s of denials, longer than all kills together

    def kill() -> None:
        for number in range(10):
            wait_for_checkpoint(step, 20 + 25 * number)
            step.cluster.outages.restart(denied=0.4, code=403 if number % 2 else 401)
            step.cluster.wait(lambda: not step.cluster.outages.is_away)

    assert train_here_and_disturbed(step, digits(step.volume), kill) == []


def test_a_training_outlasts_ten_minutes_without_etcd(
    step: Step, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second is 2 ms. The step renews its lease meanwhile; one line says that the API fails, one that it answers."""
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.001")
    caplog.set_level(logging.INFO)
    step.grant()
    done = step.output / "done"
    code = f"""
        import pathlib, time
        print("trained", flush=True)
        while not pathlib.Path({str(done)!r}).exists():
            time.sleep(0.01)
    """
    renewed = 0

    def fail() -> None:
        nonlocal renewed
        step.cluster.wait(lambda: step.log.getvalue().count("] trained") == 2)
        step.cluster.outages.lose_etcd(1.2, hang=0.02)
        while step.cluster.outages.is_away:
            os.utime(step.output / "lease", (0, 0))
            step.cluster.wait(lambda: (step.output / "lease").stat().st_mtime > 0)
            renewed += 1
        step.cluster.wait(lambda: BACK in step.log.getvalue())
        done.touch()

    failing = meanwhile(fail)
    assert step.run(pools(code, 2)) == []
    failing.join()
    assert renewed > 5
    assert (step.log.getvalue().count(AWAY), step.log.getvalue().count(BACK)) == (1, 1)
    assert not [record for record in caplog.records if record.name.startswith(("urllib3", "slipway.components.cloud"))]
    step.cluster.wait(lambda: not step.cluster.left())


@pytest.mark.parametrize("code", [401, 403])
@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", ""), ("GET", "/log"), ("GET", "/pods"), ("POST", "/trainjobs")]
)
def test_rights_that_are_denied_for_a_while_do_not_end_a_training(
    step: Step, method: str, path: str, code: int
) -> None:
    step.grant()
    step.cluster.outages.plan(Refusal(code, FORBIDDEN, method, path, times=7))
    assert step.run(pools("print('trained')", 2)) == []
    assert step.log.getvalue().count("] trained") == 2
    assert step.cluster.outages.struck == 7
    step.cluster.wait(lambda: not step.cluster.left())


@pytest.mark.parametrize("code", [401, 403])
def test_rights_that_never_worked_are_refused_at_once(step: Step, code: int) -> None:
    step.grant()
    step.cluster.outages.plan(Refusal(code, FORBIDDEN))
    with pytest.raises(UserError, match="does not allow this account to create the TrainingRuntime"):
        step.run(pools("pass"))
    assert step.cluster.outages.struck == 1


def test_a_stop_signal_ends_a_step_whose_cluster_does_not_answer(step: Step) -> None:
    step.grant()
    process = started(step)
    step.cluster.outages.lose_etcd(1000, hang=0.01)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=180) == 128 + signal.SIGTERM
    assert not (step.output / "lease").exists()


@pytest.mark.parametrize(("asked", "seconds"), [("15", 15.0), ("3600", 20.0), ("soon", 0.0)])
def test_a_wait_that_the_api_asks_for_is_observed_up_to_a_limit(asked: str, seconds: float) -> None:
    refused, waits = client.ApiException(status=429), []
    refused.headers = {"Retry-After": asked}
    call = mock.Mock(side_effect=[refused, "created"])
    assert retries.Retries(pause=waits.append)(call) == "created"
    assert waits == [pytest.approx(seconds, abs=0.5)]


def test_an_api_that_asks_for_a_wait_of_an_hour_does_not_block_a_training(step: Step) -> None:
    step.grant()
    for code, method in ((429, "POST"), (503, "GET"), (429, "DELETE")):
        step.cluster.outages.plan(Refusal(code, "later", method, "", 2, headers={"Retry-After": "3600"}))
    started = time.monotonic()
    assert step.run(pools("pass", 2)) == []
    assert step.cluster.outages.struck == 6
    assert time.monotonic() - started < 30


def test_a_quiet_log_between_two_denials_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a replica that prints nothing for an hour is denied for a moment before it and after it."""
    now = 0.0
    monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: now, sleep=None))
    monkeypatch.setattr(replica, "AGAIN_SECONDS", 0.0)
    denied = client.ApiException(status=403)
    streams = iter([denied, [], denied, [("2026-01-01T00:00:00Z", "trained")]])

    def log_lines(_pod: str, _after: str, *, follow: bool) -> Iterator[tuple[str, str]]:
        nonlocal now
        now += 3600
        stream = next(streams, None)
        if stream is denied:
            raise denied
        if stream is None:
            copied.end_log(time.monotonic() + 60)
        yield from stream or ()

    cluster: Any = SimpleNamespace(log_lines=log_lines, refusal=lambda _what, error: UserError(str(error)))
    copied = replica.Replica("worker-0", "pod", cluster, io.StringIO())
    copied._copy()
    copied.raise_refusal()
    assert list(copied.tail) == ["trained"]
