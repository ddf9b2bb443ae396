"""Who trains together: this process's place among the job's replicas, as the environment tells it."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainer.errors import UserError

PEER_SECONDS_VARIABLE = "SLIPWAY_PEER_SECONDS"
DEFAULT_PEER_SECONDS = 300.0

# The order of ranks. `master` is the older name of `chief`.
_TASK_TYPES = ("chief", "master", "worker")
_POOL_TYPES = {"workerpool0": "chief", "workerpool1": "worker"}
_FIRST_REPORT_SECONDS = 5.0
_REPORT_SECONDS = 15.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """One replica of the job: its type and index in the cluster, and its host:port ("" for a lone one)."""

    type: str
    index: int
    address: str

    def __str__(self) -> str:
        return f"{self.type} {self.index} at {self.address}" if self.address else f"{self.type} {self.index}"


@dataclass(frozen=True)
class Cluster:
    """The job's replicas, the chief first, and which of them this process is.

    `source` is the variable that told: TF_CONFIG, CLUSTER_SPEC or "nothing".
    """

    tasks: tuple[Task, ...]
    rank: int
    source: str

    @property
    def task(self) -> Task:
        """This process."""
        return self.tasks[self.rank]

    @property
    def replicas(self) -> int:
        """How many processes train together."""
        return len(self.tasks)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints, metrics and the model.

        That is the task of type chief or master; worker 0 where there is neither; a lone process.
        """
        return self.rank == 0

    @property
    def peers(self) -> list[Task]:
        """All but this process."""
        return [task for task in self.tasks if task != self.task]

    @property
    def on_this_machine(self) -> int:
        """How many of the replicas run on this one's machine, itself included."""
        return sum(_host_and_port(task)[0] == _host_and_port(self.task)[0] for task in self.tasks)

    def describe(self) -> str:
        """One line for the log."""
        if self.replicas == 1:
            return f"one replica ({self.source} in the environment)"
        names = ", ".join(str(task) for task in self.tasks)
        chief = " (the chief)" if self.is_chief else ""
        return f"{self.task.type} {self.task.index}{chief} of {self.replicas} replicas, by {self.source}: {names}"


def read(environment: Mapping[str, str]) -> Cluster:
    """The cluster that TF_CONFIG, else CLUSTER_SPEC, else nothing describes.

    Raises:
        UserError: The variable is not what Vertex would set, or this replica has no part in synchronous training
            (a parameter server, an evaluator).
    """
    for source in ("TF_CONFIG", "CLUSTER_SPEC"):
        text = environment.get(source)
        if text:
            cluster = _parse(source, text)
            if cluster is not None:
                return cluster
    return Cluster(tasks=(Task("chief", 0, ""),), rank=0, source="nothing")


def _parse(source: str, text: str) -> Cluster | None:
    """The cluster in `text`, or None where it names no replicas."""
    try:
        specification = json.loads(text)
        cluster = specification.get("cluster") or {}
        task = specification.get("task") or {}
        if not cluster:
            return None
        tasks = _tasks(cluster)
        own_type = str(task["type"])
        own = (_POOL_TYPES.get(own_type, own_type), int(task.get("index", 0)))
        ranks = [(other.type, other.index) for other in tasks]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{source} is not a cluster description: {type(error).__name__}: {error}.",
            setting=source,
            value=text,
            allowed='JSON like {"cluster": {"chief": ["host:port"], "worker": ["host:port"]}, '
            '"task": {"type": "worker", "index": 0}}',
        ) from None
    strangers = sorted({*(_POOL_TYPES.get(kind, kind) for kind in cluster if cluster[kind]), own[0]} - {*_TASK_TYPES})
    if strangers:
        raise UserError(
            f"The cluster has replicas of type {', '.join(strangers)}, which have no part in synchronous training.",
            setting=source,
            value=text,
            allowed="chief (or master) and worker: worker pools 0 and 1",
        )
    if own not in ranks:
        raise UserError(
            f"{source} says that this is {own[0]} {own[1]}; its cluster has none.",
            setting=source,
            value=text,
        )
    return Cluster(tasks=tasks, rank=ranks.index(own), source=source)


def _tasks(cluster: dict[str, Any]) -> tuple[Task, ...]:
    by_type: dict[str, list[str]] = {}
    for kind, addresses in cluster.items():
        by_type.setdefault(_POOL_TYPES.get(kind, kind), []).extend(str(address) for address in addresses)
    return tuple(
        Task(kind, index, address) for kind in _TASK_TYPES for index, address in enumerate(by_type.get(kind, []))
    )


def wait_for_peers(cluster: Cluster, seconds: float) -> None:
    """Return once every peer can be reached.

    TensorFlow's own start-up would hang for over ten minutes without a word. Here each replica listens on its own port
    until it has reached all others, and only then lets its server have the port; a peer that went ahead is reached
    at its server.

    Raises:
        UserError: A peer was not reached within `seconds`, or this replica's port is taken.
    """
    if cluster.replicas == 1:
        return
    missing = cluster.peers
    started = time.monotonic()
    report = started + _FIRST_REPORT_SECONDS
    with _listening(cluster.task):
        while True:
            missing = [peer for peer in missing if not _reachable(peer)]
            if not missing:
                return
            now = time.monotonic()
            names = ", ".join(str(peer) for peer in missing)
            if now - started > seconds:
                raise UserError(
                    f"{'A peer' if len(missing) == 1 else 'Peers'} did not come within {seconds:g} s: {names}.",
                    setting=PEER_SECONDS_VARIABLE,
                    value=seconds,
                    mend=f"see that replica's log for why it did not start; if it only needs longer, set "
                    f"{PEER_SECONDS_VARIABLE}",
                )
            if now >= report:
                logger.info("waiting for %s (%.0f s of %g)", names, now - started, seconds)
                report = now + _REPORT_SECONDS
            time.sleep(0.05)


@contextlib.contextmanager
def _listening(task: Task) -> Iterator[None]:
    """Let peers reach this replica's port while it waits for them."""
    host, port = _host_and_port(task)
    with socket.socket() as listener:
        # Whoever started this replica may hold its port for it with a socket that shares it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listener.bind(("127.0.0.1" if host in ("127.0.0.1", "localhost") else "", port))
        except OSError as error:
            raise UserError(
                f"This replica's port {port} can not be listened on: {error.strerror}.",
                mend="end the program that holds the port (an earlier run?)",
            ) from None
        listener.listen(128)
        yield


def _reachable(task: Task) -> bool:
    try:
        with socket.create_connection(_host_and_port(task), timeout=1.0):
            return True
    except OSError:
        return False


def _host_and_port(task: Task) -> tuple[str, int]:
    host, _, port = task.address.rpartition(":")
    return host, int(port or 0)
