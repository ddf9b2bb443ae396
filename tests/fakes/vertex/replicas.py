"""Custom jobs in real containers: one per replica, with the cluster environment of Vertex AI."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.cloud import aiplatform_v1 as vertex

from tests.fakes.containers import Container, End
from tests.fakes.vertex.script import Failure
from tests.fakes.vertex.work import Ended
from tests.fakes.vertex.worker_pools import hosts_of

if TYPE_CHECKING:
    from tests.fakes.vertex.containers import Containers

# By worker pool; the last of them is not part of TF_CONFIG's cluster.
TASK_TYPES = ("chief", "worker", "ps", "evaluator")
FOLDERS = {"AIP_MODEL_DIR": "model", "AIP_CHECKPOINT_DIR": "checkpoints", "AIP_TENSORBOARD_LOG_DIR": "logs"}
# A replica that a signal has ended, so not by itself, is started again; how often, is documented.
FIRST_SIGNAL_CODE = 128
RESTARTS = 5
REPLICA_LABEL = "slipway.test.replica"


@dataclass(frozen=True)
class Replica:
    """One container of a job; the others reach it at `address`.

    A replica on a TPU slice of several machines has a container on each of its `hosts`; `host` is its number.
    """

    pool: int
    index: int
    address: str
    host: int = 0
    hosts: int = 1

    @property
    def name(self) -> str:
        return f"workerpool{self.pool}-{self.index}" + (f"-host{self.host}" if self.host else "")

    @property
    def host_name(self) -> str:
        return self.address.partition(":")[0]


class Replicas:
    """A job's containers, watched until the primary replica succeeds, one fails, or all are stopped."""

    def __init__(self, containers: Containers) -> None:
        self._containers = containers
        self._running: dict[Replica, Container] = {}
        self._ends: queue.Queue[tuple[Replica, End]] = queue.Queue()
        self._restarts: Counter[str] = Counter()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._ended: Ended | None = None

    def check(self) -> None:
        """Do nothing: every valid job is accepted."""

    def start(self, job: vertex.CustomJob) -> None:
        threading.Thread(target=self._run, args=(vertex.CustomJob(job),), daemon=True).start()

    def look(self) -> Ended | None:
        return self._ended

    def stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            threading.Thread(target=self._stop_all, daemon=True).start()

    def _run(self, job: vertex.CustomJob) -> None:
        try:
            ended = Ended(self._failure(job))
        except Exception as error:
            ended = Ended(Failure(f"Internal error occurred for the current attempt: {error!r}", code=13))
        self._stop_all()
        while self._running:
            self._take_first_end()
        self._ended = ended

    def _failure(self, job: vertex.CustomJob) -> Failure | None:
        """Run the job to its end; return None on success."""
        replicas = replicas_of(job)
        for replica in replicas:
            self._start(job, replica, replicas)
        while self._running:
            replica, code = self._take_first_end()
            if self._stopping.is_set():
                return None
            if code == 0 and replica is replicas[0]:
                return None
            if code == 0 or replica.host:  # of a TPU slice only host 0 is watched
                continue
            again = code >= FIRST_SIGNAL_CODE and not job.job_spec.scheduling.disable_retries
            self._restarts[replica.name] += 1
            if not again or self._restarts[replica.name] > RESTARTS:
                return Failure(replica=replica.name, status=code)
            self._say(job, f"The replica {replica.name} exited with a non-zero status of {code} and is restarted.")
            together = job.job_spec.scheduling.restart_job_on_worker_restart or replica.hosts > 1
            if together:
                self._stop_all()
                while self._running:
                    self._take_first_end()
            for other in replicas if together else (replica,):
                self._start(job, other, replicas)
        return None

    def _start(self, job: vertex.CustomJob, replica: Replica, replicas: list[Replica]) -> None:
        spec = job.job_spec.worker_pool_specs[replica.pool].container_spec
        identity = job.name.rpartition("/")[2]
        container = self._containers.start(
            spec.image_uri,
            list(spec.args),
            entrypoint=list(spec.command) or None,
            environment=environment_of(job, replica, replicas) | {one.name: one.value for one in spec.env},
            hosts={other.host_name: "127.0.0.1" for other in replicas},
            labels={REPLICA_LABEL: f"{identity}/{replica.name}"},
            job=job.name,
            replica=replica.name,
        )
        with self._lock:
            self._running[replica] = container
        threading.Thread(target=lambda: self._ends.put((replica, container.wait())), daemon=True).start()

    def _take_first_end(self) -> tuple[Replica, int]:
        """Wait for the first replica that ends; the others end shortly after because of it."""
        ends = [self._ends.get()]
        while len(ends) < sum(container.ended() for container in self._running.values()):
            ends.append(self._ends.get())
        ends.sort(key=lambda end: end[1].at)
        for later in ends[1:]:
            self._ends.put(later)
        replica, end = ends[0]
        with self._lock:
            self._running.pop(replica)
        return replica, end.code

    def _stop_all(self) -> None:
        with self._lock:
            running = list(self._running.values())
        stops = [threading.Thread(target=container.stop, daemon=True) for container in running]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()

    def _say(self, job: vertex.CustomJob, message: str) -> None:
        self._containers.log.write_job(job.name, "service", {"severity": "WARNING", "message": message})


