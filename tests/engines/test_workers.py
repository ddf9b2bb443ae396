"""Complete runs of the trainer with the engine: stopped, killed, with two replicas, on virtual devices."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from slipway.core.errors import ERROR_PREFIX
from slipway.core.exit_codes import PEER_LOST, TRY_AGAIN
from slipway.trainer.checkpoint.store import Checkpoints
from tests.engines.conftest import ENGINE, HERE, Bench
from tests.trainer.conftest import NETWORKS, DataSets, job

SAVING = {"checkpoint": {"every_steps": 150, "every_seconds": None}}
# Seconds long, so that it can be stopped in the middle.
STEPS = 3000 if ENGINE == "pytorch" else 9000
LONG = {"steps": STEPS, "steps_per_epoch": 150, "batch": 4, "builder": "sample_networks:dropout", **SAVING}


BUILDERS = {"PYTHONPATH": f"{NETWORKS}:{HERE / 'networks'}"}
# With dropout and, on pytorch, BatchNorm, whose statistics are exchanged; first the last layer is trained.
LAST = "5" if ENGINE == "pytorch" else "dense*"
STAGES = [{"steps": 300, "trainable": [LAST]}, {"epochs": 8}]
TWO = "torch_networks:regularized" if ENGINE == "pytorch" else "sample_networks:dropout"

# With variables that are large enough, and an update that does not amplify differences by rounding.
SHARDED = {
    "builder": "sample_networks:wide", "precision": "float32", "optimizer": "sgd", "learning_rate": 0.001,
    "steps": 120, "steps_per_epoch": 30, "checkpoint": {"every_steps": 60, "every_seconds": None},
}  # fmt: skip


def last_line(place: Path) -> dict[str, Any]:
    return json.loads((place / "model" / "metrics.jsonl").read_text().splitlines()[-1])


def losses(place: Path) -> list[float]:
    lines = [json.loads(line) for line in (place / "model" / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def test_stopped_then_killed_it_ends_with_the_same_weights(bench: Bench, tmp_path: Path, workers: Any) -> None:
    config = bench.job(**LONG)
    whole = workers.start(config, tmp_path / "whole")
    first = workers.start(config, tmp_path)
    first.wait_for_checkpoint(150)
    first.process.send_signal(signal.SIGTERM)
    assert first.wait().status == 143
    saved = int((tmp_path / "checkpoints" / "latest").read_text().removeprefix("step-"))
    assert 150 <= saved < STEPS

    second = workers.start(config, tmp_path)
    second.wait_for_checkpoint(saved + 150)
    second.process.kill()
    assert second.wait().status == -signal.SIGKILL

    end = workers.start(config, tmp_path).wait()
    assert end.status == 0, end.errors
    assert "resuming from the checkpoint at step" in end.output
    assert end.checksum == whole.wait().checksum
    assert last_line(tmp_path)["accuracy"] > 0.9


def test_two_replicas_end_with_the_same_weights_also_when_killed(bench: Bench, tmp_path: Path, workers: Any) -> None:
    config = bench.job(steps=900, steps_per_epoch=75, replicas=2, builder=TWO, stages=STAGES, **SAVING)
    whole = [worker.wait() for worker in workers.start_two(config, tmp_path / "whole", **BUILDERS)]
    assert [end.status for end in whole] == [0, 0], whole
    assert whole[0].checksum == whole[1].checksum
    assert last_line(tmp_path / "whole")["accuracy"] > 0.9

    for victim, survivor in ((1, 0), (0, 1)):  # also the chief, which hosts the rendezvous
        pair = workers.start_two(config, tmp_path / "killed", **BUILDERS)
        pair[0].wait_for_checkpoint(150 if victim else 450)
        pair[victim].process.kill()
        lost = pair[survivor].wait()
        assert lost.status == PEER_LOST, lost
        assert "another replica is lost" in lost.output, lost
        assert "Traceback" not in lost.errors

    resumed = [worker.wait() for worker in workers.start_two(config, tmp_path / "killed", **BUILDERS)]
    assert [end.checksum for end in resumed] == [whole[0].checksum] * 2, resumed


def test_an_error_on_one_replica_is_its_own_only(bench: Bench, tmp_path: Path, workers: Any) -> None:
    chief, worker = workers.start_two(bench.job(replicas=2, builder="sample_networks:none_on_a_worker"), tmp_path)
    end = worker.wait()
    assert end.status == 1
    assert "RuntimeError: not on a worker" in end.errors
    end = chief.wait()
    assert end.status == PEER_LOST, end
    assert "Traceback" not in end.errors


@pytest.mark.engine("jax", "pytorch")
def test_sharded_variables_train_as_whole_ones_would(bench: Bench, tmp_path: Path, workers: Any) -> None:
    sharded = bench.job(**SHARDED, sharding="fsdp", replicas=2)
    devices = {"SLIPWAY_VIRTUAL_DEVICES": "2"}
    pair = workers.start_two(sharded, tmp_path / "sharded", **BUILDERS, **devices)
    pair[0].wait_for_checkpoint(60)
    pair[1].process.kill()
    assert pair[0].wait().status == PEER_LOST
    assert list((tmp_path / "sharded" / "checkpoints").glob("step-*/state-00001.npz"))  # each writes its part
    resumed = [worker.wait() for worker in workers.start_two(sharded, tmp_path / "sharded", **BUILDERS, **devices)]
    undisturbed = [worker.wait() for worker in workers.start_two(sharded, tmp_path / "again", **BUILDERS, **devices)]
    assert [end.status for end in undisturbed] == [0, 0], undisturbed
    assert {end.checksum for end in resumed} == {end.checksum for end in undisturbed}

    whole = bench.job(**SHARDED, replicas=2)
    for worker in workers.start_two(whole, tmp_path / "whole", **BUILDERS, **devices):
        assert worker.wait().status == 0
    np.testing.assert_allclose(losses(tmp_path / "sharded"), losses(tmp_path / "whole"), rtol=1e-3)


@pytest.mark.engine("jax")
def test_gradients_summed_as_one_vector_are_those_summed_one_by_one(bench: Bench, tmp_path: Path, workers: Any) -> None:
    settings = {"builder": "sample_networks:penalized", "steps": 40, "steps_per_epoch": 20, "optimizer": "sgd"}
    found = {}
    for function in (False, True):
        job = bench.job(**settings, arguments={"function": function}, accumulation=2, clip_norm=0.5, replicas=2)
        place = tmp_path / str(function)
        ends = [worker.wait() for worker in workers.start_two(job, place, **BUILDERS)]
        assert [end.status for end in ends] == [0, 0], ends
        assert ends[0].checksum == ends[1].checksum
        found[function] = losses(place)
    np.testing.assert_allclose(found[False], found[True], rtol=1e-5)


def test_sums_through_shared_memory_are_those_through_the_network(bench: Bench, tmp_path: Path, workers: Any) -> None:
    """On pytorch with micro-batches, and a first stage of which other parameters have no gradients."""
    settings = {"builder": TWO, "stages": STAGES, "accumulation": 2} if ENGINE == "pytorch" else {}
    config = bench.job(steps=600, steps_per_epoch=75, replicas=2, clip_norm=0.5, **settings)
    checksums = set()
    for value, line in (("0", "SLIPWAY_SHARED_SUMS=0"), ("1", "the replicas sum gradients through shared memory")):
        pair = workers.start_two(config, tmp_path / value, **BUILDERS, SLIPWAY_SHARED_SUMS=value)
        ends = [worker.wait() for worker in pair]
        assert [end.status for end in ends] == [0, 0], ends
        assert all(line in end.output for end in ends)
        checksums |= {end.checksum for end in ends}
    assert len(checksums) == 1


def test_a_killed_replica_ends_a_sum_through_shared_memory(bench: Bench, tmp_path: Path, workers: Any) -> None:
    config = bench.job(steps=20_000, steps_per_epoch=1000, replicas=2, builder="sample_networks:killed_in_a_sum")
    chief, _ = workers.start_two(config, tmp_path)
    end = chief.wait()
    assert end.status == PEER_LOST, end
    assert "cannot continue alone: the process of rank 1 has ended" in end.output
    assert "Traceback" not in end.output + end.errors


@pytest.mark.engine("jax")
def test_sharded_variables_resume_on_another_number_of_devices(bench: Bench, tmp_path: Path, workers: Any) -> None:
    config = bench.job(**SHARDED, sharding="fsdp")
    stopped = workers.start(config, tmp_path / "resumed", **BUILDERS, SLIPWAY_VIRTUAL_DEVICES="2")
    stopped.wait_for_checkpoint(60)
    stopped.process.kill()
    stopped.wait()
    for folder, devices in (("resumed", "4"), ("undisturbed", "4"), ("one", "1")):
        end = workers.start(config, tmp_path / folder, **BUILDERS, SLIPWAY_VIRTUAL_DEVICES=devices).wait()
        assert end.status == 0, end.errors
        assert f"{devices} x CPU on this host" in end.output or devices == "1"
        assert ("resuming from the checkpoint" in end.output) == (folder == "resumed")
    np.testing.assert_allclose(losses(tmp_path / "resumed"), losses(tmp_path / "undisturbed"), rtol=1e-3)
    np.testing.assert_allclose(losses(tmp_path / "resumed"), losses(tmp_path / "one"), rtol=1e-3)


@pytest.mark.engine("jax")
def test_virtual_devices_train_as_one_would(bench: Bench, tmp_path: Path, workers: Any) -> None:
    config = bench.job(steps=100, steps_per_epoch=10, augment={})  # a log point each step
    four = workers.start(config, tmp_path, SLIPWAY_VIRTUAL_DEVICES="4")
    expected = bench.engine(config).run(bench.training(config), 0, np.full(100, 0.01, np.float32)).losses
    end = four.wait()
    assert end.status == 0, end.errors
    assert "4 x CPU on this host" in end.output
    np.testing.assert_allclose(losses(tmp_path), expected, rtol=1e-3)


@pytest.mark.engine("jax")  # on pytorch, each process reads its own examples: test_normalization.py
def test_batch_normalization_covers_the_batch_of_all_devices(bench: Bench, tmp_path: Path, workers: Any) -> None:
    config = bench.job(steps=60, steps_per_epoch=10, batch=30, builder="sample_networks:normalized")
    two = workers.start(config, tmp_path, SLIPWAY_VIRTUAL_DEVICES="2")
    engine = bench.engine(config)
    losses = engine.run(bench.training(config), 0, np.full(60, 0.01, np.float32)).losses
    end = two.wait()
    assert end.status == 0, end.errors
    lines = [json.loads(line) for line in (tmp_path / "model" / "metrics.jsonl").read_text().splitlines()]
    found = [line["loss"] for line in lines if line["kind"] == "train"]
    np.testing.assert_allclose(found, losses, rtol=1e-3, atol=1e-5)
    saved = Checkpoints(tmp_path / "checkpoints", keep=3).newest()
    assert saved is not None
    statistics = {name: array for name, array in engine.state().items() if "moving" in name}
    assert len(statistics) == 2
    for name, array in statistics.items():
        np.testing.assert_allclose(saved.state[name], array, rtol=1e-3, atol=1e-5)


@pytest.mark.engine("pytorch")
def test_two_devices_of_a_replica_train_as_two_replicas_would(bench: Bench, tmp_path: Path, workers: Any) -> None:
    settings = {"steps": 900, "steps_per_epoch": 75, "builder": "sample_networks:dropout", **SAVING}
    two = [worker.wait() for worker in workers.start_two(bench.job(replicas=2, **settings), tmp_path / "two")]
    assert [end.status for end in two] == [0, 0], two

    def start() -> Any:
        return workers.start(bench.job(**settings), tmp_path / "one", SLIPWAY_VIRTUAL_DEVICES="2")

    stopped = start()
    stopped.wait_for_checkpoint(150)
    devices = psutil.Process(stopped.process.pid).children()
    stopped.process.send_signal(signal.SIGTERM)
    assert stopped.wait().status == 143
    assert len(devices) == 2
    psutil.wait_procs(devices, timeout=180)
    assert not any(device.is_running() for device in devices)

    for victim in (1, 0):
        killed = start()
        saved = int((tmp_path / "one" / "checkpoints" / "latest").read_text().removeprefix("step-"))
        killed.wait_for_checkpoint(saved + 150)
        devices = psutil.Process(killed.process.pid).children()
        devices[victim].kill()
        end = killed.wait()
        assert end.status == 128 + signal.SIGKILL, end
        assert f"the process of device {victim} of this replica was killed by SIGKILL" in end.output
        assert not any(device.is_running() for device in devices)

    end = start().wait()
    assert end.status == 0, end
    assert "one CPU, one of 2 processes" in end.output
    assert end.checksum == two[0].checksum


@pytest.mark.engine("pytorch")
def test_the_death_of_a_replica_of_two_devices_ends_them_all(bench: Bench, tmp_path: Path, workers: Any) -> None:
    config = bench.job(steps=STEPS, steps_per_epoch=75, replicas=2, **SAVING)
    pair = workers.start_two(config, tmp_path, SLIPWAY_VIRTUAL_DEVICES="2")
    pair[0].wait_for_checkpoint(150)
    devices = [device for one in pair for device in psutil.Process(one.process.pid).children()]
    assert len(devices) == 4
    pair[1].process.kill()
    assert pair[0].wait().status == PEER_LOST
    _, alive = psutil.wait_procs(devices, timeout=180)
    assert not alive


@pytest.mark.engine("pytorch")
def test_an_error_on_one_device_of_a_replica_is_shown_once(bench: Bench, tmp_path: Path, workers: Any) -> None:
    config = bench.job(builder="torch_networks:none_on_device_1")
    end = workers.start(config, tmp_path, SLIPWAY_VIRTUAL_DEVICES="2", PYTHONPATH=str(HERE / "networks")).wait()
    assert end.status == 1
    assert end.errors.count(ERROR_PREFIX) == 1
    assert "RuntimeError: not on device 1" in end.user_error["traceback"]


HOSTS = {"replicas": 2, "builder": "sample_networks:dropout", **SAVING}


@pytest.mark.engine("jax")
def test_the_hosts_of_a_slice_train_as_replicas_would_and_one_writes(
    bench: Bench, tmp_path: Path, workers: Any
) -> None:
    config = bench.job(steps=300, steps_per_epoch=75, **HOSTS)
    replicas = [worker.wait() for worker in workers.start_two(config, tmp_path / "replicas")]
    hosts = [host.wait() for host in workers.start_hosts(2, config, tmp_path / "hosts")]
    assert [end.status for end in hosts] == [0, 0], hosts
    assert [end.checksum for end in hosts] == [end.checksum for end in replicas]
    for number, end in enumerate(hosts):
        assert f"host {number}{' (the chief)' if number == 0 else ''} of 2 hosts, from the TPU slice" in end.output
        assert ("model written to" in end.output) == (number == 0)
        assert "keeping 300 training examples in 2 shards" in end.output.replace("301", "300").replace("299", "300")
    lines = [json.loads(line) for line in (tmp_path / "hosts" / "model" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [75, 150, 225, 300]


@pytest.mark.engine("jax")
def test_the_hosts_of_a_slice_train_as_one_process_of_all_their_devices_would(
    bench: Bench,  # imports TensorFlow for the engine
    tmp_path: Path,
    workers: Any,
) -> None:
    """With the whole split in a batch, so that its examples do not depend on who reads which shard."""
    data = tmp_path / "data"
    DataSets().write(data, train=[24] * 3, validation=[6])
    losses = {}
    for name, hosts in (("one", 1), ("hosts", 3)):
        settings = {"engine": ENGINE, "batch": 72, "steps": 10, "steps_per_epoch": 1, "replicas": hosts}
        place = tmp_path / name
        if hosts == 1:
            started = [workers.start(job(data, **settings), place, SLIPWAY_VIRTUAL_DEVICES="3")]
        else:
            started = workers.start_hosts(hosts, job(data, **settings), place)
        ends = [worker.wait() for worker in started]
        assert [end.status for end in ends] == [0] * hosts, ends
        assert len({end.checksum for end in ends}) == 1
        assert ("3 x CPU on this host" if hosts == 1 else "1 x CPU on this host, 3 in 3 processes") in ends[0].output
        lines = [json.loads(line) for line in (place / "model" / "metrics.jsonl").read_text().splitlines()]
        losses[name] = [line["loss"] for line in lines]
    assert len(losses["one"]) == 20  # 10 of training, 10 of validation
    np.testing.assert_allclose(losses["hosts"], losses["one"], rtol=1e-4)


@pytest.mark.engine("jax")
def test_the_hosts_of_a_slice_stop_together_and_resume(bench: Bench, tmp_path: Path, workers: Any) -> None:
    config = bench.job(steps=450, steps_per_epoch=75, **HOSTS)
    asked = workers.start_hosts(2, config, tmp_path)
    asked[0].wait_for_checkpoint(150)
    asked[1].process.send_signal(signal.SIGTERM)
    # As on Vertex AI, which starts the hosts with CLUSTER_SPEC.
    assert [host.wait().status for host in asked] == [TRY_AGAIN, TRY_AGAIN]
    ends = [host.wait() for host in workers.start_hosts(2, config, tmp_path)]
    assert [end.status for end in ends] == [0, 0], ends
    assert "resuming from the checkpoint at step" in ends[0].output


@pytest.mark.engine("jax")
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.long)])  # host 0 coordinates
def test_a_lost_host_of_a_slice_ends_the_others_and_all_resume(
    bench: Bench, tmp_path: Path, workers: Any, victim: int
) -> None:
    config = bench.job(steps=300, steps_per_epoch=75, **HOSTS)
    whole = workers.start_hosts(2, config, tmp_path / "whole")
    hosts = workers.start_hosts(2, config, tmp_path / "killed")
    hosts[0].wait_for_checkpoint(150)
    hosts[victim].process.kill()
    lost = hosts[1 - victim].wait()
    # Whichever notices first: the engine, or JAX's runtime, which aborts.
    assert lost.status in (TRY_AGAIN, -signal.SIGABRT), lost
    ends = [host.wait() for host in workers.start_hosts(2, config, tmp_path / "killed")]
    assert [end.status for end in ends] == [0, 0], ends
    assert "resuming from the checkpoint at step 150" in ends[0].output
    assert {end.checksum for end in ends} == {host.wait().checksum for host in whole}


@pytest.mark.engine("jax")
def test_a_slice_with_a_missing_host_is_tried_again_after_the_time_limit(
    bench: Bench, tmp_path: Path, workers: Any
) -> None:
    config = bench.job(steps=10, steps_per_epoch=75, **HOSTS)
    (first, second) = workers.start_hosts(2, config, tmp_path, SLIPWAY_PEER_SECONDS="5")
    second.process.kill()
    end = first.wait()
    assert end.status == -signal.SIGABRT, end
    assert "waiting for the 2 hosts of the TPU slice, for at most 5 s" in end.output


@pytest.mark.engine("jax")
def test_a_slice_whose_hosts_jax_does_not_find_is_a_users_error(bench: Bench, tmp_path: Path, workers: Any) -> None:
    end = workers.start(bench.job(steps=10, steps_per_epoch=75, **HOSTS), tmp_path, SLIPWAY_HOSTS="2").wait()
    assert end.status == 1, end
    assert "JAX did not find the 2 hosts of the TPU slice" in end.user_error["message"]


@pytest.mark.engine("pytorch")
def test_an_engine_without_slices_does_not_train_on_one(bench: Bench, tmp_path: Path, workers: Any) -> None:
    """Otherwise each host would take itself for the chief."""
    end = workers.start_hosts(2, bench.job(steps=10, steps_per_epoch=75), tmp_path)[0].wait()
    assert end.status == 1
    assert "pytorch does not train on a TPU slice of 2 machines" in end.user_error["message"]
    assert not (tmp_path / "checkpoints").exists()
