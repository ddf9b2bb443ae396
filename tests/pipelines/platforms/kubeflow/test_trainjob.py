"""A run on a cluster from the server to the registered model, with the train step's TrainJob on two pods."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway.pipelines.platforms.kubeflow import launch
from slipway.pipelines.runs.record import RunRecord
from tests.components.train.conftest import grant
from tests.fakes.kubeflow import FakeKubeflow
from tests.fakes.kubeflow_steps import KubeflowSteps
from tests.fakes.kubernetes.server import FakeKubernetes
from tests.pipelines.platforms.kubeflow.conftest import configuration


class Nobody:
    """A watcher that ignores the events."""

    def event(self, record: RunRecord, event: dict[str, Any]) -> None: ...


@pytest.fixture
def cluster(kubeflow: FakeKubeflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubernetes]:
    """A cluster on which the tasks of the server's runs are real, and the user's kubeconfig for it."""
    with FakeKubernetes(tmp_path) as cluster:
        kubeflow.steps = KubeflowSteps(cluster, tmp_path / "artifacts")
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig()))
        monkeypatch.setattr(launch, "POLL_SECONDS", 0.2)
        yield cluster


def test_a_run_on_kubeflow_trains_by_a_trainjob_and_registers_the_model(
    kubeflow: FakeKubeflow, cluster: FakeKubernetes
) -> None:
    grant(cluster)
    volume = cluster.add_claim("slipway")
    kubeflow.cluster.claims["slipway"] = 65534
    config = configuration("cpu*2", host=kubeflow.host, folder=str(volume), run_as_user=None)
    few = config.train.model_copy(update={"epochs": 3})
    low = config.evaluate.gate.model_copy(update={"minimum": 0.3})
    config = config.model_copy(update={"train": few, "evaluate": config.evaluate.model_copy(update={"gate": low})})
    folder, _ = launch.submit(config)
    record = launch.watch(folder, Nobody())
    assert record.status == "succeeded", (record.error, cluster.describe())
    log = kubeflow.steps.log("train")
    pods = set(re.findall(r"^\[(workerpool\d-\d)\]", log, re.MULTILINE))
    assert pods == {"workerpool0-0", "workerpool1-0"}
    assert len(re.findall(r"weights checksum [0-9a-f]{64}", log)) == 2
    assert len(set(re.findall(r"weights checksum ([0-9a-f]{64})", log))) == 1
    assert list(volume.glob("models/digits/*"))
    cluster.wait(lambda: not cluster.left())
