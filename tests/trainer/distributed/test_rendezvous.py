"""Rendezvous of the replicas, and detection of lost ones."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway.core.errors import UserError
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.distributed import rendezvous
from slipway.trainer.distributed.cluster import Cluster
from tests.ports import free_ports

ROOT = Path(__file__).parents[3]


def free_addresses(count: int) -> list[str]:
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def environment(addresses: list[str], rank: int) -> dict[str, str]:
    task = {"type": "worker" if rank else "chief", "index": max(0, rank - 1)}
    return {"TF_CONFIG": json.dumps({"cluster": {"chief": addresses[:1], "worker": addresses[1:]}, "task": task})}


def cluster(addresses: list[str], rank: int) -> Cluster:
    return clusters.read(environment(addresses, rank))


def test_nobody_goes_on_before_all_are_there_whoever_comes_first() -> None:
    addresses = free_addresses(3)
    order: list[str] = []
    joined: list[rendezvous.Watch] = []

    def join(rank: int, place: int) -> None:
        while len(order) < place:
            time.sleep(0.01)
        time.sleep(0.1 * place)  # the one before has begun to wait
        order.append(f"came {rank}")
        joined.append(rendezvous.join(cluster(addresses, rank), 60))
        order.append(f"went {rank}")
        if rank == 0:  # as in a real chief: the engine's server takes over the port
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                host, port = addresses[rank].split(":")
                server.bind((host, int(port)))
                server.listen()
                order.append("serves")

    threads = [threading.Thread(target=join, args=(rank, place)) for place, rank in enumerate((1, 0, 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order[:3] == ["came 1", "came 0", "came 2"]
    assert {*order[3:]} == {"went 0", "went 1", "went 2", "serves"}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(rendezvous.Watch.close, joined))
    assert [watch.lost for watch in joined] == [None] * 3, "a closed connection after a shutdown message is not a loss"


def test_a_lone_replica_and_one_of_torchruns_wait_for_nobody() -> None:
    rendezvous.join(clusters.read({}), 0).close()
    rank_1 = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    rendezvous.join(clusters.read(rank_1), 0).close()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_peer_is_named_in_the_log_and_after_the_deadline(
    rank: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chief knows which replicas are missing; a worker learns it from the chief, or else misses the chief."""
    monkeypatch.setattr(rendezvous, "FIRST_REPORT_SECONDS", 0.1)
    caplog.set_level("INFO")
    addresses = free_addresses(3)
    missing = addresses[2] if rank == 0 else addresses[0]
    with pytest.raises(rendezvous.ReplicasMissing, match=f"at {missing}") as caught:
        rendezvous.join(cluster(addresses, rank), 0.4)
    assert caught.value.setting == "SLIPWAY_PEER_SECONDS"
    assert "waiting for" in caplog.text
    assert missing in caplog.text


def test_a_worker_names_the_one_that_the_chief_misses() -> None:
    addresses = free_addresses(3)
    errors: list[UserError] = []

    def wait(rank: int) -> None:
        with pytest.raises(UserError) as caught:
            rendezvous.join(cluster(addresses, rank), 1.5 if rank else 3.0)
        errors.append(caught.value)

    threads = [threading.Thread(target=wait, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert f" s: worker 1 at {addresses[2]}." in errors[0].message  # the worker's, whose deadline is first
    assert addresses[1] in errors[1].message, "the worker that left is missing again"


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        own = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(UserError, match="Cannot listen on"):
            rendezvous.join(cluster([own, "127.0.0.1:1"], 0), 1)


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, 300),
        ({"CLUSTER_SPEC": "{}"}, 1800),  # a machine may come minutes after another
        ({"CLUSTER_SPEC": "{}", "SLIPWAY_PEER_SECONDS": "20"}, 20),
    ],
)
def test_vertex_ai_has_more_time_to_start_all_replicas(environment: dict[str, str], seconds: float) -> None:
    assert rendezvous.seconds_to_wait(environment) == seconds


