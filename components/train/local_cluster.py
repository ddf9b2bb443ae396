"""A job's worker pools on this machine: one process a replica, started, watched, ended and started again together."""

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

# How long replicas have to end by themselves when one has, or the job is to stop: a checkpoint may be half-written.
GRACE_SECONDS = 15.0
# A failed replica often takes its peers with it; among those that end within this time, the one to blame is looked for.
BLAME_SECONDS = 1.0
POLL_SECONDS = 0.05
# What every replica of the trainer prints at its end.
CHECKSUM = re.compile(r"weights checksum ([0-9a-f]{64})")


def run_local_cluster(
    worker_pool_specs: list[dict[str, Any]],
    output: Path,
    *,
    virtual_devices: int = 0,
    restarts: RestartSettings | None = None,
    log: TextIO = sys.stdout,
) -> list[Restart]:
    """Run every replica of a job to its end; when one is killed or preempted, start all again.

    Args:
        worker_pool_specs: As a custom job takes them; each replica's command runs in a process.
        output: The job's base output directory: AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and AIP_TENSORBOARD_LOG_DIR are its
            folders model, checkpoints and logs, as on Vertex.
        virtual_devices: How many virtual devices each replica is given in place of accelerators; 0 for none.
        restarts: How often, and how long is waited before; the defaults where nothing is said.
        log: Gets every replica's lines, each with the replica's name before it.

    Returns:
        What was restarted, when and why.

    Raises:
        UserError: A replica refused something that the user can fix.
        WorkFailed: A replica failed, or was killed too often, with its name and traceback. The others were ended.
    """
    policy = Restarts(restarts or RestartSettings(), output / "checkpoints")
    with termination_deferred():
        while True:
            workers, ended = _try(worker_pool_specs, output, virtual_devices, log)
            if not ended:
                _check_same_weights(workers)
                return policy.done
            raise_if_terminated()  # what ended them may have been meant for this process, too
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
    """Run the replicas once, on ports of their own; all of them, and those that ended badly by themselves."""
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
        # Ports holds each port with a socket of its own, beside which the replica's server must be let listen.
        "TF_GRPC_REUSE_PORT": "true",
    }
    if len(replicas) == 1:
        environment.pop("TF_CONFIG", None)
    if virtual_devices:
        environment[VIRTUAL_DEVICES_VARIABLE] = str(virtual_devices)
    return environment


def _wait(workers: Sequence[Worker]) -> list[Worker]:
    """Return when all have ended well, or soon after one has not: those that have ended badly, the first one first."""
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
    """Raise WorkFailed where replicas that train together say that they ended with different weights."""
    said = {worker.replica.name: found[-1] for worker in workers if (found := CHECKSUM.findall("\n".join(worker.tail)))}
    if len(set(said.values())) > 1:
        listed = ", ".join(f"{name} {checksum[:12]}" for name, checksum in said.items())
        raise WorkFailed(f"The replicas ended with different weights: {listed}.")


def _stop(workers: Sequence[Worker]) -> None:
    """End what still runs: asked first, killed after the grace time."""
    running = [worker for worker in workers if worker.exit_code is None]
    for worker in running:
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGCONT)  # a frozen one hears nothing else
    deadline = time.monotonic() + GRACE_SECONDS
    while running and time.monotonic() < deadline:
        running = [worker for worker in running if worker.exit_code is None]
        time.sleep(POLL_SECONDS)
    for worker in running:
        worker.signal(signal.SIGKILL)
    for worker in workers:
        worker.finish()


def _sleep(seconds: float) -> None:
    """Wait, unless this process is asked to stop."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        raise_if_terminated()
        time.sleep(min(POLL_SECONDS, seconds))
