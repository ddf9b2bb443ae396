"""The job's cluster and this process's rank in it, read from the environment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slipway.core.errors import UserError
from slipway.trainer.distributed.accelerators import Accelerators, find

# Vertex AI's task types in TF_CONFIG, by worker pool.
POOL_TASK_TYPES = ("chief", "worker", "ps", "evaluator")
# The types that take part in synchronous training, in the order of ranks. `master` is the older name of `chief`.
_TRAINING_TYPES = ("chief", "master", "worker")
TORCHRUN = "torchrun"
# The number of machines of a TPU slice, set by plan_training where there are several. The service runs the container of
# the slice's one replica on each of them ("host"), with the same CLUSTER_SPEC; which host it is, only the TPU's runtime
# tells: https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/training-with-tpu-vm
HOSTS_VARIABLE = "SLIPWAY_HOSTS"
SLICE = "the TPU slice"
_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Task:
    """One replica of the job: its type and index in the cluster, and its host:port ("" if unknown)."""

    type: str
    index: int
    address: str

    def __str__(self) -> str:
        return f"{self.type} {self.index} at {self.address}" if self.address else f"{self.type} {self.index}"

    @property
    def host_and_port(self) -> tuple[str, int]:
        """The address split into host and port."""
        host, _, port = self.address.rpartition(":")
        return host, int(port or 0)


@dataclass(frozen=True)
class Cluster:
    """The job's replicas, the chief first, and this process's rank among them.

    `source` is where the cluster was read from: TF_CONFIG, CLUSTER_SPEC, torchrun (its variables), the TPU slice (an
    engine's `join`) or "nothing".
    `local_rank` is the rank among the `on_this_machine` replicas of this machine.
    """

    tasks: tuple[Task, ...]
    rank: int
    source: str
    accelerators: Accelerators
    local_rank: int = 0
    on_this_machine: int = 1

    @property
    def task(self) -> Task:
        """This process."""
        return self.tasks[self.rank]

    @property
    def world_size(self) -> int:
        """The number of processes that train together."""
        return len(self.tasks)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The host:port of each process by rank; "" where unknown."""
        return tuple(task.address for task in self.tasks)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints, metrics and the model.

        The chief is the task of type chief or master, else worker 0, or the only process.
        """
        return self.rank == 0

    def describe(self) -> str:
        """Return a one-line description for the log."""
        accelerators = self.accelerators.describe()
        if self.world_size == 1:
            return f"one replica ({self.source} in the environment), {accelerators}"
        chief = " (the chief)" if self.is_chief else ""
        noun = {TORCHRUN: "processes", SLICE: "hosts"}.get(self.source, "replicas")
        text = f"{self.task.type} {self.task.index}{chief} of {self.world_size} {noun}, from {self.source}"
        if self.source != SLICE:  # whose hosts have no addresses that are known here
            text += f": {', '.join(str(task) for task in self.tasks)}"
        return f"{text}; {accelerators}"


def slice_hosts(environment: Mapping[str, str]) -> int:
    """Return the number of machines of this replica's TPU slice; 1 for all other hardware."""
    return int(environment.get(HOSTS_VARIABLE) or 1)


def pool_name(number: int) -> str:
    """Return a worker pool's name in CLUSTER_SPEC."""
    return f"workerpool{number}"


_POOL_TYPES = {pool_name(number): kind for number, kind in enumerate(POOL_TASK_TYPES)}


def read(environment: Mapping[str, str]) -> Cluster:
    """Read the cluster from TF_CONFIG, else CLUSTER_SPEC, else torchrun's variables; else it is a single process.

    Raises:
        UserError: A variable is not valid, or this replica's type (parameter server, evaluator) does not take part in
            synchronous training.
    """
    accelerators = find(environment)
    for source in ("TF_CONFIG", "CLUSTER_SPEC"):
        text = environment.get(source)
        if text:
            cluster = _parse(source, text, accelerators)
            if cluster is not None and environment.get("RANK") == str(cluster.rank) and "LOCAL_RANK" in environment:
                # A program that was started as if its replica were alone on its machine.
                local_rank, together = int(environment["LOCAL_RANK"]), int(environment.get("LOCAL_WORLD_SIZE") or 1)
                return replace(cluster, local_rank=local_rank, on_this_machine=together)
            if cluster is not None:
                return cluster
    if environment.get("RANK"):
        return _from_torchrun(environment, accelerators)
    return Cluster((Task("chief", 0, ""),), 0, "nothing", accelerators)


def _from_torchrun(environment: Mapping[str, str], accelerators: Accelerators) -> Cluster:
    """Read the cluster from torchrun's variables, which contain only the first process's address."""
    try:
        rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local_rank = int(environment.get("LOCAL_RANK") or 0)
        together = int(environment.get("LOCAL_WORLD_SIZE") or 1)
        address = f"{environment['MASTER_ADDR']}:{int(environment['MASTER_PORT'])}"
        if not (0 <= rank < size and 0 <= local_rank < together <= size):
            raise ValueError("a rank must be less than its number of processes")
    except (KeyError, ValueError) as error:
        raise UserError(
            f"torchrun's environment variables are not valid: {type(error).__name__}: {error}.",
            setting="RANK",
            value=environment["RANK"],
            allowed=f"consistent values of {', '.join(_TORCHRUN_VARIABLES)}, as set by torchrun",
            fix="start the worker with torchrun, or unset RANK",
        ) from None
    tasks = tuple(Task("worker", index, "" if index else address) for index in range(size))
    return Cluster(tasks, rank, TORCHRUN, accelerators, local_rank, together)


def _parse(source: str, text: str, accelerators: Accelerators) -> Cluster | None:
    """Parse the cluster in `text`; None if it lists no replicas."""
    try:
        specification = json.loads(text)
        cluster = specification.get("cluster") or {}
        task = specification.get("task") or {}
        if not cluster:
            return None
        tasks = _tasks(cluster)
        own_type = str(task["type"])
        this_task = (_POOL_TYPES.get(own_type, own_type), int(task.get("index", 0)))
        ranks = [(other.type, other.index) for other in tasks]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{source} is not a valid cluster description: {type(error).__name__}: {error}.",
            setting=source,
            value=text,
            allowed='JSON like {"cluster": {"chief": ["host:port"], "worker": ["host:port"]}, '
            '"task": {"type": "worker", "index": 0}}',
        ) from None
    strangers = sorted(
        {*(_POOL_TYPES.get(kind, kind) for kind in cluster if cluster[kind]), this_task[0]} - {*_TRAINING_TYPES}
    )
    if strangers:
        raise UserError(
            f"The cluster has replicas of type {', '.join(strangers)}, which synchronous training does not support.",
            setting=source,
            value=text,
            allowed="chief (or master) and worker, that is worker pools 0 and 1",
        )
    if this_task not in ranks:
        raise UserError(
            f"The task {this_task[0]} {this_task[1]} in {source} is not in its cluster.",
            setting=source,
            value=text,
        )
    rank = ranks.index(this_task)
    hosts = [task.host_and_port[0] for task in tasks]
    return Cluster(tasks, rank, source, accelerators, hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank]))


def _tasks(cluster: Mapping[str, Iterable[str]]) -> tuple[Task, ...]:
    by_type: dict[str, list[str]] = {}
    for kind, addresses in cluster.items():
        by_type.setdefault(_POOL_TYPES.get(kind, kind), []).extend(str(address) for address in addresses)
    return tuple(
        Task(kind, index, address) for kind in _TRAINING_TYPES for index, address in enumerate(by_type.get(kind, []))
    )