REPLICA = """
import logging, os, signal, sys, time
from slipway.trainer.distributed import cluster, rendezvous as peers
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
peers.LOST_SECONDS, peers.SILENCE_SECONDS = 0.3, 3.0
watch = peers.join(cluster.read(os.environ), 60)
print("met", flush=True)
time.sleep(1000)  # like an engine that blocks in a collective
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
        said = [replica.communicate(timeout=180)[0] for replica in others]
        assert [replica.returncode for replica in others] == [138, 138]
        name = f"worker {victim - 1} at" if victim else "chief 0 at"
        assert all(f"lost {name}" in text for text in said), said
    finally:
        for replica in replicas:
            replica.kill()
            replica.communicate()


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def watches(workers: int = 1) -> tuple[rendezvous.Watch, list[rendezvous.Watch]]:
    """The watches of a chief and of its workers."""
    connections = {}
    others = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        for number in range(workers):
            others.append(
                rendezvous.Watch({"chief": rendezvous.Connection(socket.create_connection(server.getsockname()))})
            )
            connections[f"worker {number}"] = rendezvous.Connection(server.accept()[0])
    return rendezvous.Watch(connections, leaves_last=True), others


def lost_though_it_left(after: float) -> str | None:
    """The replica that a chief considers lost when its worker leaves after the given number of seconds."""
    chief, (worker,) = watches()
    leaving = threading.Timer(after, worker.close)
    leaving.start()
    chief.wait_for_shutdown()
    lost = chief.lost
    chief.close()
    leaving.join()
    return lost


def test_no_shutdown_message_is_lost_on_busy_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """SLIPWAY_FAREWELLS=2000 tests that many pairs of a chief and a worker with crossing heartbeats."""
    monkeypatch.setattr(rendezvous, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(rendezvous, "LOST_SECONDS", 600.0)  # a watch that has lost a replica ends the process
    pairs = int(os.environ.get("SLIPWAY_FAREWELLS") or 200)
    seed = int(os.environ.get("SLIPWAY_SEED") or random.randrange(2**31))
    print(f"seed {seed}")
    chance = random.Random(seed)
    delays = [chance.uniform(0, 0.03) for _ in range(pairs)]
    started = time.monotonic()
    with busy_cores(), concurrent.futures.ThreadPoolExecutor(16) as pool:
        lost = [each for each in pool.map(lost_though_it_left, delays) if each]
    print(f"{len(lost)} of {pairs} shutdown messages lost in {time.monotonic() - started:.1f} s")
    assert lost == []


@pytest.mark.parametrize("noticed", [False, True])
def test_once_all_are_done_the_loss_of_one_is_no_error(noticed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the loss was detected just before this replica learned that all are done."""
    exits: list[int] = []
    monkeypatch.setattr(rendezvous, "leave", exits.append)
    monkeypatch.setattr(rendezvous, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(rendezvous, "LOST_SECONDS", 0.5)
    chief, (worker,) = watches()
    if not noticed:
        chief.finish()
    worker.finish()
    worker._connections["chief"].socket.shutdown(socket.SHUT_RDWR)  # as the kernel does for a killed process
    chief.wait_for_shutdown()
    chief.finish()
    time.sleep(0.8)
    chief.close()
    assert exits == []
    assert chief.lost == ("worker 0" if noticed else None)


def test_a_worker_stays_until_all_others_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """An early exit could abort another replica in the engine's last collective operation."""
    monkeypatch.setattr(rendezvous, "HEARTBEAT_SECONDS", 0.02)
    chief, (first, second) = watches(2)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        leaving = [pool.submit(watch.close) for watch in (chief, first)]
        assert not concurrent.futures.wait(leaving, timeout=0.3).done
        leaving.append(pool.submit(second.close))
        assert not concurrent.futures.wait(leaving, timeout=180).not_done
    assert [watch.lost for watch in (chief, first, second)] == [None] * 3


def test_a_replica_that_stays_behind_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(rendezvous, "SHUTDOWN_SECONDS", 0.1)
    chief, (worker,) = watches()
    started = time.monotonic()
    chief.close()
    assert 0.2 <= time.monotonic() - started < 5
    worker.close()
    assert worker.lost is None


def trio(monkeypatch: pytest.MonkeyPatch) -> tuple[list[rendezvous.Watch], dict[str, int]]:
    """The watches of a chief and two workers, which notice an overdue step soon, and the exits of their threads."""
    exits: dict[str, int] = {}
    monkeypatch.setattr(rendezvous, "leave", lambda status: exits.update({threading.current_thread().name: status}))
    for name, seconds in (
        ("HEARTBEAT", 0.05),
        ("OVERDUE", 0.3),
        ("PROBE", 0.2),
        ("LOST", 0.2),
        ("BLAME", 0.2),
        ("SHUTDOWN", 0.1),
    ):
        monkeypatch.setattr(rendezvous, f"{name}_SECONDS", seconds)
    addresses = free_addresses(3)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        joining = [pool.submit(rendezvous.join, cluster(addresses, rank), 60) for rank in range(3)]
    return [each.result() for each in joining], exits


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


@pytest.mark.parametrize("cut", [True, False])
def test_when_the_steps_of_all_replicas_are_overdue_the_lost_connection_is_named(
    cut: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if cut:  # between the two workers, whose connections to the chief stay
        monkeypatch.setattr(rendezvous, "_unreachable", lambda own: {1: {2}, 2: {1}}.get(own.rank, set()))
    watches, exits = trio(monkeypatch)
    with contextlib.ExitStack() as steps:
        for watch in watches:
            steps.enter_context(watch.step())
        wait_for(lambda: [*exits.values()] == [138] * 3)
    for watch in watches:
        watch.close()
    lost = {watch.lost for watch in watches}
    assert len(lost) == 1, lost
    expected = r"the connection of worker 0 at \S+ \(rank 1\) and worker 1 at \S+ \(rank 2\)"
    assert re.fullmatch(expected if cut else "a connection between the replicas", str(lost.pop()))
    assert "each replica waits for another in a step, for " in caplog.text


def test_a_replica_that_does_something_else_lets_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chief may export, save or call the user's function while the others are in a step."""
    watches, exits = trio(monkeypatch)
    with watches[1].step(), watches[2].step():
        time.sleep(1.0)
    assert [watch.lost for watch in watches] == [None] * 3
    assert exits == {}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(rendezvous.Watch.close, watches))


def test_a_replica_that_waits_for_its_data_lets_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage stall is no lost connection, and the step may take as long as any other once it is over."""
    watches, exits = trio(monkeypatch)
    monkeypatch.setattr(rendezvous, "_unreachable", lambda own: set())
    is_stalled = True
    with watches[0].step(), watches[1].step(), watches[2].step(lambda: is_stalled):
        time.sleep(1.0)
        assert [watch.lost for watch in watches] == [None] * 3
        assert exits == {}
        is_stalled = False
        wait_for(lambda: [*exits.values()] == [138] * 3)
    assert watches[2].step.longest < watches[1].step.longest - 0.8
    for watch in watches:
        watch.close()


def test_a_step_may_take_ten_times_as_long_as_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    watches, exits = trio(monkeypatch)
    for _ in range(2):
        with contextlib.ExitStack() as steps:
            for watch in watches:
                watch.step.longest = max(watch.step.longest, 0.2)
                steps.enter_context(watch.step())
            time.sleep(0.8)
    assert [watch.lost for watch in watches] == [None] * 3
    assert exits == {}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(rendezvous.Watch.close, watches))


def test_a_machine_is_probed_and_a_refusal_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "PROBE_SECONDS", 0.5)
    refusing = free_addresses(1)[0]
    with socket.socket() as silent, contextlib.ExitStack() as waiting:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for _ in range(2):  # fills the queue; the kernel drops the next one's packets
            waiting.enter_context(rendezvous._probe(*silent.getsockname()))
        host, port = silent.getsockname()
        with socket.create_server(("127.0.0.1", 0)) as server:
            listening = f"127.0.0.1:{server.getsockname()[1]}"
            addresses = ["127.0.0.1:1", refusing, listening, f"{host}:{port}"]
            assert rendezvous._unreachable(cluster(addresses, 0)) == {3}


def test_after_the_engines_error_the_others_learn_of_it_and_blame_nobody_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watches, exits = trio(monkeypatch)
    watches[1].give_up("Connection reset by peer")
    wait_for(lambda: [*exits.values()] == [138] * 3)
    for watch in watches:
        watch.close()
    assert len({watch._sentence for watch in watches}) == 1
    assert re.match(
        r"a connection of worker 0 at \S+ \(rank 1\): Connection reset by peer, since", watches[0]._sentence
    )


def test_when_all_are_frozen_at_once_nobody_is_lost() -> None:
    """As by the suspension of a laptop, here for longer than the silence after which a replica is lost."""
    import signal

    replicas = start_replicas(3)
    try:
        for number, seconds in ((signal.SIGSTOP, 6.0), (signal.SIGCONT, 2.0)):
            for replica in replicas:
                replica.send_signal(number)
            time.sleep(seconds)
        assert [replica.poll() for replica in replicas] == [None] * 3
    finally:
        for replica in replicas:
            replica.kill()
            replica.communicate()
