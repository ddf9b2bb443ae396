"""The replicas of a job's worker pools: names, commands and the cluster environment variables."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any

# Vertex's task types in TF_CONFIG, by worker pool.
TASK_TYPES = ("chief", "worker", "ps", "evaluator")


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
        return f"workerpool{self.pool}-{self.index}"

    @property
    def address(self) -> str:
        """Host and port for the other replicas."""
        return f"127.0.0.1:{self.port}"


def count_replicas(worker_pool_specs: list[dict[str, Any]]) -> int:
    """Return the total number of replicas in the pools."""
    return sum(int(pool.get("replica_count", 0)) for pool in worker_pool_specs)


def replicas_of(worker_pool_specs: list[dict[str, Any]], ports: list[int]) -> list[Replica]:
    """Return the replicas of `worker_pool_specs` in order, each with one of `ports`. A skipped pool is `{}`."""
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
    """Return a replica's environment: its container's, CLUSTER_SPEC and, with several replicas, TF_CONFIG."""
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
