"""Sums through shared memory: their bits, and what happens where a process ends or cannot share memory."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from slipway.trainer.distributed import shared_sums
from slipway.trainer.distributed.accelerators import Accelerators
from slipway.trainer.distributed.cluster import Cluster, Task
from slipway.trainer.distributed.shared_sums import ProcessEnded, SharedSums
from tests.ports import free_ports

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared sums are implemented for Linux")

Agree = Callable[[int, Sequence[float]], list[float]]


def clusters_of(count: int, host: str = "127.0.0.1") -> list[Cluster]:
    tasks = tuple(Task("worker", rank, f"{host}:{port}") for rank, port in enumerate(free_ports(count)))
    return [
        Cluster(tasks, rank, "TF_CONFIG", Accelerators("cpu", 0, "device files"), rank, count) for rank in range(count)
    ]


def agreement(barrier: Any, values: Any) -> Agree:
    """Return a function (rank, numbers) that returns the maximum of each process's only number."""

    def agree(rank: int, numbers: Sequence[float]) -> list[float]:
        values[rank] = numbers[0]
        barrier.wait(60)
        highest = max(values)
        barrier.wait(60)
        return [highest]

    return agree


def in_threads(clusters: Sequence[Cluster], work: Callable[[SharedSums | None, int], Any]) -> list[Any]:
    """Return the results of `work` for each member of the cluster, all in threads of this process."""
    agree = agreement(threading.Barrier(len(clusters)), [0.0] * len(clusters))

    def run(cluster: Cluster) -> Any:
        return work(shared_sums.join(cluster, lambda numbers: agree(cluster.rank, numbers)), cluster.rank)

    with ThreadPoolExecutor(len(clusters)) as threads:
        return list(threads.map(run, clusters))


def gradients(rank: int, step: int = 0) -> list[np.ndarray[Any, Any]]:
    """Return arrays of several types and shapes, also transposed, empty and scalar."""
    random = np.random.default_rng([rank, step])
    shapes = [(7, 33), (), (128,), (0,), (3, 3, 4, 16)]
    kinds = [np.float32, np.float16, np.float32, np.float32, ml_dtypes.bfloat16]
    arrays = [np.asarray(random.normal(size=shape)).astype(kind) for shape, kind in zip(shapes, kinds, strict=True)]
    return [*arrays, random.normal(size=(20, 30)).astype(np.float32).T]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("piece", [128, 1 << 25])  # one sum in many exchanges, and in one for each type
def test_all_processes_have_the_sum_in_the_order_of_ranks(
    count: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_sums, "PIECE_BYTES", piece)
    steps = 5  # both buffers, several times

    def work(sums: SharedSums | None, rank: int) -> list[list[np.ndarray[Any, Any]]]:
        assert sums
        return [sums.add(gradients(rank, step)) for step in range(steps)]

    by_rank = in_threads(clusters_of(count), work)
    for step in range(steps):
        expected = gradients(0, step)
        for rank in range(1, count):
            expected = [total + more for total, more in zip(expected, gradients(rank, step), strict=True)]
        for results in by_rank:
            for total, result in zip(expected, results[step], strict=True):
                assert (result.dtype, result.shape) == (total.dtype, total.shape)
                assert result.tobytes() == total.tobytes()


def test_results_are_not_overwritten_and_aligned() -> None:
    def work(sums: SharedSums | None, rank: int) -> list[np.ndarray[Any, Any]]:
        assert sums
        return [sums.add([np.full(40, step + rank, np.float32)])[0] for step in range(6)]

    for results in in_threads(clusters_of(2), work):
        assert [result[39] for result in results] == [1, 3, 5, 7, 9, 11]
        assert all(result.ctypes.data % shared_sums.ALIGNMENT == 0 for result in results)


def _add_until_killed(cluster: Cluster, barrier: Any, values: Any, started: Any) -> None:
    agree = agreement(barrier, values)
    sums = shared_sums.join(cluster, lambda numbers: agree(cluster.rank, numbers))
    assert sums
    sums.add([np.ones(3)])
    started.set()
    signal.pause()  # the others wait


def test_the_end_of_a_process_ends_the_wait_of_another_at_once() -> None:
    spawned = multiprocessing.get_context("spawn")
    barrier, values, started = spawned.Barrier(2), spawned.Array("d", 2), spawned.Event()
    mine, its = clusters_of(2)
    process = spawned.Process(target=_add_until_killed, args=(its, barrier, values, started), daemon=True)
    process.start()
    agree = agreement(barrier, values)
    sums = shared_sums.join(mine, lambda numbers: agree(0, numbers))
    assert sums
    assert sums.add([np.ones(3)])[0].tolist() == [2, 2, 2]
    assert started.wait(60)
    killed = []

    def kill() -> None:
        killed.append(time.monotonic())
        process.kill()

    threading.Timer(0.3, kill).start()
    with pytest.raises(ProcessEnded, match="the process of rank 1 has ended"):
        sums.add([np.ones(3)])
    assert time.monotonic() - killed[0] < 5  # milliseconds on an idle machine
    assert sums.lost == "the process of rank 1 has ended"
    process.join()
    with pytest.raises(ProcessEnded):
        sums.add([np.ones(3)])


@pytest.mark.parametrize("failing", [0, 1])
def test_all_use_the_network_if_one_cannot_share_memory(
    failing: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no memory for files")

    monkeypatch.setattr(shared_sums.os, "memfd_create" if failing == 0 else "getuid", fail)
    monkeypatch.setattr(shared_sums, "JOIN_SECONDS", 0.5)
    with caplog.at_level(logging.INFO):
        assert in_threads(clusters_of(3), lambda sums, _: sums) == [None] * 3
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert all(line.startswith("the replicas sum gradients through the network") for line in lines)
    assert any("no memory for files" in line for line in lines)


def test_a_name_in_use_and_the_variable_turn_it_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clusters = clusters_of(2)
    with socket.socket(socket.AF_UNIX) as stranger, caplog.at_level(logging.INFO):
        stranger.bind(shared_sums.socket_name(clusters[0]))
        assert in_threads(clusters, lambda sums, _: sums) == [None] * 2
    assert "Address already in use" in caplog.text
    monkeypatch.setenv(shared_sums.SHARED_SUMS_VARIABLE, "0")
    with caplog.at_level(logging.INFO):
        assert in_threads(clusters, lambda sums, _: sums) == [None] * 2
    assert "SLIPWAY_SHARED_SUMS=0" in caplog.text


def test_replicas_on_several_machines_or_in_a_rehearsal_and_a_single_one_are_not_asked() -> None:
    def refuse(_: Sequence[float]) -> list[float]:
        raise AssertionError

    rehearsal = replace(clusters_of(2)[0], accelerators=Accelerators("virtual", 1, "SLIPWAY_VIRTUAL_DEVICES"))
    for cluster in (*clusters_of(1), *clusters_of(2, host="10.0.0.1"), rehearsal):
        assert shared_sums.join(cluster, refuse) is None
    tasks = (Task("worker", 0, "127.0.0.1:1"), Task("worker", 1, "elsewhere:1"))
    assert shared_sums.join(Cluster(tasks, 0, "TF_CONFIG", Accelerators("cpu", 0, "device files")), refuse) is None
