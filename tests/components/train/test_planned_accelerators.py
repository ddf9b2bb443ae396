"""The accelerators of a plan reach the replicas of each platform; on Vertex AI, as its custom job says."""

from __future__ import annotations

from datetime import UTC, datetime

from google.cloud import aiplatform_v1 as vertex

from slipway.components.plan_training.plan import plan_training
from slipway.components.train.tpu.bucket import BucketFolder
from slipway.components.train.tpu.lease import Holder
from slipway.components.train.tpu.request import startup_script
from slipway.components.train.tpu.settings import TpuSettings
from slipway.components.train.trainjob.manifest import Owner, TrainJobSettings, training_runtime
from slipway.components.worker_pools import WorkerPool, cluster_environment, replicas_of
from slipway.pipelines.hardware import parse
from slipway.trainer.config import TrainSettings


def planned(hardware: str) -> list[WorkerPool]:
    chosen = parse(hardware)
    train = TrainSettings(module="own.program")
    return plan_training(
        chosen.worker_pools(), chosen.accelerators_per_replica, None, "", None, train, "e.g/image@sha256:0"
    ).worker_pool_specs


def test_by_the_environment_of_this_machines_processes() -> None:
    replicas = replicas_of(planned("l4x4*2"), [1, 2])
    assert [cluster_environment(each, replicas)["SLIPWAY_ACCELERATORS"] for each in replicas] == ["gpu:4", "gpu:4"]


def test_by_the_container_specification_of_a_custom_job() -> None:
    for pool in planned("l4x4*2"):
        sent = vertex.WorkerPoolSpec(pool).container_spec.env
        assert {one.name: one.value for one in sent}["SLIPWAY_ACCELERATORS"] == "gpu:4"


def test_by_the_pods_of_a_trainjob() -> None:
    settings = TrainJobSettings(volume="v", folder="/v")
    runtime = training_runtime("job", Owner("pod", "1"), 1, planned("l4x4*2"), "/v/run", settings)
    for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        assert {"name": "SLIPWAY_ACCELERATORS", "value": "gpu:4"} in container["env"]


def test_by_the_options_of_docker_on_a_tpu_vm() -> None:
    (pool,) = planned("tpu-v5e-2x4")
    settings = TpuSettings(project="p", zones=("us-west4-a",), bucket="gs://p-runs", service_account="tpu@p.example")
    folder = BucketFolder(settings.connection, "p-runs", "runs/1")
    script = startup_script(settings, folder, Holder("n", "us-west4-a", 1), pool["container_spec"], datetime.now(UTC))
    assert "--env=SLIPWAY_ACCELERATORS=tpu:8" in script
