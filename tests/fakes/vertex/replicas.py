"""Custom jobs in real containers: one per replica, with the cluster environment and the restarts of Vertex AI.

The restarts are those of https://cloud.google.com/vertex-ai/docs/training/understanding-training-service, in its strict
reading: a transient exit code costs one of the job's retries, and a lost machine one of the worker's restarts.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from google.cloud import aiplatform_v1 as vertex

from tests.fakes.containers import Container, End
from tests.fakes.vertex.script import Failure
from tests.fakes.vertex.work import Ended
from tests.fakes.vertex.worker_pools import hosts_of
from tests.ports import free_ports

if TYPE_CHECKING:
    from tests.fakes.vertex.containers import Containers

# By worker pool; the last of them is not part of TF_CONFIG's cluster.
TASK_TYPES = ("chief", "worker", "ps", "evaluator")
FOLDERS = {"AIP_MODEL_DIR": "model", "AIP_CHECKPOINT_DIR": "checkpoints", "AIP_TENSORBOARD_LOG_DIR": "logs"}
# SIGABRT and SIGSEGV, as a process's status and as a custom container's; any other exit code is permanent.
TRANSIENT = (6, 134, 11, 139)
WORKER_RESTARTS = 5
JOB_RETRIES = 3
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


@dataclass(frozen=True)
class ReplicaLost:
    """The loss of a replica's machine, which the service notices when `noticed` is set, or after `seconds`."""

    seconds: float
    noticed: threading.Event = field(default_factory=threading.Event)


class Replicas:
    """A job's containers, watched until the primary replica succeeds, one fails for good, or all are stopped."""

    def __init__(self, containers: Containers) -> None:
        self._containers = containers
        self._running: dict[Replica, Container] = {}
        self._ends: queue.Queue[tuple[Replica, End, bool]] = queue.Queue()
        self._losses: dict[Replica, ReplicaLost] = {}
        self._restarts: Counter[str] = Counter()
        self._retries = 0
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

    def lose(self, name: str, *, noticed_after: float = 0.0) -> None:
        """Lose the machine of a running replica: its container is killed, which the service notices later."""
        with self._lock:
            replica = next(replica for replica in self._running if replica.name == name)
            self._losses[replica] = ReplicaLost(noticed_after)
            self._running[replica].kill()

    def _run(self, job: vertex.CustomJob) -> None:
        try:
            ended = Ended(self._failure(job))
        except Exception as error:
            ended = Ended(Failure(f"Internal error occurred for the current attempt: {error!r}", code=13))
        self._end_attempt()
        self._ended = ended

    def _failure(self, job: vertex.CustomJob) -> Failure | None:
        """Run the job to its end; return None on success."""
        replicas = replicas_of(job)
        scheduling = job.job_spec.scheduling
        # "If true, overrides Scheduling.restart_job_on_worker_restart to false": scheduling.disable_retries.
        together = scheduling.restart_job_on_worker_restart and not scheduling.disable_retries
        for replica in replicas:
            self._start(job, replica, replicas)
        while self._running:
            replica, code, lost = self._take_first_end()
            if self._stopping.is_set():
                return None
            if code == 0 and replica is replicas[0]:
                return None
            if code == 0 or (replica.host and not lost):  # of a TPU slice's containers only that of host 0 is watched
                continue
            how = "was lost" if lost else f"exited with a non-zero status of {code}"
            if lost and self._restarts[replica.name] < WORKER_RESTARTS:
                self._restarts[replica.name] += 1
                self._say(job, f"The replica {replica.name} {how} and is restarted.")
                again = replicas if together or replica.hosts > 1 else [replica]
            elif (lost or code in TRANSIENT) and self._retries < JOB_RETRIES and not scheduling.disable_retries:
                self._retries += 1
                self._restarts.clear()
                self._say(job, f"The replica {replica.name} {how}; the job is retried.")
                again = replicas
            else:
                return Failure(replica=replica.name, status=code)
            if again is replicas:
                self._end_attempt()
            for other in again:
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
        threading.Thread(target=self._wait, args=(replica, container), daemon=True).start()

    def _wait(self, replica: Replica, container: Container) -> None:
        """Put the replica's end into the queue as soon as the service notices it."""
        end = container.wait()
        if (loss := self._losses.get(replica)) is not None:
            loss.noticed.wait(loss.seconds)
            end = End(datetime.now(UTC), end.code)
            del self._losses[replica]
        self._ends.put((replica, end, loss is not None))

    def _take_first_end(self) -> tuple[Replica, int, bool]:
        """Wait for the first replica that ends; the others end shortly after because of it.

        Returns its exit code and whether its machine was lost.
        """
        ends = [self._ends.get()]
        while len(ends) < sum(
            container.ended() for replica, container in self._running.items() if replica not in self._losses
        ):
            ends.append(self._ends.get())
        ends.sort(key=lambda end: end[1].at)
        for later in ends[1:]:
            self._ends.put(later)
        replica, end, lost = ends[0]
        with self._lock:
            self._running.pop(replica)
        return replica, end.code, lost

    def _end_attempt(self) -> None:
        """Stop all replicas, and forget how they ended."""
        self._stop_all()
        while self._running:
            self._take_first_end()

    def _stop_all(self) -> None:
        for loss in list(self._losses.values()):
            loss.noticed.set()
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
    ports = free_ports(len(places))
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
