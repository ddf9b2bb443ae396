"""A run on Vertex AI that moves from region to region trains as one that began in the last of them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from google.cloud import aiplatform_v1 as vertex
from typer.testing import CliRunner

from slipway.components.plan_training.plan import plan_training
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core import manifest
from slipway.pipelines.config.config import load
from slipway.trainer.checkpoint.store import pointed_step
from tests.end_to_end.test_vertex_restarts import Machines
from tests.end_to_end.workspace import SLIPWAY, wait_for
from tests.fakes.errors import ServiceError
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.mount import Mount
from tests.fakes.ready import BUCKET, IMAGE, RUNNER, grant, make_region_ready, vertex_settings
from tests.fakes.vertex.containers import Containers
from tests.fakes.vertex.region import Region
from tests.fakes.vertex.replicas import Replicas
from tests.fakes.vertex.script import Failure
from tests.fakes.vertex.work import Ended

SECOND, THIRD = "us-central1", "asia-east1"
TRAIN = "custom-training-job"
CPUS = "aiplatform.googleapis.com/custom_model_training_cpus"
STEPS = 500
STRAIGHT = "slipway-test-straight"
# Reported: https://github.com/openreview/openreview-expertise/issues/401
CAPACITY = (
    "Resources are insufficient in region: us-central1. Please try a different region or use a different accelerator."
)


class Preempted:
    """A job whose machines are taken away once it has saved a checkpoint, and for which there are no others."""

    def __init__(self, inner: Replicas, saved: Callable[[], bool]) -> None:
        self._inner, self._saved = inner, saved

    def check(self) -> None:
        self._inner.check()

    def start(self, job: vertex.CustomJob) -> None:
        self._inner.start(job)
        threading.Thread(target=self._preempt, daemon=True).start()

    def look(self) -> Ended | None:
        return Ended(Failure(CAPACITY, code=8)) if self._inner.look() is not None else None

    def stop(self) -> None:
        self._inner.stop()

    def _preempt(self) -> None:
        while not self._saved():
            time.sleep(0.01)
        self._inner.stop()


@dataclass
class World:
    """Three regions whose steps are real where the weights depend on them: preparing the data, the plan, the training.

    Buckets are the folders in `folder`/buckets. `prepared` are the buckets for which the data set was prepared.
    """

    google: FakeGoogle
    folder: Path
    regions: dict[str, Region]
    prepared: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        buckets = self.folder / "buckets"
        self.google.storage.mount = Mount(self.google.storage, buckets, strict=False)
        self.machines = Machines(self.folder, self.google.log)
        for region in self.regions.values():
            script = region.pipelines.script
            script["prepare-data"].work = lambda inputs, script=script: self._prepare(inputs, script)
            script[TRAIN].job = self._replicas
        self.regions[SECOND].pipelines.script[TRAIN].job = lambda: Preempted(
            self._replicas(),
            lambda: any((pointed_step(path) or 0) for path in buckets.glob(f"*{SECOND}/runs/*/checkpoints")),
        )

    def bucket(self, name: str) -> Path:
        return self.folder / "buckets" / name

    def weights(self, bucket: str, run_id: str) -> str:
        return str(
            json.loads((self.bucket(bucket) / f"runs/{run_id}/model/model.json").read_text())["weights_checksum"]
        )

    def _replicas(self) -> Replicas:
        return Replicas(cast("Containers", self.machines))

    def _prepare(self, inputs: Mapping[str, Any], script: Any) -> dict[str, tuple[str, dict[str, Any]]]:
        """Prepare the data set, or use that of the run, as the step does; plan the training on it."""
        bucket, _, path = inputs["output"].removeprefix("gs://").partition("/")
        remembered = self.bucket(bucket) / path / "dataset.json"
        if remembered.is_file():
            uri = str(json.loads(remembered.read_text())["uri"])
        else:
            self.prepared.append(bucket)
            store = self.bucket(bucket) / "datasets"
            made = prepare(DataSettings(source="digits", store=str(store)), inputs["replicas"])
            uri = f"gs://{bucket}/{Path(made.uri).relative_to(self.bucket(bucket))}"
            remembered.parent.mkdir(parents=True, exist_ok=True)
            remembered.write_text(json.dumps({"uri": uri}))
        here = self.bucket(uri.removeprefix("gs://").partition("/")[0]) / uri.removeprefix("gs://").partition("/")[2]
        config = load(self.folder / "run.yaml")
        planned = plan_training(
            config.training_hardware.worker_pools(),
            0,
            manifest.read(here),
            str(here),
            config.model,
            config.train,
            IMAGE,
        )
        script["plan-training"].outputs = {"Output": planned.worker_pool_specs}
        return {"dataset": (uri, {"examples": {"train": 1, "test": 1}})}


@pytest.fixture
def world(ready_google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    others = {name: make_region_ready(ready_google, name) for name in (SECOND, THIRD)}
    for name, limit in ((REGION, 16), (SECOND, 100), (THIRD, 100)):
        ready_google.world.quotas[PROJECT, name, CPUS] = limit
    ready_google.storage.add_bucket(STRAIGHT, ready_google.world.projects[PROJECT], THIRD)
    grant(ready_google, f"buckets/{STRAIGHT}", "roles/storage.objectUser", RUNNER)
    values = {
        "name": "digits",
        "hardware": "cpu@n1-standard-16",  # with the step that launches it more than the first region's quota
        "data": {"source": "digits"},
        "model": {"builder": "slipway.trainer.models.digits:build"},
        "train": {
            "steps": STEPS,
            "batch_size": 24,
            "augment": {"shift": 1},
            "checkpoint": {"every_steps": 50, "every_seconds": None},
        },
        "vertex": {**vertex_settings(ready_google), "regions": others},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    straight = {**vertex_settings(ready_google), "region": THIRD, "bucket": f"gs://{STRAIGHT}"}
    straight["endpoints"] = {**straight["endpoints"], **others[THIRD]["endpoints"]}
    (tmp_path / "straight.yaml").write_text(yaml.safe_dump({**values, "vertex": straight}, sort_keys=False))
    regions = {REGION: ready_google.region} | {region.name: region for _, region in ready_google._others}
    return World(ready_google, tmp_path, regions)


def slipway(*arguments: str) -> Any:
    from slipway.pipelines.cli.app import app

    return CliRunner().invoke(app, list(arguments))


def record(world: World) -> dict[str, Any]:
    return dict(json.loads((world.folder / "runs/latest/run.json").read_text()))


@pytest.mark.timeout(600)
def test_a_run_that_quota_capacity_and_a_kill_move_to_the_third_region_has_the_weights_of_one_that_began_there(
    world: World,
) -> None:
    """The first region refuses for quota, and the command is killed while it submits the run to the second; there, the
    training saves checkpoints until its machines are taken away; the third trains to the end."""
    result = slipway("run", "-c", "straight.yaml", "--target", "vertex")
    assert result.exit_code == 0, result.output
    straight = record(world)["run_id"]

    second = world.regions[SECOND].pipelines
    create = second.create
    command = subprocess.Popen([*SLIPWAY, "run", "-c", "run.yaml", "--target", "vertex"])

    def killed(*arguments: Any) -> Any:
        command.send_signal(signal.SIGKILL)
        raise ServiceError(503, "Away.")

    second.create = killed  # type: ignore[method-assign]
    assert command.wait(300) == -signal.SIGKILL
    second.create = create  # type: ignore[method-assign]
    run_id = record(world)["run_id"]
    assert run_id != straight
    assert (record(world)["status"], record(world)["region"], second.jobs) == ("running", SECOND, {})
    result = slipway("run", "--resume", run_id)
    assert result.exit_code == 0, result.output
    kept = record(world)
    assert (kept["run_id"], kept["status"], kept["region"]) == (run_id, "succeeded", THIRD)
    assert [each["region"] for each in kept["refused"]] == [REGION, SECOND]
    tries = {
        name: [job.rpartition("/")[2] for job in region.pipelines.jobs if straight not in job]
        for name, region in world.regions.items()
    }
    assert tries == {REGION: [run_id], SECOND: [f"{run_id}-2"], THIRD: [f"{run_id}-3"]}
    assert world.prepared == [STRAIGHT, BUCKET], "the data set was copied from region to region"
    lines = [str(entry["jsonPayload"]["message"]) for entry in world.google.log.entries if "jsonPayload" in entry]
    (resumed,) = [found for line in lines if (found := re.search(r"resuming from the checkpoint at step (\d+)", line))]
    assert 0 < int(resumed[1]) < STEPS
    assert world.weights(f"{BUCKET}-{THIRD}", run_id) == world.weights(STRAIGHT, straight)
    jobs = [job for region in world.regions.values() for job in region.jobs.jobs.values()]
    own = [job for job in jobs if job.job_spec.base_output_directory.output_uri_prefix.endswith(f"/{run_id}")]
    spent = sum((job.end_time - job.start_time).total_seconds() for job in own)
    assert len(own) == 2
    assert kept["cost"]["seconds"] == spent
    wait_for(lambda: not any(machine.child.is_running for machine in world.machines.started), seconds=60)
