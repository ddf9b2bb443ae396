"""The step train as a pod of the fake cluster, for the tests of TrainJobs."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipway.components.train.trainjob import manifest
from slipway.components.train.trainjob.job import run_train_job
from slipway.components.train.trainjob.manifest import TrainJobSettings
from slipway.trainer.config import RestartSettings
from tests.fakes.kubernetes.server import NAMESPACE, FakeKubernetes
from tests.fakes.kubernetes.store import PODS, RESOURCES


def grant(cluster: FakeKubernetes) -> None:
    """Create the Role and RoleBinding of `slipway setup`."""
    for body in (manifest.role(NAMESPACE), manifest.role_binding(NAMESPACE, "pipeline-runner")):
        kind = next(kind for kind in RESOURCES if kind.kind == body["kind"])
        cluster.store.create(kind, NAMESPACE, body)


class Step:
    """The step train as a pod of the fake cluster."""

    def __init__(self, cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.volume = cluster.add_claim("slipway")
        self.output = self.volume / "runs" / "digits-20261122-233211-ab12"
        self.log = io.StringIO()
        self._monkeypatch = monkeypatch
        self.become(cluster.add_step("train-step"))

    def grant(self) -> None:
        grant(self.cluster)

    def become(self, pod: dict) -> None:
        """Let this process be the one in a pod."""
        self.pod = pod
        for name, value in self.cluster.step_environment(pod).items():
            self._monkeypatch.setenv(name, value)

    def run(self, pools: list[dict], at_most: int = 5, **settings: object) -> list:
        given = TrainJobSettings(volume="slipway", folder=str(self.volume), **settings)
        restarts = RestartSettings(at_most=at_most, backoff_seconds=0.01)
        return run_train_job(pools, str(self.output), given, restarts=restarts, log=self.log)

    def running(self, replica: str) -> dict | None:
        """Return the pod of a replica if it is running."""
        pods = [pod for pod in self.cluster.store.all(PODS) if f"-{replica}-" in pod["metadata"]["name"]]
        return next((pod for pod in pods if pod["status"]["phase"] == "Running"), None)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeKubernetes]:
    with FakeKubernetes(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def step(cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> Step:
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.01")
    return Step(cluster, monkeypatch)


def pools(code: str, replicas: int = 3) -> list[dict]:
    container = {"image_uri": "slipway:1", "command": ["python", "-c", textwrap.dedent(code)]}
    pool = {"machine_spec": {}, "container_spec": container, "replica_count": 1}
    return [pool, {**pool, "replica_count": replicas - 1}]


def weights(log: io.StringIO) -> set[str]:
    return set(re.findall(r"weights checksum ([0-9a-f]{64})", log.getvalue()))


def meanwhile(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


STEP = """
import json, sys
from slipway.components.step import step
from slipway.components.train.trainjob.job import run_train_job
from slipway.components.train.trainjob.manifest import TrainJobSettings
pools, output, settings = json.loads(sys.argv[1])
with step("train"):
    run_train_job(pools, output, TrainJobSettings(**settings))
"""


def started(step: Step, code: str = "time.sleep(1000)") -> subprocess.Popen[bytes]:
    """Start the step train as a process, and wait until its replicas run."""
    settings = {"volume": "slipway", "folder": str(step.volume)}
    given = json.dumps([pools(f"import time; {code}", 2), str(step.output), settings])
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    process = subprocess.Popen([sys.executable, "-c", STEP, given], env=environment, stdout=subprocess.DEVNULL)
    step.cluster.wait(lambda: step.running("workerpool0-0-0") and step.running("workerpool1-0-0"))
    return process
