"""This process's rank in the cluster."""

from __future__ import annotations

import json

import pytest

from slipway.core.errors import UserError
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.distributed.cluster import Task


def tf_config(cluster: dict[str, list[str]], kind: str, index: int = 0) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_without_variables_it_is_alone_and_the_chief() -> None:
    cluster = clusters.read({})
    assert (cluster.world_size, cluster.is_chief, cluster.source) == (1, True, "nothing")


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
    assert found.world_size == sum(map(len, cluster.values()))
    assert found.task.address == cluster[kind][index]


def test_cluster_spec_tells_a_lone_replica_and_several() -> None:
    alone = {"cluster": {"workerpool0": ["a:1"]}, "environment": "cloud", "task": {"type": "workerpool0", "index": 0}}
    cluster = clusters.read({"CLUSTER_SPEC": json.dumps(alone)})
    assert (cluster.world_size, cluster.is_chief, cluster.source) == (1, True, "CLUSTER_SPEC")
    several = {
        "cluster": {"workerpool0": ["a:1"], "workerpool1": ["b:1", "c:1"]},
        "task": {"type": "workerpool1", "index": 1},
    }
    cluster = clusters.read({"CLUSTER_SPEC": json.dumps(several)})
    assert (cluster.task, cluster.rank, cluster.world_size, cluster.is_chief) == (Task("worker", 1, "c:1"), 2, 3, False)


def test_replicas_that_share_a_machine_are_counted() -> None:
    cluster = {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222", "10.0.0.2:2223"]}
    assert clusters.read(tf_config(cluster, "chief")).on_this_machine == 1
    second = clusters.read(tf_config(cluster, "worker", 1))
    assert (second.local_rank, second.on_this_machine) == (1, 2)
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


TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "ten",
    "MASTER_PORT": "29500",
}


def test_torchruns_variables_tell_a_place_and_the_first_ones_address() -> None:
    cluster = clusters.read(TORCHRUN)
    assert (cluster.rank, cluster.world_size, cluster.is_chief, cluster.source) == (5, 8, False, "torchrun")
    assert (cluster.local_rank, cluster.on_this_machine) == (1, 4)
    assert cluster.tasks[0].host_and_port == ("ten", 29500)
    assert cluster.task.address == ""
    assert clusters.read({**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"}).is_chief


def test_vertexs_variables_go_before_torchruns() -> None:
    assert clusters.read({**TORCHRUN, **tf_config({"chief": ["a:1"]}, "chief")}).source == "TF_CONFIG"


@pytest.mark.parametrize(
    "change", [{"RANK": "8"}, {"RANK": "one"}, {"WORLD_SIZE": ""}, {"MASTER_PORT": "x"}, {"LOCAL_RANK": "4"}]
)
def test_what_torchrun_would_not_set_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(UserError, match="torchrun") as caught:
        clusters.read({**TORCHRUN, **change})
    assert caught.value.setting == "RANK"


def test_torchruns_variables_that_are_missing_are_named() -> None:
    with pytest.raises(UserError, match="MASTER_ADDR"):
        clusters.read({name: value for name, value in TORCHRUN.items() if name != "MASTER_ADDR"})


def test_one_line_tells_what_was_found() -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    found = clusters.read({**tf_config(cluster, "chief"), "TPU_NODE_NAME": "node-7"}).describe()
    assert found.startswith("chief 0 (the chief) of 2 replicas, from TF_CONFIG: chief 0 at a:1, worker 0 at b:1; ")
    assert found.count("TPU") == 2  # the accelerator, and the variable that it was detected from
    assert "\n" not in found
