"""Who this process is among its peers, and waiting for them."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pytest

from trainer import cluster as clusters
from trainer.cluster import Cluster, Task
from trainer.errors import UserError


def tf_config(cluster: dict[str, list[str]], kind: str, index: int = 0) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_without_variables_it_is_alone_and_the_chief() -> None:
    cluster = clusters.read({})
    assert (cluster.replicas, cluster.is_chief, cluster.source) == (1, True, "nothing")


@pytest.mark.parametrize(
    ("cluster", "kind", "index", "rank", "is_chief"),
    [
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "chief", 0, 0, True),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "worker", 0, 1, False),
        ({"worker": ["b:1", "c:1"], "chief": ["a:1"]}, "worker", 1, 2, False),
        ({"master": ["a:1"], "worker": ["b:1"]}, "master", 0, 0, True),
        ({"master": ["a:1"], "worker": ["b:1"]}, "worker", 0, 1, False),
        ({"worker": ["b:1", "c:1"]}, "worker", 0, 0, True),
        ({"worker": ["b:1", "c:1"]}, "worker", 1, 1, False),
    ],
)
def test_the_chief_is_by_the_rule(
    cluster: dict[str, list[str]], kind: str, index: int, rank: int, is_chief: bool
) -> None:
    found = clusters.read(tf_config(cluster, kind, index))
    assert (found.rank, found.is_chief) == (rank, is_chief)
    assert found.replicas == sum(map(len, cluster.values()))
    assert found.task.address == cluster[kind][index]


def test_cluster_spec_tells_a_lone_replica_and_several() -> None:
    alone = {"cluster": {"workerpool0": ["a:1"]}, "environment": "cloud", "task": {"type": "workerpool0", "index": 0}}
    cluster = clusters.read({"CLUSTER_SPEC": json.dumps(alone)})
    assert (cluster.replicas, cluster.is_chief, cluster.source) == (1, True, "CLUSTER_SPEC")
    several = {
        "cluster": {"workerpool0": ["a:1"], "workerpool1": ["b:1", "c:1"]},
        "task": {"type": "workerpool1", "index": 1},
    }
    cluster = clusters.read({"CLUSTER_SPEC": json.dumps(several)})
    assert (cluster.task, cluster.rank, cluster.replicas, cluster.is_chief) == (Task("worker", 1, "c:1"), 2, 3, False)


def test_replicas_that_share_a_machine_are_counted() -> None:
    cluster = {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222", "10.0.0.2:2223"]}
    assert clusters.read(tf_config(cluster, "chief")).on_this_machine == 1
    assert clusters.read(tf_config(cluster, "worker", 1)).on_this_machine == 2
    assert clusters.read({}).on_this_machine == 1


def test_tf_config_goes_before_cluster_spec() -> None:
    environment = tf_config({"chief": ["a:1"], "worker": ["b:1"]}, "worker")
    environment["CLUSTER_SPEC"] = json.dumps({"cluster": {"workerpool0": ["x:1"]}, "task": {"type": "workerpool0"}})
    assert clusters.read(environment).source == "TF_CONFIG"


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        '{"cluster": {"chief": ["a:1"]}}',
        '{"cluster": {"chief": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 1}}',
        '{"cluster": {"chief": ["a:1"], "ps": ["b:1"]}, "task": {"type": "chief", "index": 0}}',
        '{"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}',
    ],
)
def test_what_vertex_would_not_set_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        clusters.read({"TF_CONFIG": text})
    assert caught.value.setting == "TF_CONFIG"


def free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def test_peers_find_each_other_whoever_comes_first() -> None:
    tasks = tuple(Task("worker", index, address) for index, address in enumerate(free_addresses(3)))
    met: dict[int, float] = {}
    servers: list[Any] = []

    def join(rank: int) -> None:
        time.sleep(0.3 * rank)
        clusters.wait_for_peers(Cluster(tasks, rank, "TF_CONFIG"), 20)
        # What follows in a worker: its server takes over the port.
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host, port = tasks[rank].address.split(":")
        server.bind((host, int(port)))
        server.listen()
        servers.append(server)
        met[rank] = time.monotonic()

    started = time.monotonic()
    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for server in servers:
        server.close()
    assert sorted(met) == [0, 1, 2]
    assert min(met.values()) - started >= 0.6


def test_a_missing_peer_is_named_in_the_log_and_after_the_deadline(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "_FIRST_REPORT_SECONDS", 0.1)
    caplog.set_level("INFO")
    addresses = free_addresses(2)
    cluster = clusters.read(tf_config({"chief": addresses[:1], "worker": addresses[1:]}, "chief"))
    started = time.monotonic()
    with pytest.raises(UserError, match=f"worker 0 at {addresses[1]}") as caught:
        clusters.wait_for_peers(cluster, 0.4)
    assert time.monotonic() - started < 5
    assert caught.value.setting == "SLIPWAY_PEER_SECONDS"
    assert f"waiting for worker 0 at {addresses[1]}" in caplog.text


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        own = f"127.0.0.1:{holder.getsockname()[1]}"
        cluster = clusters.read(tf_config({"chief": [own], "worker": ["127.0.0.1:1"]}, "chief"))
        with pytest.raises(UserError, match="can not be listened on"):
            clusters.wait_for_peers(cluster, 1)
