"""A custom job's worker pools and their replicas: names, commands and the cluster environment variables."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from slipway.trainer.distributed.cluster import POOL_TASK_TYPES, pool_name


class Container(TypedDict, total=False):
    """What the replicas of a pool run."""

    image_uri: str
    command: list[str]
    args: list[str]
    env: list[dict[str, str]]


class WorkerPool(TypedDict, total=False):
    """An element of a custom job's worker_pool_specs; `{}` is a skipped pool."""

    replica_count: int
    machine_spec: dict[str, object]
    disk_spec: dict[str, object]
    container_spec: Container


@dataclass(frozen=True)
class Replica:
    """One process of a job, identified by `pool` and `index`; it listens on loopback port `port`.

    `environment` are the variables of its container specification.
    """

    pool: int
    index: int
    command: tuple[str, ...]
    port: int
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name as in Vertex AI's logs: workerpool1-0."""
        return f"{pool_name(self.pool)}-{self.index}"

    @property
    def address(self) -> str:
        """Host and port for the other replicas."""
        return f"127.0.0.1:{self.port}"


def count_replicas(pools: Sequence[WorkerPool]) -> int:
    """Return the total number of replicas in the pools."""
    return sum(int(pool.get("replica_count", 0)) for pool in pools)


def replicas_of(pools: Sequence[WorkerPool], ports: list[int]) -> list[Replica]:
    """Return the replicas of the pools in order, each with one of `ports`."""
    free = iter(ports)
    replicas = []
    for number, pool in enumerate(pools):
        if not pool:
            continue
        container = pool["container_spec"]
        command = [*container.get("command", []), *container.get("args", [])]
        if command and command[0] in ("python", "python3"):
            command[0] = sys.executable
        variables = {variable["name"]: variable["value"] for variable in container.get("env", [])}
        replicas += [
            Replica(number, index, tuple(command), next(free), variables) for index in range(pool["replica_count"])
        ]
    return replicas


def cluster_environment(replica: Replica, replicas: list[Replica]) -> dict[str, str]:
    """Return a replica's environment: its container's, CLUSTER_SPEC and, with several replicas, TF_CONFIG."""
    pools: dict[str, list[str]] = {}
    tasks: dict[str, list[str]] = {}
    for other in replicas:
        pools.setdefault(pool_name(other.pool), []).append(other.address)
        if POOL_TASK_TYPES[other.pool] != "evaluator":
            tasks.setdefault(POOL_TASK_TYPES[other.pool], []).append(other.address)
    specification = {
        "cluster": pools,
        "environment": "cloud",
        "task": {"type": pool_name(replica.pool), "index": replica.index},
    }
    environment = {**replica.environment, "CLUSTER_SPEC": json.dumps(specification)}
    if len(replicas) > 1:
        task = {"type": POOL_TASK_TYPES[replica.pool], "index": replica.index}
        environment["TF_CONFIG"] = json.dumps({"cluster": tasks, "task": task, "environment": "cloud"})
    return environment
