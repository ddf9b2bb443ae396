"""A replica of a TrainJob: its pod, the copy of its log, and how it ended."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from slipway.components.cloud.retries import paced
from slipway.components.train.trainjob.manifest import CONTAINER, INDEX_ANNOTATION, POOL_LABEL
from slipway.components.train.trainjob.retries import DENIED, TRAINING, Retries, kind_of
from slipway.components.worker_pools import WorkerPool, replica_name, variables_of
from slipway.core.errors import UserError
from slipway.core.exit_codes import SIGKILLED, STOPPED
from slipway.core.supervision import KEPT_LINES, POLL_SECONDS, write_line
from slipway.trainer.distributed.cluster import pool_name, slice_hosts

if TYPE_CHECKING:
    from kubernetes.client import V1Pod

    from slipway.components.train.trainjob.cluster import Cluster

# Between two attempts to follow a log.
AGAIN_SECONDS = 1.0
# Statuses of a log that does not exist: its pod was deleted, or has not started.
NO_LOG = (404, 400)
# For the rest of all logs once a job has ended, also if the API server has just been started.
REST_SECONDS = 120.0


def replica_of(pod: V1Pod, pools: Sequence[WorkerPool]) -> str:
    """Return the name of a pod's replica, or of its host in a TPU slice."""
    pool, index = pod.metadata.labels[POOL_LABEL], int(pod.metadata.annotations[INDEX_ANNOTATION])
    hosts = next(slice_hosts(variables_of(spec)) for number, spec in enumerate(pools) if pool_name(number) == pool)
    return replica_name(pool, 0, index, hosts) if hosts > 1 else replica_name(pool, index)


def finish_logs(replicas: Collection[Replica], pause: Callable[[float], None]) -> None:
    """Wait until the logs of replicas that have ended, or are being stopped, are complete.

    Raises:
        UserError: The cluster does not allow reading a log.
    """
    deadline = time.monotonic() + REST_SECONDS
    for replica in replicas:
        replica.end_log(deadline)
    while time.monotonic() < deadline and any(replica.is_copying for replica in replicas):
        pause(POLL_SECONDS)
    for replica in replicas:
        replica.raise_refusal()


class Replica:
    """A replica; follows its pod's log in a thread of its own.

    Attributes:
        name: Its name in messages.
        pod: The pod's name.
        tail: The end of its output.
        status: Its exit status; 0 until it has ended.
        ended_at: When it ended.
    """

    def __init__(self, name: str, pod: str, cluster: Cluster, log: TextIO) -> None:
        self.name, self.pod = name, pod
        self.tail: deque[str] = deque(maxlen=KEPT_LINES)
        self.status, self.ended_at = 0, datetime.max.replace(tzinfo=UTC)
        self._has_ended = False
        self._cluster, self._log = cluster, log
        self._over, self._deadline = threading.Event(), 0.0
        self._last = ""
        self._thread: threading.Thread | None = None
        self._refusal: UserError | None = None

    def update(self, pod: V1Pod) -> None:
        """Start to follow the log of a pod that has started; keep the status of one that has ended.

        Raises:
            UserError: The cluster does not allow reading the log.
        """
        self.raise_refusal()
        if pod.status.phase != "Pending" and self._thread is None:
            self._thread = threading.Thread(target=self._copy, daemon=True)
            self._thread.start()
        statuses = [status for status in pod.status.container_statuses or () if status.name == CONTAINER]
        ended = statuses[0].state.terminated if statuses else None
        if ended is not None:
            self._end(ended.exit_code, ended.finished_at)
        elif pod.status.phase == "Failed":  # evicted, or its node is lost
            self._end(SIGKILLED, None)

    def lose(self) -> None:
        """Note that the pod no longer exists; if it was not seen to end, it was asked to: it has been deleted."""
        self._end(STOPPED, None)

    def _end(self, status: int, at: datetime | None) -> None:
        if not self._has_ended:
            self._has_ended, self.status, self.ended_at = True, status, at or datetime.now(UTC)

    def end_log(self, deadline: float) -> None:
        """Copy the rest of the log only, at most until `deadline` (time.monotonic)."""
        self._deadline = deadline
        self._over.set()

    @property
    def is_copying(self) -> bool:
        """Whether the log is not complete."""
        return self._thread is not None and self._thread.is_alive()

    def raise_refusal(self) -> None:
        """Raise UserError if the cluster does not allow reading the log."""
        if self._refusal is not None:
            raise self._refusal

    def _copy(self) -> None:
        """Follow the log; after a lost connection, continue behind the last line."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        retries = Retries(TRAINING)
        while True:
            is_rest = is_last = self._over.is_set()
            try:
                for stamp, line in self._cluster.log_lines(self.pod, self._last, follow=not is_rest):
                    retries.answered()
                    self._last = stamp
                    self.tail.append(line)
                    write_line(self._log, f"[{self.name}] {line}")
                retries.answered()
            except (ApiException, HTTPError, OSError) as error:
                if not retries.may_pass(error) and kind_of(error) == DENIED:
                    self._refusal = self._cluster.refusal(f"read the log of the pod {self.pod}", error)
                    return
                is_last = is_rest and (getattr(error, "status", None) in NO_LOG or time.monotonic() > self._deadline)
            if is_last:
                return
            if is_rest:
                time.sleep(paced(AGAIN_SECONDS))
            else:
                self._over.wait(AGAIN_SECONDS)
