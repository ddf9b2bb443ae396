"""Train by a TrainJob: create it, follow its pods, collect their logs, delete it; again if a pod was killed.

One try is one TrainJob. All tries have the same name, so that no run ever has two at a time.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from slipway.components.cloud.retries import paced
from slipway.components.step import WorkFailed, termination_deferred, termination_requested
from slipway.components.train.restarts import Restart, Restarts, run_to_the_end, say, wait
from slipway.components.train.trainjob import manifest
from slipway.components.train.trainjob.cluster import Cluster, DeniedError, NotInstalledError, own_pod
from slipway.components.train.trainjob.manifest import LEASE_FILE, TRY_ANNOTATION, TrainJobSettings
from slipway.components.train.trainjob.replica import Replica, finish_logs, replica_of
from slipway.components.train.trainjob.retries import AT_FIRST, ENDING, STOPPING, TRAINING, Retries
from slipway.components.worker_pools import WorkerPool, count_processes
from slipway.core import events
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.trainer.config import RestartSettings

if TYPE_CHECKING:
    from kubernetes.client import V1Pod

POLL_SECONDS = 2.0
RENEW_SECONDS = 30.0
# How often a lasting reason to wait is repeated in the log.
REPORT_SECONDS = 300.0
# Objects of the operator, in the order of their creation.
KINDS = ("TrainingRuntime", "TrainJob")

logger = logging.getLogger(__name__)


def run_train_job(
    worker_pool_specs: list[WorkerPool],
    output: str,
    settings: TrainJobSettings,
    *,
    restarts: RestartSettings | None = None,
    log: TextIO = sys.stdout,
) -> list[Restart]:
    """Train on the pods of a TrainJob, one per replica or per host of a TPU slice; return the restarts.

    Args:
        worker_pool_specs: The specifications of a custom job.
        output: The job's base output directory, on the volume that the pods and this process's pod mount.
        settings: What the pods have besides the containers.
        restarts: Limit and backoff of restarts; None for the defaults.
        log: Receives the output of all replicas, each line prefixed with the replica's name.

    Raises:
        UserError: A replica reported an error that the user can fix, or the cluster refused the TrainJob.
        WorkFailed: A replica failed, or was killed too often; the others were stopped.
    """
    with termination_deferred():
        return Training(worker_pool_specs, output, settings, log).run(restarts)


class Training:
    """The tries of one training. Call `run` with termination deferred.

    Args:
        pools: The specifications of a custom job.
        output: The job's base output directory; see `run_train_job`.
        settings: What the pods have besides the containers.
        log: Receives the output of all replicas.
        title: Precedes the replicas' names, and what is said of the training, if it is one of several: "trial 3 ".
        stop: When it is set, the training ends with `Stopped`; None: it never is.
    """

    def __init__(
        self,
        pools: list[WorkerPool],
        output: str,
        settings: TrainJobSettings,
        log: TextIO,
        *,
        title: str = "",
        stop: threading.Event | None = None,
    ) -> None:
        owner = own_pod()
        if owner is None:
            raise UserError(
                "The step is not a pod of Kubeflow Pipelines, which would own the TrainJob.",
                allowed="a task of a pipeline on a Kubeflow cluster",
                fix="slipway run --target kubeflow",
            )
        self._title, self._stop = title, stop
        retries = Retries(AT_FIRST, TRAINING, pause=self._pause, say=lambda text: say(title + text, log))
        self.cluster = Cluster(retries=retries)
        self._owner, self._pools, self._output = owner, pools, output
        self._settings, self._log = settings, log
        self._name = manifest.name_of(output)
        self._number = 0
        self._may_be_left = False
        self._lease = Path(output, LEASE_FILE)
        self._renew_at = 0.0
        self._said, self._repeat_at = "", 0.0

    @contextlib.contextmanager
    def _deleted_at_the_end(self) -> Iterator[None]:
        """Delete the TrainJob however the context ends; without a lease, its replicas would end, too."""
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a broken volume must not keep the job
                self._lease.unlink(missing_ok=True)
            self.cluster.retries = Retries(STOPPING if termination_requested() else ENDING)
            try:
                if self._may_be_left:
                    self._delete()
            except UserError as error:  # the reason for which the context ended is more important
                self._say(f"could not delete the TrainJob {self._name}: {error.message}")

    def run(self, restarts: RestartSettings | None) -> list[Restart]:
        """Train, and delete the TrainJob; return the restarts. See `run_train_job`.

        Raises:
            Stopped: The training was stopped.
        """
        policy = Restarts(restarts or RestartSettings(), Path(self._output, "checkpoints"))
        with self._deleted_at_the_end():
            return run_to_the_end(self._attempt, policy, self._log)

    def _attempt(self) -> tuple[Sequence[Replica], Sequence[Replica]]:
        """Train once; return all replicas, and those that failed by themselves, earliest first."""
        self._number += 1
        self._renew_lease()
        if self._number > 1:
            self._delete()
            self._wait_until_deleted()
        self._create()
        job, replicas = self._follow()
        condition = _condition(job, "Failed")
        if condition is None:
            return replicas, []
        failed = sorted((replica for replica in replicas if replica.status), key=lambda replica: replica.ended_at)
        if not failed:
            raise WorkFailed(f"The TrainJob {self._name} failed: {str(condition['message']).rstrip('.')}.")
        return replicas, failed

    def _create(self) -> None:
        """Create the runtime and the job; replace those of an earlier, killed step of the same run."""
        arguments = (self._name, self._owner, self._number)
        bodies = (
            manifest.training_runtime(*arguments, self._pools, self._output, self._settings),
            manifest.train_job(*arguments, self._output, self._settings),
        )
        while not all(self._has_created(body) for body in bodies):
            self._say("replacing the TrainJob of an earlier attempt of this run")
            self._delete()
            self._wait_until_deleted()
        events.phase(f"running {count_processes(self._pools)} pods of the TrainJob {self._name}")
        self._say(f"created the TrainJob {self._name} in the namespace {self.cluster.namespace}")

    def _has_created(self, body: JsonObject) -> bool:
        """Create an object; return whether it is this try's, also if the response to an earlier call was lost."""
        before, self._may_be_left = self._may_be_left, True
        try:
            is_new = self.cluster.create(body)
        except (DeniedError, NotInstalledError):
            self._may_be_left = before
            raise
        return is_new or _is_same(self.cluster.get(body["kind"], self._name), body)

    def _follow(self) -> tuple[JsonObject, list[Replica]]:
        """Copy the logs of the pods until the job has ended; return the job and the replicas.

        Kueue may suspend a running job and admit it again: of several pods of a replica, the last one counts.
        """
        followed: dict[str, Replica] = {}
        while True:
            self._pause(paced(POLL_SECONDS))
            job = self.cluster.get("TrainJob", self._name)
            pods = self.cluster.pods(self._name)
            for pod in pods:
                if pod.metadata.name not in followed:
                    name = self._title + replica_of(pod, self._pools)
                    followed[pod.metadata.name] = Replica(name, pod.metadata.name, self.cluster, self._log)
                followed[pod.metadata.name].update(pod)
            for lost in followed.keys() - {pod.metadata.name for pod in pods}:
                followed[lost].lose()
            if job is None:
                raise WorkFailed(f"The TrainJob {self._name} was deleted while it was running.")
            if _condition(job, "Complete") or _condition(job, "Failed"):
                finish_logs(followed.values(), self._pause)
                return job, list({replica.name: replica for replica in followed.values()}.values())
            self._say(self._waiting_for(job, pods))

    def _waiting_for(self, job: JsonObject, pods: list[V1Pod]) -> str:
        """Return why not all pods are running; "" if they are."""
        if suspended := _condition(job, "Suspended"):
            queue = f" in the queue {self._settings.queue}" if self._settings.queue else ""
            return f"the TrainJob waits{queue}: {suspended.get('message', 'it is suspended')}"
        pending = {replica_of(pod, self._pools): pod for pod in pods if pod.status.phase == "Pending"}
        if pending:
            name, pod = min(pending.items())
            more = f" (and {len(pending) - 1} more)" if len(pending) > 1 else ""
            preparing = self.cluster.event(pod.metadata.name, f"involvedObject.name={pod.metadata.name}")
            return f"{name}{more} is waiting: {_obstacle(pod) or preparing or 'no node has begun with it'}"
        if len(pods) < count_processes(self._pools):
            return self.cluster.event(self._name, "type=Warning") or ""
        return ""

    def _say(self, text: str) -> None:
        """Write a line to the log and the events unless it was said lately; "" is nothing to say."""
        now = time.monotonic()
        if not text or (text == self._said and now < self._repeat_at):
            return
        self._said, self._repeat_at = text, now + REPORT_SECONDS
        say(self._title + text, self._log)

    def _pause(self, seconds: float) -> None:
        """Wait, and renew the lease; raise `Terminated` if the step is to stop, `Stopped` if the training is."""
        wait(seconds)
        if self._stop is not None and self._stop.is_set():
            raise Stopped
        self._renew_lease()

    def _renew_lease(self) -> None:
        now = time.monotonic()
        if now < self._renew_at:
            return
        self._renew_at = now + paced(RENEW_SECONDS)
        with contextlib.suppress(OSError):  # on a full volume, the replicas end once the lease is old
            self._lease.parent.mkdir(parents=True, exist_ok=True)
            self._lease.write_text(f"{self._owner.name}\n")

    def _delete(self) -> None:
        for kind in reversed(KINDS):
            self.cluster.delete(kind, self._name)

    def _wait_until_deleted(self) -> None:
        """Wait until no pod is left: a second job must not write into the same checkpoints."""
        while any(self.cluster.get(kind, self._name) for kind in KINDS) or self.cluster.pods(self._name):
            self._say(f"waiting until the TrainJob {self._name} and its pods are deleted")
            self._pause(paced(POLL_SECONDS))


