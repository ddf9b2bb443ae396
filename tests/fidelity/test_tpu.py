"""Vertex AI's rules for TPUs: one replica, one container per machine of the slice; only the first is watched."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from google.api_core.exceptions import InvalidArgument
from google.cloud import aiplatform_v1 as vertex

from slipway.components.cloud.connection import Connection
from slipway.trainer.distributed.cluster import read
from tests.fakes.containers import End
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.vertex.containers import Containers
from tests.fakes.vertex.replicas import Replicas, environment_of, replicas_of

V5E = {"machine_type": "ct5lp-hightpu-4t", "tpu_topology": "4x4"}
V3 = {"machine_type": "cloud-tpu", "accelerator_type": "TPU_V3", "accelerator_count": 32}


def custom_job(machine: dict[str, Any]) -> vertex.CustomJob:
    pool = {"machine_spec": machine, "replica_count": 1, "container_spec": {"image_uri": "gcr.io/p/trainer:1"}}
    name = "projects/1/locations/europe-west4/customJobs/77"
    return vertex.CustomJob(name=name, display_name="tpu", job_spec={"worker_pool_specs": [pool]})


@pytest.mark.parametrize(
    ("machine", "refused"),
    [
        ({"machine_type": "ct6e-standard-4t", "tpu_topology": "3x3"}, 'TPU topology "3x3" is not supported'),
        ({"machine_type": "ct6e-standard-8t", "tpu_topology": "4x4"}, 'TPU topology "4x4" is not supported'),
        ({"machine_type": "ct6e-standard-4t"}, 'TPU topology "" is not supported'),
        ({"machine_type": "n1-standard-4", "tpu_topology": "2x2"}, "takes no TPU topology"),
    ],
)
def test_a_topology_belongs_to_its_machine_type(
    ready_google: FakeGoogle, machine: dict[str, Any], refused: str
) -> None:
    """A machine type of four chips has 2x2 to 16x16, one of eight only 2x4.

    Source (read): table "TPU" of
    https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/configure-compute#tpu.
    """
    with pytest.raises(InvalidArgument, match=refused):
        create(ready_google, machine)


def test_a_tpu_job_has_one_worker_pool_of_one_replica(ready_google: FakeGoogle) -> None:
    """TPU jobs have exactly one worker pool with a replica count of 1, also on slices of several machines.

    Source (read): as above, "TPU".
    """
    machine = {"machine_type": "ct6e-standard-4t", "tpu_topology": "4x4"}
    with pytest.raises(InvalidArgument, match="exactly one worker pool with a replica count of 1"):
        create(ready_google, machine, pools=2)
    create(ready_google, machine)


def create(google: FakeGoogle, machine: dict[str, Any], pools: int = 1) -> None:
    """Create the job by Google's client."""
    job = custom_job(machine)
    job.name = ""
    job.job_spec.worker_pool_specs.extend(list(job.job_spec.worker_pool_specs) * (pools - 1))
    Connection(PROJECT, REGION, google.endpoints).jobs.create_custom_job(
        parent=f"projects/{PROJECT}/locations/{REGION}", custom_job=job
    )


@pytest.mark.parametrize(("machine", "hosts"), [(V5E, 4), (V3, 4), ({**V5E, "tpu_topology": "2x2"}, 1)])
def test_the_container_runs_on_every_machine_of_a_slice_with_the_same_cluster(
    machine: dict[str, Any], hosts: int
) -> None:
    """Each would take itself for the chief: TF_CONFIG is not set, and CLUSTER_SPEC lists one replica.

    Source (read): "Training with TPU accelerators" and the page on configuring compute (the VMs of each topology): a
    slice's machines are one replica.
    https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/ training-with-tpu-vm. That
    TPU_WORKER_ID and TPU_WORKER_HOSTNAMES tell them apart is read in JAX (jax/_src/clusters/cloud_tpu_cluster.py); a
    TPU VM that has them only in its metadata is the same to JAX.
    """
    job = custom_job(machine)
    replicas = replicas_of(job)
    told = [environment_of(job, replica, replicas) for replica in replicas]
    assert len(told) == hosts
    assert all("TF_CONFIG" not in one and read(one).is_chief for one in told)
    assert len({one["CLUSTER_SPEC"] for one in told}) == 1
    assert [one.get("TPU_WORKER_ID") for one in told] == ([str(host) for host in range(hosts)] if hosts > 1 else [None])


class Hosts:
    """Containers of a slice that end with these codes, the last host first."""

    def __init__(self, codes: list[int]) -> None:
        self.started: list[str] = []
        self._codes = codes

    def start(self, *arguments: object, replica: str, **options: object) -> Host:
        self.started.append(replica)
        number = (len(self.started) - 1) % 4
        return Host(number, self._codes[len(self.started) - 1])


class Host:
    """A container that ends at once; host 0 half a second after the others."""

    def __init__(self, number: int, code: int) -> None:
        self._number, self._code = number, code
        self._stopped = threading.Event()

    def ended(self) -> bool:
        return False

    def wait(self) -> End:
        self._stopped.wait(0.5 if self._number == 0 else 0.1)
        return End(datetime(2026, 1, 1, second=10 - self._number, tzinfo=UTC), self._code)

    def stop(self) -> None:
        self._stopped.set()


@pytest.mark.parametrize("codes", [[0, 0, 1, 0], [0, 137, 137, 137]])
def test_only_host_0_of_a_slice_is_watched(codes: list[int]) -> None:
    """The job succeeds when host 0 does, whatever the others do: a trainer has to end with a barrier.

    Source (read): "Training with TPU accelerators", JAX on several hosts (as above).
    """
    replicas = Replicas(cast("Containers", Hosts(codes)))
    replicas.start(custom_job(V5E))
    deadline = time.monotonic() + 60
    while (ended := replicas.look()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended is not None
    assert ended.failure is None
