"""A run on a cluster from the server to the registered model, with the train step's TrainJob on two pods."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from slipway.components.train.trainjob.search import FILE_NAME, STUDY
from slipway.components.train.tuning import TuneSettings
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.kubeflow import launch
from slipway.pipelines.runs.record import RunRecord
from slipway.pipelines.tuning.search import settings_of
from tests.components.train.trainjob.conftest import grant, meanwhile
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


def shortened(kubeflow: FakeKubeflow, volume: Path, hardware: str, **changes: Any) -> RunConfig:
    """Return a configuration whose training is short, with a gate that it passes."""
    kubeflow.cluster.claims["slipway"] = 65534
    config = configuration(hardware, host=kubeflow.host, folder=str(volume), run_as_user=None)
    low = config.evaluate.gate.model_copy(update={"minimum": 0.3})
    few = config.train.model_copy(update={"epochs": 1.0})
    update = {"train": few, "evaluate": config.evaluate.model_copy(update={"gate": low}), **changes}
    return config.model_copy(update=update)


def test_a_run_on_kubeflow_trains_by_a_trainjob_and_registers_the_model(
    kubeflow: FakeKubeflow, cluster: FakeKubernetes
) -> None:
    grant(cluster)
    volume = cluster.add_claim("slipway")
    folder, _ = launch.submit(shortened(kubeflow, volume, "cpu*2"))
    record = launch.watch(folder, Nobody())
    assert record.status == "succeeded", (record.error, cluster.describe())
    log = kubeflow.steps.log("train")
    pods = set(re.findall(r"^\[(workerpool\d-\d)\]", log, re.MULTILINE))
    assert pods == {"workerpool0-0", "workerpool1-0"}
    assert len(re.findall(r"weights checksum [0-9a-f]{64}", log)) == 2
    assert len(set(re.findall(r"weights checksum ([0-9a-f]{64})", log))) == 1
    assert list(volume.glob("models/digits/*"))
    cluster.wait(lambda: not cluster.left())


TUNE = {
    "trials": 4,
    "parallel": 2,
    "parameters": {
        "train.learning_rate": {"low": 0.0001, "high": 0.02, "scale": "log"},
        "model.arguments.width": {"choices": [8, 16]},
    },
}


@pytest.mark.timeout(300)
@pytest.mark.long  # tests/components/train/trainjob/test_search.py has a search of the step
def test_a_search_on_kubeflow_continues_after_its_step_was_killed(
    kubeflow: FakeKubeflow, cluster: FakeKubernetes
) -> None:
    """Each of four trials is a TrainJob, two at once; the best one's model is registered."""
    grant(cluster)
    volume = cluster.add_claim("slipway")
    config = shortened(kubeflow, volume, "cpu", tune=TuneSettings.model_validate(TUNE))
    folder, _ = launch.submit(config, settings_of(config))

    def kill() -> None:
        cluster.wait(lambda: re.search(r"^trial \d accuracy", kubeflow.steps.log("train"), re.MULTILINE), 120)
        kubeflow.steps.kill("train")

    killing = meanwhile(kill)
    assert launch.watch(folder, Nobody()).status == "failed"
    killing.join()
    launch.resume(folder)
    record = launch.watch(folder, Nobody())
    assert (record.status, record.searches) == ("succeeded", True), (record.error, cluster.describe())
    output = volume / "runs" / record.run_id
    storage = JournalStorage(JournalFileBackend(str(output / FILE_NAME)))
    trials = optuna.load_study(study_name=STUDY, storage=storage).get_trials()
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4, "none is lost or counted twice"
    log = kubeflow.steps.log("train")
    found = re.search(r"^best trial (\d): validation accuracy (\S+) with train.learning_rate (\S+), model", log, re.M)
    assert found, log
    best = trials[int(found[1])]
    assert best.value == max(trial.value for trial in trials)
    assert found[2] == f"{best.value:.4f}"
    models = {trial.number: output / "trials" / f"trial-{trial.number}" / "model" / "model.json" for trial in trials}
    rates = {number: json.loads(file.read_text())["learning_rate"] for number, file in models.items()}
    assert rates == {trial.number: trial.params["train.learning_rate"] for trial in trials}
    assert len(set(rates.values())) == 4
    (registered,) = volume.glob("models/digits/*/metadata.json")
    assert json.loads(registered.read_text())["parameters"]["train.learning_rate"] == rates[best.number]
    cluster.wait(lambda: not cluster.left())
