"""Run a job's worker pools on this machine, one process per replica; all replicas start, stop and restart together."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from slipway.components.step import WorkFailed, raise_if_terminated, termination_deferred
from slipway.components.train.replica import Replica, cluster_environment, count_replicas, replicas_of
from slipway.components.train.restarts import Restart, Restarts
from slipway.components.train.worker import Worker
from slipway.core import events
from slipway.trainer.config import RestartSettings
from slipway.trainer.distributed.accelerators import VIRTUAL_DEVICES_VARIABLE
from slipway.trainer.distributed.ports import Ports

# Grace period between SIGTERM and SIGKILL: a replica may be writing a checkpoint.
GRACE_SECONDS = 15.0
# A failed replica often makes others fail; the cause is searched among those that fail within this time.
BLAME_SECONDS = 1.0
POLL_SECONDS = 0.05
# Printed by every replica of the trainer at the end.
CHECKSUM = re.compile(r"weights checksum ([0-9a-f]{64})")


def run_local_cluster(
    worker_pool_specs: list[dict[str, Any]],
    output: Path,
    *,
    virtual_devices: int = 0,
    restarts: RestartSettings | None = None,
    log: TextIO = sys.stdout,
) -> list[Restart]:
    """Run every replica of a job to its end; restart all of them when one is killed or preempted.

    Args:
        worker_pool_specs: The specifications of a custom job; each replica's command runs as a process.
        output: The job's base output directory. AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and AIP_TENSORBOARD_LOG_DIR are its
            folders model, checkpoints and logs, as on Vertex AI.
        virtual_devices: Number of virtual devices per replica in place of accelerators; 0 for none.
        restarts: Limit and backoff of restarts; None for the defaults.
        log: Receives the output of all replicas, each line prefixed with the replica's name.

    Returns:
        The restarts.

    Raises:
        UserError: A replica reported an error that the user can fix.
        WorkFailed: A replica failed, or was killed too often; the others were stopped.
    """
    policy = Restarts(restarts or RestartSettings(), output / "checkpoints")
    with termination_deferred():
        while True:
            workers, ended = _try(worker_pool_specs, output, virtual_devices, log)
            if not ended:
                _check_same_weights(workers)
                return policy.done
            raise_if_terminated()  # the signal may have been sent to this process as well
            restart = policy.next(workers, ended)
            text = policy.describe(restart)
            with contextlib.suppress(OSError):  # a full disk does not end the training
                log.write(f"{text}\n")
                log.flush()
            events.message(text)
            _sleep(restart.waited_seconds)


def _try(
    worker_pool_specs: list[dict[str, Any]], output: Path, virtual_devices: int, log: TextIO
) -> tuple[list[Worker], list[Worker]]:
    """Run the replicas once, on new ports; return all of them, and those that failed by themselves."""
    ports = Ports(count_replicas(worker_pool_specs))
    replicas = replicas_of(worker_pool_specs, ports.numbers)
    workers: list[Worker] = []
    events.phase(f"running {len(replicas)} replica{'s' if len(replicas) > 1 else ''}")
    try:
        for replica in replicas:
            environment = _environment(replica, replicas, output, virtual_devices)
            workers.append(Worker(replica, environment, log))
        ended = _wait(workers)
    finally:
        _stop(workers)
        ports.close()
    return workers, ended


def _environment(replica: Replica, replicas: list[Replica], output: Path, virtual_devices: int) -> dict[str, str]:
    environment = {
        **os.environ,
        **cluster_environment(replica, replicas),
        "AIP_MODEL_DIR": str(output / "model"),
        "AIP_CHECKPOINT_DIR": str(output / "checkpoints"),
        "AIP_TENSORBOARD_LOG_DIR": str(output / "logs"),
        "PYTHONUNBUFFERED": "1",
        # Ports reserves each port with an open socket; this lets the replica's server bind to the same port.
        "TF_GRPC_REUSE_PORT": "true",
    }
    if len(replicas) == 1:
        environment.pop("TF_CONFIG", None)
    if virtual_devices:
        environment[VIRTUAL_DEVICES_VARIABLE] = str(virtual_devices)
    return environment


def _wait(workers: Sequence[Worker]) -> list[Worker]:
    """Wait until all have succeeded or shortly after one has failed; return the failed ones, earliest first."""
    ended: list[Worker] = []
    deadline: float | None = None
    while True:
        raise_if_terminated()
        ended += [worker for worker in workers if worker.exit_code not in (None, 0) and worker not in ended]
        if all(worker.exit_code is not None for worker in workers):
            break
        if ended and deadline is None:
            deadline = time.monotonic() + BLAME_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    for worker in ended:
        worker.finish()
    return ended


def _check_same_weights(workers: Sequence[Worker]) -> None:
    """Raise WorkFailed if the replicas report different weight checksums."""
    said = {worker.replica.name: found[-1] for worker in workers if (found := CHECKSUM.findall("\n".join(worker.tail)))}
    if len(set(said.values())) > 1:
        listed = ", ".join(f"{name} {checksum[:12]}" for name, checksum in said.items())
        raise WorkFailed(f"The replicas ended with different weights: {listed}.")


def _stop(workers: Sequence[Worker]) -> None:
    """Stop running workers with SIGTERM, and with SIGKILL after the grace period."""
    running = [worker for worker in workers if worker.exit_code is None]
    for worker in running:
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGCONT)  # a stopped process handles SIGTERM only once it continues
    deadline = time.monotonic() + GRACE_SECONDS
    while running and time.monotonic() < deadline:
        running = [worker for worker in running if worker.exit_code is None]
        time.sleep(POLL_SECONDS)
    for worker in running:
        worker.signal(signal.SIGKILL)
    for worker in workers:
        worker.finish()


def _sleep(seconds: float) -> None:
    """Sleep, unless this process receives a stop signal."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        raise_if_terminated()
        time.sleep(min(POLL_SECONDS, seconds))
