"""Preemption on Vertex AI: the trainer's replicas are processes here, which the fake service restarts by its rules."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from slipway.components.cloud.connection import Connection
from slipway.components.plan_training.plan import plan_training
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.supervision import Child
from slipway.pipelines.hardware import parse
from slipway.trainer.checkpoint.store import pointed_step
from slipway.trainer.config import ModelSettings, TrainSettings
from tests.end_to_end.workspace import wait_for
from tests.fakes.containers import GRACE_SECONDS, End
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.logging import Log
from tests.fakes.ready import BUCKET, IMAGE
from tests.fakes.vertex.containers import Containers
from tests.fakes.vertex.replicas import Replicas

REPLICAS = ("workerpool0-0", "workerpool1-0", "workerpool1-1")
STEPS = 1200


BUILDER = """
import json, os
from slipway.trainer.models.digits import build as digits
def build(image_shape, classes):
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    if (task["type"], task["index"]) == ("worker", 1):
        raise ValueError("a mistake")
    return digits(image_shape, classes)
"""


class Machine:
    """A replica's process in place of its container."""

    def __init__(self, child: Child) -> None:
        self.child = child

    def ended(self) -> bool:
        return not self.child.is_running

    def wait(self) -> End:
        code = self.child.status  # waits for the process
        at = datetime.now(UTC)
        self.child.finish()  # waits for its output
        return End(at, code)

    def stop(self) -> None:
        self.child.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while self.child.is_running and time.monotonic() < deadline:
            time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        self.child.signal(signal.SIGKILL)


@dataclass
class Machines:
    """Machines with a bucket's objects in `folder`/buckets instead of below /gcs, and this environment for any image.

    `started` are the processes in the order of their starts.
    """

    folder: Path
    log: Log
    started: list[Machine] = field(default_factory=list)

    def custom_job(self) -> Replicas:
        return Replicas(cast("Containers", self))

    def start(
        self,
        image: str,
        arguments: list[str],
        *,
        entrypoint: list[str],
        environment: Mapping[str, str],
        hosts: Mapping[str, str],
        labels: Mapping[str, str],
        job: str,
        replica: str,
    ) -> Machine:
        told = {name: value.replace("gs://", f"{self.folder}/buckets/") for name, value in environment.items()}
        for host, address in hosts.items():
            told = {name: value.replace(host, address) for name, value in told.items()}
        assert entrypoint[0] == "python"
        command = [sys.executable, *entrypoint[1:], *arguments]
        path = os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        whole = {**os.environ, "PYTHONPATH": path, "TF_GRPC_REUSE_PORT": "true", **told}
        child = Child(replica, command, whole, lambda line: self.log.write_job(job, replica, line), own_group=True)
        child.read()
        self.started.append(Machine(child))
        return self.started[-1]


