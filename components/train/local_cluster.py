"""A job's worker pools on this machine: one process a replica, started, watched and ended together."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from components.step import WorkFailed, raise_if_terminated, termination_deferred
from components.train.replica import Ports, Replica, cluster_environment, count_replicas, replicas_of
from trainer.errors import ERROR_PREFIX, UserError

# How long replicas have to end by themselves once one has failed, or the job is stopped.
GRACE_SECONDS = 5.0
# A failed replica often takes its peers with it; among those that end within this time, the one to blame is looked for.
BLAME_SECONDS = 1.0
KEPT_LINES = 400
# What every replica of the trainer prints at its end.
CHECKSUM = re.compile(r"weights checksum ([0-9a-f]{64})")
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


class Worker:
    """One running replica: its process and the last lines that it printed."""

    def __init__(self, replica: Replica, environment: dict[str, str], log: TextIO) -> None:
        self.replica = replica
        self.tail: deque[str] = deque(maxlen=KEPT_LINES)
        self.process = subprocess.Popen(
            replica.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
            preexec_fn=_die_with_parent(),
        )
        self._reader = threading.Thread(target=self._read, args=(log,), daemon=True)
        self._reader.start()

    def _read(self, log: TextIO) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.tail.append(line.rstrip("\n"))
            log.write(f"[{self.replica.name}] {line.rstrip()}\n")
            log.flush()

    def signal(self, number: int) -> None:
        """Send a signal to the replica and what it started."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def finish(self) -> None:
        """Wait until the process has ended and all that it printed is in the log."""
        self.process.wait()
        self._reader.join(timeout=5)


def run_local_cluster(
    worker_pool_specs: list[dict[str, Any]],
    output: Path,
    *,
    virtual_devices: int = 0,
    log: TextIO = sys.stdout,
) -> None:
    """Run every replica of a job to its end.

    Args:
        worker_pool_specs: As a custom job takes them; each replica's command runs in a process.
        output: The job's base output directory: AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and AIP_TENSORBOARD_LOG_DIR are its
            folders model, checkpoints and logs, as on Vertex.
        virtual_devices: How many virtual devices each replica is given in place of accelerators; 0 for none.
        log: Gets every replica's lines, each with the replica's name before it.

    Raises:
        UserError: A replica refused something that the user can mend.
        WorkFailed: A replica failed, with its name and traceback. The others were ended.
    """
    ports = Ports(count_replicas(worker_pool_specs))
    replicas = replicas_of(worker_pool_specs, ports.numbers)
    workers: list[Worker] = []
    with termination_deferred():
        try:
            for replica in replicas:
                environment = _environment(replica, replicas, output, virtual_devices)
                workers.append(Worker(replica, environment, log))
            _wait(workers)
            for worker in workers:
                worker.finish()
            _check_same_weights(workers)
        finally:
            _stop(workers)
            ports.close()


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
        environment["SLIPWAY_VIRTUAL_DEVICES"] = str(virtual_devices)
    return environment


def _wait(workers: list[Worker]) -> None:
    """Return when all have ended well; raise as soon as one has not."""
    while True:
        raise_if_terminated()
        codes = [worker.process.poll() for worker in workers]
        if any(code not in (None, 0) for code in codes):
            raise _failure(workers)
        if all(code == 0 for code in codes):
            return
        time.sleep(0.05)


def _check_same_weights(workers: list[Worker]) -> None:
    """Raise WorkFailed where replicas that train together say that they ended with different weights."""
    said = {worker.replica.name: found[-1] for worker in workers if (found := CHECKSUM.findall("\n".join(worker.tail)))}
    if len(set(said.values())) > 1:
        listed = ", ".join(f"{name} {checksum[:12]}" for name, checksum in said.items())
        raise WorkFailed(f"The replicas ended with different weights: {listed}.")


def _failure(workers: list[Worker]) -> Exception:
    """What to say of a job in which at least one replica has failed."""
    first = next(worker for worker in workers if worker.process.poll() not in (None, 0))
    time.sleep(BLAME_SECONDS)
    failed = [worker for worker in workers if worker.process.poll() not in (None, 0)]
    for worker in failed:
        worker.finish()
    to_blame = next((worker for worker in failed if _user_error(worker) is not None), None)
    if to_blame is None:
        to_blame = (
            first if _traceback(first) or first.process.returncode < 0 else next(filter(_traceback, failed), first)
        )
    mistake = _user_error(to_blame)
    if mistake is not None:
        return mistake
    return WorkFailed(f"Replica {to_blame.replica.name} {_how_it_ended(to_blame)}.", _traceback(to_blame))


def _how_it_ended(worker: Worker) -> str:
    code = worker.process.returncode
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    last = _traceback(worker).rstrip().rsplit("\n", 1)[-1]
    return f"failed with exit code {code}" + (f": {last}" if last else "")


def _user_error(worker: Worker) -> UserError | None:
    """The user's mistake that the replica reported, if that is why it failed."""
    line = next((text for text in reversed(worker.tail) if text.startswith(ERROR_PREFIX)), None)
    return UserError.from_dict(json.loads(line.removeprefix(ERROR_PREFIX))) if line else None


def _traceback(worker: Worker) -> str:
    """The last traceback among the lines that the replica printed, up to its exception's own line; "" for none."""
    lines = list(worker.tail)
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if not starts:
        return ""
    block = lines[starts[-1] :]
    end = next(
        (n for n, line in enumerate(block) if n and re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)?\b", line)),
        -1,
    )
    return "\n".join(block[: end + 1] if end > 0 else block)


def _stop(workers: list[Worker]) -> None:
    """End what still runs: asked first, killed after the grace time."""
    running = [worker for worker in workers if worker.process.poll() is None]
    for worker in running:
        worker.signal(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while running and time.monotonic() < deadline:
        running = [worker for worker in running if worker.process.poll() is None]
        time.sleep(0.05)
    for worker in running:
        worker.signal(signal.SIGKILL)
    for worker in workers:
        worker.finish()


def _die_with_parent() -> Callable[[], None] | None:
    """What a new process does first so that it does not outlive a killed parent (Linux)."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None, use_errno=True)

    def ask() -> None:
        library.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)

    return ask
