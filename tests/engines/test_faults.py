"""Faults of the storage: damage, failing reads and stalls."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.engines.base import PeerLost
from tests.engines.conftest import ENGINE, Bench
from tests.trainer import faults

CHECKPOINTS = {"checkpoint": {"every_steps": 5, "every_seconds": None, "keep": 100}}


@pytest.mark.parametrize("fault", [faults.check_flipped_label, faults.check_failing_opens])
def test_a_fault_of_the_storage_does_not_change_the_weights(bench: Bench, tmp_path: Path, fault: object) -> None:
    assert callable(fault)
    fault(bench.job(steps=20, **CHECKPOINTS), tmp_path)


def test_a_stalled_stream_is_waited_for(bench: Bench) -> None:
    config = bench.job(**({"xla": False} if ENGINE == "tensorflow" else {}))  # a graph, as with several replicas
    faults.check_stalled_stream(bench.engine(config), bench.training(config, budget=0))


TWO = clusters.read({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})
PAIR = "third_party/gloo/gloo/transport/tcp/pair.cc:547]"
# What the libraries say of a process that is lost, and of mistakes that would recur.
LOST = {
    "pytorch": [
        f"[/pytorch/{PAIR} Connection closed by peer [127.0.0.1]:38032",
        f"[/pytorch/{PAIR} Read error [192.168.70.92]:25266: Connection reset by peer",
        "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 600000ms for recv operation",
        "NCCL error in: ProcessGroupNCCL.cpp:1275, remote process exited or there was a network error, NCCL version "
        "2.27\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "NCCL error in: ProcessGroupNCCL.cpp:1275, internal error, NCCL version 2.14\nncclInternalError: Internal "
        "check failed.\nLast error:\nNet : Connection closed by remote peer host<50260>",
    ],
    "jax": [
        f"FAILED_PRECONDITION: Gloo all-reduce failed: [external/{PAIR} Connection closed by peer [127.0.0.1]:12345",
        "UNKNOWN: Gloo AllGather failed: Application timeout caused pair closure",
        "UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:5000: Connection refused",
        "ABORTED: The following tasks are unhealthy (stopped sending heartbeats):\n/job:jax_worker/task:1",
        "DEADLINE_EXCEEDED: Barrier timed out. Id: train::1.",
        "INTERNAL: Coordination service has stopped. RecordHeartbeat() from task: /job:jax_worker/task:1 failed.",
        "INTERNAL: NCCL operation ncclAllReduce(...) failed: remote process exited or there was a network error.",
    ],
}
OWN = {
    "pytorch": [
        "Expected all tensors to be on the same device",
        "restore: the store has no such key",
        "a peer's shape",
    ],
    "jax": [
        "INVALID_ARGUMENT: the shapes of peers differ",
        "INTERNAL: a socket of the processor",
        "UNIMPLEMENTED: nccl",
    ],
}


def named(message: str, error: type[Exception] | None = None) -> None:
    if ENGINE == "jax":
        import jax

        from slipway.trainer.engines.jax import devices

        error = jax.errors.JaxRuntimeError
    else:
        from slipway.trainer.engines.pytorch import devices  # type: ignore[no-redef]
    with devices.errors_named(TWO):
        raise (error or RuntimeError)(message)


@pytest.mark.parametrize("message", LOST.get(ENGINE, []))
def test_an_error_of_a_lost_replica_is_known_by_what_the_library_says(message: str) -> None:
    with pytest.raises(PeerLost):
        named(message)


@pytest.mark.parametrize("message", OWN.get(ENGINE, []))
def test_an_error_of_this_replica_that_would_recur_is_no_lost_one(message: str) -> None:
    with pytest.raises(RuntimeError, match=message.split()[-1]):
        named(message)


@pytest.mark.engine("pytorch")
@pytest.mark.parametrize("name", ["DistNetworkError", "DistStoreError"])
def test_an_error_of_the_store_is_a_lost_replica(name: str) -> None:
    import torch.distributed as distributed

    with pytest.raises(PeerLost):
        named("wait timeout after 300000ms, keys: /through", getattr(distributed, name))