def replicas_of(job: vertex.CustomJob) -> list[Replica]:
    """Return a job's replicas in order. They share this machine's network, so each has its own port instead of 2222."""
    identity = job.name.rpartition("/")[2]
    places = [
        (number, index, host, hosts)
        for number, pool in enumerate(job.job_spec.worker_pool_specs)
        for hosts in [hosts_of(pool.machine_spec)]
        for index in range(pool.replica_count)
        for host in range(hosts)
    ]
    ports = _free_ports(len(places))
    return [
        Replica(
            pool,
            index,
            f"cmle-training-workerpool{pool}-{identity}-{index}{f'-{host}' * (host > 0)}:{port}",
            host,
            hosts,
        )
        for (pool, index, host, hosts), port in zip(places, ports, strict=True)
    ]


def environment_of(job: vertex.CustomJob, replica: Replica, replicas: list[Replica]) -> dict[str, str]:
    """Return a replica's environment; TF_CONFIG is set only with several replicas.

    The hosts of a TPU slice have the same, besides what a TPU VM tells of its place in the slice.
    """
    _, number, _, location, _, identity = job.name.split("/")
    pools: dict[str, list[str]] = {}
    tasks: dict[str, list[str]] = {}
    first = [other for other in replicas if other.host == 0]
    for other in first:
        pools.setdefault(f"workerpool{other.pool}", []).append(other.address)
        if TASK_TYPES[other.pool] != "evaluator":
            tasks.setdefault(TASK_TYPES[other.pool], []).append(other.address)
    cluster: dict[str, Any] = {
        "cluster": pools,
        "environment": "cloud",
        "task": {"type": f"workerpool{replica.pool}", "index": replica.index},
    }
    told = {
        "CLUSTER_SPEC": json.dumps(cluster),
        "CLOUD_ML_JOB_ID": identity,
        "CLOUD_ML_PROJECT_ID": number,
        "CLOUD_ML_REGION": location,
    }
    if replica.hosts > 1:
        names = [other.host_name for other in replicas if (other.pool, other.index) == (replica.pool, replica.index)]
        told |= {"TPU_WORKER_ID": str(replica.host), "TPU_WORKER_HOSTNAMES": ",".join(names)}
    if len(first) > 1:
        task = {"type": TASK_TYPES[replica.pool], "index": replica.index, "cloud": identity}
        told["TF_CONFIG"] = json.dumps({"cluster": tasks, "environment": "cloud", "task": task})
    if output := job.job_spec.base_output_directory.output_uri_prefix.rstrip("/"):
        told |= {name: f"{output}/{folder}/" for name, folder in FOLDERS.items()}
    return told


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports
