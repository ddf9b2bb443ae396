"""Training by a TrainJob: the replicas' environment, restarts, errors, and that nothing is left on the cluster."""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.components.step import WorkFailed
from slipway.components.train.trainjob import job as trainjob
from slipway.components.train.trainjob import rights
from slipway.components.train.trainjob.job import run_train_job
from slipway.components.train.trainjob.manifest import TrainJobSettings
from slipway.core.errors import UserError
from slipway.trainer.config import RestartSettings
from tests.fakes.kubernetes.server import NAMESPACE, FakeKubernetes
from tests.fakes.kubernetes.store import RESOURCES

QUICKLY = RestartSettings(backoff_seconds=0.01)


class Step:
    """The step train as a pod of the fake cluster."""

    def __init__(self, cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.volume = cluster.add_claim("slipway")
        self.output = self.volume / "runs" / "digits-20261122-233211-ab12"
        self.log = io.StringIO()
        self.pod = cluster.add_step("train-step")
        for name, value in cluster.step_environment(self.pod).items():
            monkeypatch.setenv(name, value)

    def grant(self) -> None:
        """Create the Role and RoleBinding of `slipway setup`."""
        for body in (rights.role(NAMESPACE), rights.role_binding(NAMESPACE, "pipeline-runner")):
            kind = next(kind for kind in RESOURCES if kind.kind == body["kind"])
            self.cluster.store.create(kind, NAMESPACE, body)

    def run(self, pools: list[dict], **settings: object) -> list:
        given = TrainJobSettings(volume="slipway", folder=str(self.volume), **settings)
        return run_train_job(pools, str(self.output), given, restarts=QUICKLY, log=self.log)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeKubernetes]:
    with FakeKubernetes(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def step(cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> Step:
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.01")
    monkeypatch.setattr(trainjob, "POLL_SECONDS", 0.05)
    return Step(cluster, monkeypatch)


def pools(code: str, replicas: int = 3) -> list[dict]:
    container = {"image_uri": "slipway:1", "command": ["python", "-c", textwrap.dedent(code)]}
    pool = {"machine_spec": {}, "container_spec": container, "replica_count": 1}
    return [pool, {**pool, "replica_count": replicas - 1}]


def test_trainjob_replicas_are_told_what_vertex_tells(step: Step) -> None:
    step.grant()
    code = """
        import json, os
        print("told", json.dumps({k: v for k, v in os.environ.items()
            if k in ("TF_CONFIG", "CLUSTER_SPEC") or k.startswith(("AIP_", "SLIPWAY_"))}))
    """
    assert step.run(pools(code)) == []
    lines = [line.partition("] told ") for line in step.log.getvalue().splitlines() if "] told " in line]
    seen = {name.removeprefix("["): json.loads(text) for name, _, text in lines}
    assert set(seen) == {"workerpool0-0", "workerpool1-0", "workerpool1-1"}
    config = json.loads(seen["workerpool1-1"]["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 1}
    assert [len(config["cluster"][kind]) for kind in ("chief", "worker")] == [1, 2]
    assert json.loads(seen["workerpool1-1"]["CLUSTER_SPEC"])["task"] == {"type": "workerpool1", "index": 1}
    assert json.loads(seen["workerpool0-0"]["CLUSTER_SPEC"])["task"] == {"type": "workerpool0", "index": 0}
    assert seen["workerpool1-0"]["AIP_MODEL_DIR"] == f"{step.output}/model"
    step.cluster.wait(lambda: not step.cluster.left())
