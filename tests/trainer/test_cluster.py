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
