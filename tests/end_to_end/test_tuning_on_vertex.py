"""A search on the fake Vertex AI: every step, Google's launcher and the replicas of all trials are processes here."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from typer.testing import CliRunner

from slipway.components.cloud.connection import Connection
from slipway.pipelines.cli.app import app
from slipway.pipelines.platforms.vertex import run
from tests.end_to_end.test_vertex_restarts import Machine, Machines
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.mount import Mount
from tests.fakes.ready import BUCKET, vertex_settings
from tests.fakes.vertex.containers import Containers
from tests.fakes.vertex.processes import Process, Processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CONFIGURATION = {
    "name": "digits",
    "data": {"source": "digits"},
    "model": {"builder": "slipway.trainer.models.digits:build"},
    "train": {"steps": 20, "batch_size": 64},
    "tune": {
        "trials": 3,
        "parallel": 2,
        "parameters": {
            "train.learning_rate": {"low": 0.0001, "high": 0.02, "scale": "log"},
            "train.batch_size": {"choices": [16, 32, 48, 64]},
        },
    },
}
# Google's launcher calls REGION-aiplatform.googleapis.com, and polls every 20 s.
LAUNCHER = """
import os, time
from google.api_core.client_options import ClientOptions
make, sleep = ClientOptions.__init__, time.sleep
def to_the_fake(self, *arguments, **options):
    make(self, *arguments, **options)
    self.api_endpoint = os.environ["TEST_VERTEX"]
ClientOptions.__init__ = to_the_fake
time.sleep = lambda seconds: sleep(min(seconds, 0.5))
"""


class Steps(Processes):
    """The steps, and Google's launcher; what calls the service receives the URIs that it does not read as they are."""

    def __init__(self, mount: Mount, google: FakeGoogle, folder: Path) -> None:
        super().__init__(mount)
        self._vertex = google.endpoints["aiplatform"]
        self.fails = ""  # the function of a step whose process ends at once
        self._patch = folder / "launcher"
        self._patch.mkdir()
        (self._patch / "sitecustomize.py").write_text(LAUNCHER)

    def start(self, image: str, command: list[str], *, environment: dict[str, str], **more: Any) -> Process:
        if "--payload" in command:
            path = os.pathsep.join([str(self._patch), os.environ.get("PYTHONPATH", "")])
            environment = {**environment, "PYTHONPATH": path, "TEST_VERTEX": self._vertex}
        else:
            # kfp makes the folders of a step's own artifacts, which are in the pipeline's.
            mounted = f"{BUCKET}/pipelines/" if any("register_version" in part for part in command) else ""
            command = [part.replace(f"gs://{mounted}", f"/gcs/{mounted}") for part in command]
        if self.fails and self.fails in command:
            command = ["false"]
        return super().start(image, command, environment=environment, keep_uris=True, **more)


@dataclass
class Trials(Machines):
    """The machines of the trials, whose data are in the bucket."""

    def start(self, image: str, arguments: list[str], **more: Any) -> Machine:
        here = f"{self.folder}/buckets/"
        return super().start(image, [argument.replace("gs://", here) for argument in arguments], **more)


@pytest.fixture
def machines(ready_google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    """A working folder, with a configuration in it, and the service with machines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "pause", lambda: time.sleep(0.2))
    (tmp_path / "buckets").mkdir()
    ready_google.storage.mount = mount = Mount(ready_google.storage, tmp_path / "buckets")
    mount.give_out(BUCKET)
    machines = Trials(tmp_path, ready_google.log)
    ready_google.region.jobs.containers = cast("Containers", machines)
    ready_google.region.pipelines.containers = cast("Containers", Steps(mount, ready_google, tmp_path))
    values = {**CONFIGURATION, "vertex": vertex_settings(ready_google)}
    (tmp_path / "slipway.yaml").write_text(yaml.safe_dump(values))
    return machines


def final(trial: Any) -> float:
    return float(trial.final_measurement.metrics[0].value)


def test_the_best_trial_is_evaluated_and_registered_with_its_parameters(
    ready_google: FakeGoogle, machines: Trials, tmp_path: Path
) -> None:
    """Also by a run that is resumed after its search."""
    ready_google.region.searches.dice.seed(1)
    steps = cast("Steps", ready_google.region.pipelines.containers)
    steps.fails = "evaluate"
    result = CliRunner().invoke(app, ["tune", "--target", "vertex"])
    assert result.exit_code == 1, result.output
    steps.fails = ""
    result = CliRunner().invoke(app, ["run", "--resume", "latest"])
    assert result.exit_code == 0, result.output
    (job,) = ready_google.region.searches.jobs.values()
    assert [(trial.id, trial.state.name) for trial in job.trials] == [(number, "SUCCEEDED") for number in "123"]
    assert len({final(trial) for trial in job.trials}) > 1, "the trials are trainings with different results"
    best = max(job.trials, key=final)
    record = json.loads((tmp_path / "runs" / "latest" / "run.json").read_text())
    trained, evaluated = (
        next(step["outputs"] for step in record["steps"] if step["name"] == name) for name in ("train", "evaluate")
    )
    assert trained["trial"] == best.id
    values = {one.parameter_id: one.value for one in best.parameters}
    assert trained["parameters"] == {**values, "train.batch_size": int(values["train.batch_size"])}
    assert trained["validation"]["accuracy"] == pytest.approx(final(best))
    folder = tmp_path / "buckets" / trained["model"].removeprefix("gs://")
    for trial in job.trials:
        trained_with = json.loads((folder.parents[1] / trial.id / "model" / "model.json").read_text())
        drawn = {one.parameter_id: one.value for one in trial.parameters}
        assert trained_with["learning_rate"] == drawn["train.learning_rate"]
        assert trained_with["batch_size"] == int(drawn["train.batch_size"])
    assert len({trial.parameters[0].value for trial in job.trials}) > 1, "different batch sizes, and so plans"
    model = f"projects/{PROJECT}/locations/{REGION}/models/digits"
    (version,) = Connection(PROJECT, REGION, ready_google.endpoints).models.list_model_versions(name=model)
    assert version.artifact_uri == trained["model"]
    tuned = ", ".join(f"{name} {value}" for name, value in trained["parameters"].items())
    assert f"Tuned: {tuned}" in version.version_description
    assert f"accuracy {evaluated['metrics']['accuracy']:.4f}" in version.version_description
