"""Train on a Cloud TPU: request it, wait for it, watch it, request it again after a preemption, delete it."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO, TypeVar

from slipway.components.cloud.known_errors.table import recognize
from slipway.components.cloud.retries import is_out_of_quota, is_transient, paced
from slipway.components.cloud.rules import LEASE, RUNS
from slipway.components.prepare_data.publishing.remembered import RUN_FILE
from slipway.components.step import raise_if_terminated, termination_deferred
from slipway.components.train.restarts import Restart, Restarts, check_same_weights, say, wait
from slipway.components.train.tpu import service
from slipway.components.train.tpu.bucket import BucketFolder
from slipway.components.train.tpu.lease import Holder, Lease, has_lapsed
from slipway.components.train.tpu.request import DATA, HOSTS, body_of, name_of, reading
from slipway.components.train.tpu.settings import TpuRequest
from slipway.components.worker_pools import Container, WorkerPool, replica_name, variables_of
from slipway.core import events, manifest
from slipway.core.errors import UserError
from slipway.core.exit_codes import STOPPED, UNAVAILABLE
from slipway.core.supervision import KEPT_LINES, write_line
from slipway.trainer.checkpoint.store import POINTER
from slipway.trainer.config import RestartSettings
from slipway.trainer.distributed.cluster import pool_name, slice_hosts

# How long the other hosts have to end after the first one failed.
GRACE_SECONDS = 60.0
STATES = {
    "CREATING": "being created",
    "ACCEPTED": "accepted",
    "WAITING_FOR_RESOURCES": "waiting for capacity",
    "PROVISIONING": "provisioning",
    "ACTIVE": "active",
    "SUSPENDING": "being preempted",
    "SUSPENDED": "preempted",
    "FAILED": "failed",
    "DELETING": "being deleted",
}
# A TPU is one replica.
POOL = pool_name(0)
# Not DELETING: why a node is deleted is what the queued resource says next.
LOST_NODES = ("PREEMPTED", "TERMINATED", "STOPPED", "STOPPING", "HIDDEN")
# Right after its creation, a queued resource that the service does not find was reported to exist a request later.
ABSENT_SECONDS = 30.0
# The final marker lines of a host, from `startup.sh`.
DELETING, TIME_OVER, FAILED = "slipway: deleting this TPU: ", "its time is over", "slipway: failed: "

# The beginning of the name of the phase in which the TPU is active; its price is charged for that time.
TRAINING = "training on "

# In the trainer's lines about its progress.
STEPS = re.compile(r"\bstep (\d+) of (\d+)\b")

Result = TypeVar("Result")


@dataclass
class Host:
    """A host of the TPU: the end of its log, and the exit status of its container; -1 if it has not ended."""

    name: str
    status: int = -1
    last_part: str = ""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))


@dataclass
class TpuLost:
    """What happened to a TPU that can no longer be used, as a verb phrase, and whether another one is requested."""

    how: str
    can_restart: bool = True


def train_on_tpu(
    request: TpuRequest,
    pool: WorkerPool,
    output: Path,
    dataset: Path | None,
    restarts: RestartSettings,
    log: TextIO = sys.stdout,
) -> list[Restart]:
    """Train on a TPU, which is deleted whatever happens, and copy the model to `output`.

    Args:
        request: What to request.
        pool: The worker pool with its container.
        output: The training's folder in the run's folder, whose name is the run's id. Checkpoints stay in the bucket.
        dataset: The prepared data set on this machine; None if there is none.
        restarts: Limit and backoff of requests after a preemption or a lost host.
        log: Receives the output of all hosts, each line prefixed with the host's name.

    Returns:
        The restarts.

    Raises:
        UserError: The service refuses the request, no zone has capacity, or the trainer reported a user error.
        WorkFailed: The training failed, or the TPU was lost too often.
    """
    policy = Restarts(restarts, output / "checkpoints")
    with termination_deferred():  # from the beginning: a killed command may have left a TPU
        job = _Job(request, pool["container_spec"], output, log)
        left = job.lease.take()
        with job.lease:
            try:
                job.current = left
                trained = job.was_trained()
                job.delete()
                job.delete_expired()
                if not trained:
                    job.train(dataset, policy)
                job.delete()  # before the copy, which does not need it
                check_same_weights(job.hosts)
                for name in ("model", "logs"):
                    job.folder.below(name).download(output / name)
            finally:
                job.delete()
                job.lease.release()
    return policy.done


class _Job:
    """The training of one run. `current` is the queued resource that it requested last."""

    def __init__(self, request: TpuRequest, container: Container, output: Path, log: TextIO) -> None:
        self.request_, self.settings, self.container = request, request.settings, container
        self.connection = self.settings.connection
        self.run_id = output.parent.name
        self.bucket = self.settings.bucket.removeprefix("gs://")
        self.folder = BucketFolder(self.connection, self.bucket, f"{RUNS}/{self.run_id}")
        self.lease_seconds = 60 * self.settings.lease
        self.lease = Lease(
            self.connection, self.bucket, f"{self.folder.path}/{LEASE}", output / "launcher", self.lease_seconds
        )
        self.current = Holder()
        self.hosts: list[Host] = []
        self._output, self._log = output, log
        self._shown = ("", "")  # the name and the state that were shown last

    @property
    def name(self) -> str:
        """The name of the current queued resource."""
        return self.current.holder

    def was_trained(self) -> bool:
        """Return whether an earlier command's TPU has written the model; if so, its output is in `hosts`."""
        self.hosts = self._new_hosts()
        ends = [self._read(f"{self._place(number)}.exit") for number in range(self._count)]
        if any(end is None or int(end) != 0 for end in ends) or not self.folder.below("model").names():
            return False
        self._read_hosts()
        return True

    def train(self, dataset: Path | None, policy: Restarts) -> None:
        """Request TPUs and watch them until the training has ended on one."""
        if dataset is not None:
            self.copy_data(dataset)
        while True:
            policy.note("created")
            lost = self.request()
            if lost is None:
                policy.note("started")
                lost = self.watch()
            policy.note("ended")
            failed = [host for host in self.hosts if host.status > 0]
            if lost is None and not failed:
                return
            self.delete()
            wait(self.next_restart(policy, lost, failed).waited_seconds)

    def copy_data(self, dataset: Path) -> None:
        """Copy the data set to the bucket, unless it is there, and let the container read it there."""
        there = BucketFolder(self.connection, self.bucket, f"{DATA}/{manifest.read(dataset).fingerprint}")
        self.folder.write(RUN_FILE, json.dumps({"uri": there.uri}).encode())  # before it looks what is there
        there.upload(dataset)
        self.container = reading(self.container, there.uri)

    def delete_expired(self) -> None:
        """Delete this user's requests of other runs that failed or expired, or were preempted after their launcher was
        lost: they count against the quota.
        """
        for resource in service.listed(self.connection, list(self.settings.zones)):
            if not resource.is_expired or resource.owner != service.owner():
                continue
            lease = f"{RUNS}/{resource.run_id}/{LEASE}"
            if has_lapsed(self.connection, self.bucket, lease, self.lease_seconds):
                self._say(f"deleting the queued resource {resource.name} of an earlier run: {STATES[resource.state]}")
                service.request_delete(self.connection, resource.zone, resource.name)

    def request(self) -> TpuLost | None:
        """Request a TPU in one zone after the other until one is active; return why it was lost at once, if it was.

        Raises:
            UserError: The service refuses the request, or no zone has capacity.
        """
        refused = []
        for zone in self.settings.zones:
            attempt = self.current.attempt + 1
            self.current = Holder(name_of(self.run_id, attempt), zone, attempt)
            self.hosts = self._new_hosts()
            held = self.lease.hold(self.current)
            try:
                body = body_of(self.request_, self.run_id, self.folder, self.current, self.container, held)
                service.create(self.connection, zone, self.name, body)
                ended = self._until_active()
            except UserError as error:
                if error.__cause__ is None or not is_out_of_quota(error.__cause__):
                    raise
                ended = error.message
            if not isinstance(ended, str):
                return ended
            self._say(f"no TPU in {zone}: {ended}")
            refused.append(f"{zone}: {ended}")
            self.delete()
        raise UserError(
            f"No zone has a TPU for this run. {'; '.join(refused)}.",
            setting="tpu.zones",
            value=", ".join(self.settings.zones),
            fix=f"slipway run --resume {self.run_id}, later; or with --set tpu.zones=[…] or a larger tpu.valid_for",
        )

    def _until_active(self) -> TpuLost | str | None:
        """Wait until the TPU is active; return None, a preemption that came before, or why it never will be active."""
        minutes, since = self.settings.max_provisioning_minutes, 0.0
        while True:
            resource = self._found()
            if resource is None or resource.state == "DELETING":
                self._read_hosts()
                return self._explained(TpuLost("was deleted", can_restart=False))
            if resource.state == service.FAILED:
                known = recognize(resource.error)
                return known.sentence.rstrip(".") if known else resource.error or "the request failed"
            if resource.state in service.SUSPENDED:
                return TpuLost("was preempted")
            if resource.state == "ACTIVE":
                return None
            if resource.state == "PROVISIONING":
                since = since or time.monotonic()
                if time.monotonic() - since > 60 * minutes:
                    return f"it was still provisioning after {minutes:g} minutes (tpu.max_provisioning_minutes)"

    def watch(self) -> TpuLost | None:
        """Copy the hosts' output to the log until all of them have ended; return why the TPU was lost, if it was."""
        events.phase(f"{TRAINING}{self.name}")
        since = 0.0
        while True:
            lost = self._lost_tpu()
            self._read_hosts()  # after the request, so that nothing that was written before the loss is missed
            if all(host.status == 0 for host in self.hosts):
                return None
            if all(host.status >= 0 for host in self.hosts):
                # A preemption that stopped the hosts may show only now.
                lost = lost or self._lost_tpu()
                stopped = all(host.status in (0, STOPPED) for host in self.hosts)
                return self._explained(lost) if lost and (lost.can_restart or stopped) else None
            if lost is not None:
                return self._explained(lost)
            if any(host.status > 0 for host in self.hosts):
                since = since or time.monotonic()
                if time.monotonic() - since > paced(GRACE_SECONDS):
                    return None

    def _lost_tpu(self) -> TpuLost | None:
        resource = self._found()
        if resource is None or resource.state == "DELETING":
            return TpuLost("was deleted", can_restart=False)
        if resource.state != "ACTIVE":
            preempted = resource.state in service.SUSPENDED
            return TpuLost("was preempted" if preempted else STATES.get(resource.state, resource.state))
        state = self._patiently(lambda: service.node_state(self.connection, self.current.zone, self.name))
        if state in LOST_NODES:
            return TpuLost("was preempted" if state == "PREEMPTED" else f"was lost (its state is {state})")
        return None

    def _explained(self, lost: TpuLost) -> TpuLost:
        """Return the lost TPU with a host's reason for deleting it; raise UserError if another TPU would not help."""
        if lost.can_restart:
            return lost
        reasons = [
            line.removeprefix(DELETING) for host in self.hosts for line in host.tail if line.startswith(DELETING)
        ]
        if TIME_OVER in reasons:
            raise UserError(
                f"The machines of the TPU {self.name} deleted it when its time was over.",
                setting="tpu.max_hours",
                value=self.settings.max_hours,
                fix=f"slipway run --resume {self.run_id} --set tpu.max_hours={2 * self.settings.max_hours:g}",
            )
        if reasons:
            return TpuLost(f"was deleted by its machines: {reasons[0]}")
        raise UserError(
            f"The TPU {self.name} was deleted, but not by this command.", fix=f"slipway run --resume {self.run_id}"
        )

    def next_restart(self, policy: Restarts, lost: TpuLost | None, failed: list[Host]) -> Restart:
        """Return the restart to make.

        Raises:
            UserError: The trainer reported a user error, or the hosts could not start it.
            WorkFailed: The training failed, or there were too many restarts.
        """
        for host in failed:
            failures = [line.removeprefix(FAILED) for line in host.tail if line.startswith(FAILED)]
            if host.status == UNAVAILABLE and failures:
                raise UserError(
                    f"The TPU's machines could not start the trainer: {failures[-1]} failed.",
                    fix=f"see the last lines of slipway logs {self.run_id} --step train; slipway doctor --target tpu",
                )
        pointer = self.folder.below("checkpoints").read(POINTER)
        if pointer is not None:
            (self._output / "checkpoints").mkdir(parents=True, exist_ok=True)
            (self._output / "checkpoints" / POINTER).write_bytes(pointer)
        ended = [Host(replica_name(POOL, 0), STOPPED)] if lost else failed
        restart = policy.next(self.hosts, ended, lost.how if lost else None)
        self._say(policy.describe(restart))
        return restart

    def delete(self) -> None:
        """Delete the current queued resource, and wait until it no longer exists."""
        if self.name:
            events.phase(f"deleting {self.name}")
            service.delete(self.connection, self.current.zone, self.name)
            self.current = Holder(attempt=self.current.attempt)

    def _found(self) -> service.QueuedResource | None:
        """Return the queued resource after a pause, and show its state if it is another than before.

        None if there has been none for ABSENT_SECONDS.
        """
        since = time.monotonic()
        while True:
            time.sleep(paced(service.POLL_SECONDS))
            resource = self._patiently(lambda: service.get(self.connection, self.current.zone, self.name))
            if resource is not None or time.monotonic() - since > paced(ABSENT_SECONDS):
                break
        state = resource.state if resource else "deleted"
        if (self.name, state) != self._shown:
            self._shown = self.name, state
            self._say(f"{self.name} in {self.current.zone}: {state}")
            events.phase(f"{self.name} in {self.current.zone}: {STATES.get(state, state)}")
        return resource

    def _patiently(self, call: Callable[[], Result]) -> Result:
        """Return the result of a call; without an answer from Google, the TPU trains on until the lease lapses."""
        while True:
            raise_if_terminated()
            self.lease.check()
            try:
                return call()
            except UserError as error:
                if error.__cause__ is None or not is_transient(error.__cause__):
                    raise
                self._say(f"{error.message}; trying again")

    def _read_hosts(self) -> None:
        for number, host in enumerate(self.hosts):
            place = self._place(number)
            # The exit status first: it is written after the whole log.
            status = None if host.status >= 0 else self._read(f"{place}.exit")
            for part in self._patiently(lambda: self.folder.names(f"{place}/", host.last_part)):  # noqa: B023
                lines = (self._read(part) or b"").decode(errors="replace").splitlines()
                host.last_part = part
                host.tail.extend(lines)
                for line in lines:
                    write_line(self._log, f"[{host.name}] {line}")
                steps = STEPS.findall("\n".join(lines))
                if steps and number == 0:
                    done, total = steps[-1]
                    events.progress(int(done), int(total), "steps")
            if status is not None:
                host.status = int(status)

    def _place(self, number: int) -> str:
        """Return where a host of the current request writes its log and exit status."""
        return f"{HOSTS}/{self.current.attempt}-{number}"

    def _new_hosts(self) -> list[Host]:
        return [Host(replica_name(POOL, 0, number, self._count)) for number in range(self._count)]

    def _read(self, name: str) -> bytes | None:
        return self._patiently(lambda: self.folder.read(name))

    @property
    def _count(self) -> int:
        return slice_hosts(variables_of({"container_spec": self.container}))

    def _say(self, text: str) -> None:
        say(text, self._log)