class Stopped(Exception):
    """The training was stopped before its end."""


def _is_same(existing: JsonObject | None, body: JsonObject) -> bool:
    """Return whether an existing object is the one that this try wanted to create."""
    if existing is None:
        return False
    owners = [owner.get("uid") for owner in existing["metadata"].get("ownerReferences", ())]
    annotation = existing["metadata"].get("annotations", {}).get(TRY_ANNOTATION)
    metadata = body["metadata"]
    return (
        owners == [metadata["ownerReferences"][0]["uid"]]
        and annotation == metadata["annotations"][TRY_ANNOTATION]
        and not existing["metadata"].get("deletionTimestamp")
    )


def _condition(job: JsonObject, kind: str) -> JsonObject | None:
    conditions = job.get("status", {}).get("conditions", ())
    return next(
        (condition for condition in conditions if condition["type"] == kind and condition["status"] == "True"), None
    )


def _obstacle(pod: V1Pod) -> str | None:
    """Return why a pod that is pending cannot run, as its status says; None if nothing is in its way."""
    for status in pod.status.container_statuses or ():
        if status.state.waiting is not None and status.state.waiting.reason != "ContainerCreating":
            return f"{status.state.waiting.reason}: {status.state.waiting.message or posixpath.basename(status.image)}"
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return str(condition.message or condition.reason)
    return None
