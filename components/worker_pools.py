"""A custom job's worker pools and their replicas: names, commands and the cluster environment variables."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from slipway.trainer.distributed.cluster import POOL_TASK_TYPES, pool_name, slice_hosts


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
    """One process of a job, identified by `pool`, `index` and `host`; it listens on loopback port `port`.

    `environment` are the variables of its container specification. A replica on a TPU slice of several machines has a
    process per machine; `host` is its number.
    """

    pool: int
    index: int
    command: tuple[str, ...]
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    host: int = 0

    @property
    def hosts(self) -> int:
        """The number of machines of the replica."""
        return slice_hosts(self.environment)

    @property
    def name(self) -> str:
        """Its name, see `replica_name`."""
        return replica_name(pool_name(self.pool), self.index, self.host, self.hosts)

    @property
    def address(self) -> str:
        """Host and port for the other replicas."""
        return f"127.0.0.1:{self.port}"


def replica_name(pool: str, index: int, host: int = 0, hosts: int = 1) -> str:
    """Return a name as in Vertex AI's logs: workerpool1-0; of a machine of a TPU slice with the host's number."""
    return f"{pool}-{index}" + (f"-host{host}" if hosts > 1 else "")


def count_replicas(pools: Sequence[WorkerPool]) -> int:
    """Return the total number of replicas in the pools."""
    return sum(int(pool.get("replica_count", 0)) for pool in pools)


def count_processes(pools: Sequence[WorkerPool]) -> int:
    """Return the number of processes that run the pools: one per replica, or one per machine of a TPU slice."""
    return sum(int(pool.get("replica_count", 0)) * slice_hosts(variables_of(pool)) for pool in pools)


def variables_of(pool: WorkerPool) -> dict[str, str]:
    """Return the environment variables of a pool's container specification."""
    container = pool.get("container_spec", {})
    return {variable["name"]: variable["value"] for variable in container.get("env", [])}


def replicas_of(pools: Sequence[WorkerPool], ports: list[int]) -> list[Replica]:
    """Return the processes that run the pools in order, each with one of `ports`."""
    free = iter(ports)
    replicas = []
    for number, pool in enumerate(pools):
        if not pool:
            continue
        container = pool["container_spec"]
        command = [*container.get("command", []), *container.get("args", [])]
        if command and command[0] in ("python", "python3"):
            command[0] = sys.executable
        variables = variables_of(pool)
        replicas += [
            Replica(number, index, tuple(command), next(free), variables, host)
            for index in range(pool["replica_count"])
            for host in range(slice_hosts(variables))
        ]
    return replicas


def cluster_environment(replica: Replica, replicas: list[Replica]) -> dict[str, str]:
    """Return a replica's environment: its container's, CLUSTER_SPEC and, with several replicas, TF_CONFIG.

    The hosts of a TPU slice have the same CLUSTER_SPEC, and the variables by which a TPU VM tells JAX of the others.
    """
    pools: dict[int, list[str]] = {}
    for other in replicas:
        if other.host == 0:
            pools.setdefault(other.pool, []).append(other.address)
    environment = {**replica.environment, **cluster_variables(pools, replica.pool, replica.index)}
    if replica.hosts > 1:
        environment |= {
            "JAX_COORDINATOR_ADDRESS": pools[replica.pool][replica.index],
            "TPU_WORKER_HOSTNAMES": ",".join(["127.0.0.1"] * replica.hosts),
            "TPU_WORKER_ID": str(replica.host),
        }
    return environment


def cluster_variables(pools: Mapping[int, Sequence[str]], pool: int, index: int | str) -> dict[str, str]:
    """Return CLUSTER_SPEC and, with several replicas, TF_CONFIG.

    Args:
        pools: The addresses (host:port) of all replicas by worker pool.
        pool: The replica's worker pool.
        index: Its number there.
    """
    task = {"type": pool_name(pool), "index": index}
    cluster = {pool_name(number): list(addresses) for number, addresses in pools.items()}
    variables = {"CLUSTER_SPEC": json.dumps({"cluster": cluster, "environment": "cloud", "task": task})}
    if sum(len(addresses) for addresses in pools.values()) > 1:
        kinds = {POOL_TASK_TYPES[number]: list(addresses) for number, addresses in pools.items()}
        kinds.pop("evaluator", None)
        task = {"type": POOL_TASK_TYPES[pool], "index": index}
        variables["TF_CONFIG"] = json.dumps({"cluster": kinds, "task": task, "environment": "cloud"})
    return variables
