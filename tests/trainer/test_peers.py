"""Meeting the other replicas, and noticing when one is gone."""

from __future__ import annotations

import concurrent.futures
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from trainer import cluster as clusters
from trainer import peers
from trainer.cluster import Cluster
from trainer.errors import UserError

ROOT = Path(__file__).parents[2]


def free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def environment(addresses: list[str], rank: int) -> dict[str, str]:
    task = {"type": "worker" if rank else "chief", "index": max(0, rank - 1)}
    return {"TF_CONFIG": json.dumps({"cluster": {"chief": addresses[:1], "worker": addresses[1:]}, "task": task})}


def cluster(addresses: list[str], rank: int) -> Cluster:
    return clusters.read(environment(addresses, rank))


def test_nobody_goes_on_before_all_are_there_whoever_comes_first() -> None:
    addresses = free_addresses(3)
    order: list[str] = []
    watches: list[peers.Watch] = []

    def join(rank: int, after: float) -> None:
        time.sleep(after)
        order.append(f"came {rank}")
        watches.append(peers.meet(cluster(addresses, rank), 20))
        order.append(f"went {rank}")
        if rank == 0:  # what follows in a chief: its server takes over the port
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                host, port = addresses[rank].split(":")
                server.bind((host, int(port)))
                server.listen()
                order.append("serves")

    threads = [threading.Thread(target=join, args=(rank, after)) for rank, after in ((1, 0), (0, 0.2), (2, 0.5))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order[:3] == ["came 1", "came 0", "came 2"]
    assert {*order[3:]} == {"went 0", "went 1", "went 2", "serves"}
    for watch in watches:
        watch.close()
    assert [watch.lost for watch in watches] == [None] * 3, "who says farewell is not lost"


def test_a_lone_replica_and_one_of_torchruns_meet_nobody() -> None:
    peers.meet(clusters.read({}), 0).close()
    rank_1 = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    peers.meet(clusters.read(rank_1), 0).close()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_peer_is_named_in_the_log_and_after_the_deadline(
    rank: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chief knows who is missing; a worker is told by the chief, or else misses the chief."""
    monkeypatch.setattr(peers, "FIRST_REPORT_SECONDS", 0.1)
    caplog.set_level("INFO")
    addresses = free_addresses(3)
    missing = addresses[2] if rank == 0 else addresses[0]
    with pytest.raises(UserError, match=f"at {missing}") as caught:
        peers.meet(cluster(addresses, rank), 0.4)
    assert caught.value.setting == "SLIPWAY_PEER_SECONDS"
    assert "waiting for" in caplog.text
    assert missing in caplog.text


def test_a_worker_names_the_one_that_the_chief_misses() -> None:
    addresses = free_addresses(3)
    errors: list[UserError] = []

    def wait(rank: int) -> None:
        with pytest.raises(UserError) as caught:
            peers.meet(cluster(addresses, rank), 3.0 if rank else 6.0)
        errors.append(caught.value)

    threads = [threading.Thread(target=wait, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert f"missing: worker 1 at {addresses[2]}." in errors[0].message  # the worker's, whose time is over first
    assert addresses[1] in errors[1].message, "the worker that left is missing again"


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        own = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(UserError, match="can not be listened on"):
            peers.meet(cluster([own, "127.0.0.1:1"], 0), 1)


REPLICA = """
import logging, os, signal, sys, time
from trainer import cluster, peers
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
peers.LOST_SECONDS, peers.SILENCE_SECONDS = 0.3, 3.0
watch = peers.meet(cluster.read(os.environ), 60)
print("met", flush=True)
time.sleep(60)  # as in an engine that waits for the others for ever
"""


def start_replicas(count: int) -> list[subprocess.Popen[str]]:
    addresses = free_addresses(count)
    replicas = []
    for rank in range(count):
        told = {**os.environ, **environment(addresses, rank)}
        command = [sys.executable, "-c", REPLICA]
        replicas.append(subprocess.Popen(command, cwd=ROOT, env=told, stdout=subprocess.PIPE, text=True))
    for replica in replicas:
        assert replica.stdout is not None
        assert replica.stdout.readline() == "met\n"
    return replicas


@pytest.mark.parametrize(("signal_name", "victim"), [("SIGKILL", 0), ("SIGKILL", 2), ("SIGSTOP", 1)])
def test_when_one_dies_or_freezes_all_others_end_with_the_code_for_another_try(signal_name: str, victim: int) -> None:
    import signal

    replicas = start_replicas(3)
    try:
        replicas[victim].send_signal(getattr(signal, signal_name))
        others: list[Any] = [replica for rank, replica in enumerate(replicas) if rank != victim]
        said = [replica.communicate(timeout=30)[0] for replica in others]
        assert [replica.returncode for replica in others] == [138, 138]
        name = f"worker {victim - 1} at" if victim else "chief 0 at"
        assert all(name in text and "is gone" in text for text in said), said
    finally:
        for replica in replicas:
            replica.kill()
            replica.communicate()


def test_the_chief_sees_when_the_others_have_left() -> None:
    addresses = free_addresses(2)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        chief, worker = pool.map(lambda rank: peers.meet(cluster(addresses, rank), 10.0), range(2))
    started = time.monotonic()
    chief.wait_for_farewells(0.3)
    assert time.monotonic() - started >= 0.3
    worker.close()
    chief.wait_for_farewells(60.0)
    assert time.monotonic() - started < 30
    assert chief.lost is None
    chief.close()
