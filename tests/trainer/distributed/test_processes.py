"""The processes of a replica: how many, what they are told, and the status with which the replica ends."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipway.trainer.config import JobConfig, ModelSettings, Plan, TrainSettings
from slipway.trainer.distributed import processes
from slipway.trainer.distributed.accelerators import Accelerators
from slipway.trainer.distributed.cluster import Cluster, read
from slipway.trainer.distributed.signals import StopRequest

VIRTUAL = {"SLIPWAY_VIRTUAL_DEVICES": "4"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.2", "MASTER_PORT": "29500"}
TWO_HERE = {
    "TF_CONFIG": json.dumps(
        {
            "cluster": {"chief": ["127.0.0.1:1111"], "worker": ["127.0.0.1:2222"]},
            "task": {"type": "worker", "index": 0},
        }
    )
}


def a_job(replicas: int) -> JobConfig:
    plan = Plan(replicas=replicas, batch_per_replica=8, steps_per_epoch=1, steps=1)
    return JobConfig(data="", model=ModelSettings(builder="a:b"), train=TrainSettings(epochs=1), plan=plan)


def on_gpus(environment: dict[str, str], count: int) -> Cluster:
    told = read(environment)
    gpus = Accelerators("gpu", count, "device files")
    return Cluster(told.tasks, told.rank, told.source, gpus, told.local_rank, told.on_this_machine)


@pytest.mark.parametrize(
    ("engine", "environment", "gpus", "expected"),
    [
        ("pytorch", {}, 0, 1),
        ("pytorch", {}, 8, 8),
        ("jax", {}, 8, 1),
        ("tensorflow", {}, 8, 1),
        ("pytorch", TWO_HERE, 8, 4),
        ("pytorch", TWO_HERE, 1, 1),
        ("pytorch", TORCHRUN, 4, 4),
        ("pytorch", TORCHRUN | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, 4, 1),
    ],
)
def test_an_engine_of_one_device_a_process_has_one_for_each_gpu(
    engine: str, environment: dict[str, str], gpus: int, expected: int
) -> None:
    assert processes.count(engine, on_gpus(environment, gpus)) == expected


def test_virtual_devices_have_processes_too() -> None:
    assert processes.count("pytorch", read(VIRTUAL)) == 4
    assert processes.count("pytorch", read(VIRTUAL | TWO_HERE)) == 4


@pytest.mark.parametrize("environment", [{}, TWO_HERE, TORCHRUN])
def test_a_process_finds_its_place_among_all(environment: dict[str, str]) -> None:
    replica = read(VIRTUAL | environment)
    rendezvous_at = replica.tasks[0].host_and_port if replica.world_size > 1 else ("127.0.0.1", 4711)
    told = [processes.environment_of(VIRTUAL | environment, replica, 4, number, rendezvous_at) for number in range(4)]
    found = [read(each) for each in told]
    assert [each.rank for each in found] == [replica.rank * 4 + number for number in range(4)]
    assert [each.local_rank for each in found] == [replica.local_rank * 4 + number for number in range(4)]
    assert {each.world_size for each in found} == {replica.world_size * 4}
    assert {each.on_this_machine for each in found} == {replica.on_this_machine * 4}
    assert {each.tasks[0].host_and_port for each in found} == {rendezvous_at}
    assert {processes.count("pytorch", each) for each in found} == {1}
    job = a_job(replica.world_size)
    assert {processes.with_processes(job, each).plan.batch_per_process for each in told} == {2}
    assert processes.with_processes(job, {}) == job


# Stands in for the interpreter of a device's process: device 1 does as the case says, and the others wait for its end.
DEVICE = """#!/bin/sh
echo "device $RANK of $SLIPWAY_PROCESSES runs $*"
[ "$RANK" = 1 ] && {{ {body}; }}
[ "$RANK" = 1 ] || exec sleep {seconds}
"""


@pytest.mark.parametrize(
    ("body", "status", "printed", "logged"),
    [
        ("exit 0", 0, "", ""),
        ("exit 3", 3, "device 1 of 4 runs -m slipway.trainer --config {}", ""),
        ("kill -9 $$", 137, "", "the process of device 1 of this replica was killed by SIGKILL"),
        ("exit 138", 138, "", ""),
    ],
)
def test_a_replica_ends_with_the_status_of_the_process_that_failed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    body: str,
    status: int,
    printed: str,
    logged: str,
) -> None:
    program = tmp_path / "python"
    program.write_text(DEVICE.format(body=body, seconds=60 if status else 0))
    program.chmod(0o755)
    # Not sys.executable itself, which starts the processes.
    monkeypatch.setattr(processes, "sys", SimpleNamespace(executable=str(program), stderr=sys.stderr))
    # Other tests may have left a handler that writes to their own, closed output.
    monkeypatch.setattr(logging.getLogger(), "handlers", [caplog.handler])
    with caplog.at_level(logging.ERROR):
        assert processes.run("{}", a_job(1), read(VIRTUAL), 4, StopRequest()) == status
    passed_through, failed = capfd.readouterr()
    assert passed_through == "device 0 of 4 runs -m slipway.trainer --config {}\n"
    assert failed.strip() == printed
    assert caplog.text.strip().endswith(logged) if logged else not caplog.text
