"""The replicas of a job's worker pools: what each is called, what it runs, and what it is told of the others."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any

# Vertex's task types in TF_CONFIG, by worker pool.
TASK_TYPES = ("chief", "worker", "ps", "evaluator")


@dataclass(frozen=True)
class Replica:
    """One process of a job: `pool` and `index` name it, `port` is its own on loopback.

    `environment` is what its container's specification sets.
    """

    pool: int
    index: int
    command: tuple[str, ...]
    port: int
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name as in Vertex's logs: workerpool1-0."""
        return f"workerpool{self.pool}-{self.index}"

    @property
    def address(self) -> str:
        """Where the others reach it."""
        return f"127.0.0.1:{self.port}"


def count_replicas(worker_pool_specs: list[dict[str, Any]]) -> int:
    """How many processes the pools have together."""
    return sum(int(pool.get("replica_count", 0)) for pool in worker_pool_specs)


def replicas_of(worker_pool_specs: list[dict[str, Any]], ports: list[int]) -> list[Replica]:
    """The replicas of `worker_pool_specs` in order, each with a port of `ports`. A skipped pool is `{}`."""
    free = iter(ports)
    replicas = []
    for number, pool in enumerate(worker_pool_specs):
        if not pool:
            continue
        container = pool["container_spec"]
        command = [*container.get("command", []), *container.get("args", [])]
        if command and command[0] in ("python", "python3"):
            command[0] = sys.executable
        count = int(pool["replica_count"])
        variables = {variable["name"]: variable["value"] for variable in container.get("env", [])}
        replicas += [Replica(number, index, tuple(command), next(free), variables) for index in range(count)]
    return replicas


def cluster_environment(replica: Replica, replicas: list[Replica]) -> dict[str, str]:
    """What its container sets, and CLUSTER_SPEC, and TF_CONFIG when there are several, as Vertex sets them."""
    pools: dict[str, list[str]] = {}
    tasks: dict[str, list[str]] = {}
    for other in replicas:
        pools.setdefault(f"workerpool{other.pool}", []).append(other.address)
        if TASK_TYPES[other.pool] != "evaluator":
            tasks.setdefault(TASK_TYPES[other.pool], []).append(other.address)
    specification = {
        "cluster": pools,
        "environment": "cloud",
        "task": {"type": f"workerpool{replica.pool}", "index": replica.index},
    }
    environment = {**replica.environment, "CLUSTER_SPEC": json.dumps(specification)}
    if len(replicas) > 1:
        task = {"type": TASK_TYPES[replica.pool], "index": replica.index}
        environment["TF_CONFIG"] = json.dumps({"cluster": tasks, "task": task, "environment": "cloud"})
    return environment