class Service:
    """The fake Vertex AI with machines, called by Google's client."""

    def __init__(self, google: FakeGoogle, folder: Path) -> None:
        self.google = google
        self.machines = Machines(folder, google.log)
        google.region.jobs.containers = cast("Containers", self.machines)
        self.client = Connection(PROJECT, REGION, google.endpoints).jobs
        self._prepared = prepare(DataSettings(source="digits", store=str(folder / "datasets")), len(REPLICAS))

    def submit(self, name: str, builder: str = "slipway.trainer.models.digits:build") -> str:
        """Create a job of three replicas as the pipeline's step train does; return its name."""
        train = {
            "steps": STEPS,
            "batch_size": 24,
            "augment": {"shift": 1},
            "checkpoint": {"every_steps": 50, "every_seconds": None},
        }
        planned = plan_training(
            parse("cpu*3").worker_pools(), 0, self._prepared.manifest, self._prepared.uri,
            ModelSettings(builder=builder), TrainSettings.model_validate(train), IMAGE,
        )  # fmt: skip
        specification = {
            "worker_pool_specs": planned.worker_pool_specs,
            "scheduling": {"restart_job_on_worker_restart": True},
            "base_output_directory": {"output_uri_prefix": f"gs://{BUCKET}/{name}"},
        }
        parent = f"projects/{PROJECT}/locations/{REGION}"
        job = {"display_name": name, "job_spec": specification}
        return str(self.client.create_custom_job(parent=parent, custom_job=job).name)

    def end(self, job: str) -> Any:
        """Poll a job to its end and return it."""

        def ended() -> Any:
            found = self.client.get_custom_job(name=job)
            return found if found.state.name in ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED") else None

        return wait_for(ended, seconds=500)

    def output(self, name: str) -> Path:
        return self.machines.folder / "buckets" / BUCKET / name

    def weights(self, name: str) -> str:
        return str(json.loads((self.output(name) / "model/model.json").read_text())["weights_checksum"])

    def wait_for_checkpoint(self, job: str, name: str, after: int) -> int:
        """Wait until all replicas train and a checkpoint after step `after` is saved; return its step."""

        def saved() -> int:
            found = self.client.get_custom_job(name=job)
            assert found.state.name in ("JOB_STATE_PENDING", "JOB_STATE_RUNNING"), found.error
            step = pointed_step(self.output(name) / "checkpoints") or 0
            return step if step > after else 0

        return int(wait_for(saved, seconds=240))

    def wait_for_retry(self, job: str, name: str) -> int:
        """Wait until the service retries a job; return the step of the last checkpoint, which the first try saved."""
        wait_for(lambda: self.client.get_custom_job(name=job) and self.lines(job, "service"), seconds=240)
        return pointed_step(self.output(name) / "checkpoints") or 0

    def lines(self, job: str, replica: str) -> list[str]:
        identity = job.rpartition("/")[2]
        labels = [(entry, entry["resource"]["labels"]) for entry in self.google.log.entries]
        return [
            entry["jsonPayload"]["message"]
            for entry, told in labels
            if (told.get("job_id"), told.get("task_name")) == (identity, replica)
        ]


@pytest.fixture
def service(ready_google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(ready_google, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_job_of_which_one_replica_is_lost_and_one_preempted_ends_with_the_undisturbed_weights(
    service: Service,
) -> None:
    """The service notices the loss later than the survivors do: they have to ask for another try themselves."""
    undisturbed = service.end(service.submit("undisturbed"))
    assert undisturbed.state.name == "JOB_STATE_SUCCEEDED", undisturbed.error

    job = service.submit("disturbed")
    service.wait_for_checkpoint(job, "disturbed", 0)
    service.google.region.jobs.lose(job, "workerpool1-1", noticed_after=60.0)
    saved = service.wait_for_retry(job, "disturbed")
    service.wait_for_checkpoint(job, "disturbed", saved)
    preempted = [machine.child for machine in service.machines.started if machine.child.name == "workerpool1-0"][-1]
    preempted.signal(signal.SIGTERM)
    ended = service.end(job)

    assert ended.state.name == "JOB_STATE_SUCCEEDED", ended.error
    said = service.lines(job, "service")
    print("\n".join(said))
    assert len(said) in (2, 3)  # on a busy machine, TensorFlow may lose a replica while it forms its cluster
    assert all(
        re.fullmatch(r"The replica \S+ exited with a non-zero status of 134; the job is retried\.", s) for s in said
    )
    for replica in REPLICAS:
        assert sum("resuming from the checkpoint" in line for line in service.lines(job, replica)) >= 2
    assert service.weights("disturbed") == service.weights("undisturbed")


def test_a_value_error_in_the_model_builder_ends_the_job_at_once(service: Service) -> None:
    (service.machines.folder / "own_networks.py").write_text(BUILDER)
    ended = service.end(service.submit("mistake", builder="own_networks:build"))
    assert ended.state.name == "JOB_STATE_FAILED"
    assert "The replica workerpool1-1 exited with a non-zero status of 1." in ended.error.message
    assert len(service.machines.started) == len(REPLICAS), "none was started again"
