"""Run a job's worker pools on this machine, one process per replica, or per machine of a TPU slice.

All start, stop and restart together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from slipway.components.step import termination_deferred, termination_requested
from slipway.components.train.restarts import Restart, Restarts, run_to_the_end
from slipway.components.worker_pools import Replica, WorkerPool, cluster_environment, count_processes, replicas_of
from slipway.core import events
from slipway.core.exit_codes import LOCAL_CLUSTER_VARIABLE
from slipway.core.forking import can_run
from slipway.core.idle import IDLE_VARIABLE
from slipway.core.memory import MemoryKills
from slipway.core.noise import is_noise
from slipway.core.paths import DATA_VARIABLE, REHEARSED_FILE
from slipway.core.supervision import Child, Children, Ports, write_line
from slipway.trainer.config import RestartSettings
from slipway.trainer.distributed.accelerators import PLANNED_VARIABLE, VIRTUAL_DEVICES_VARIABLE, first_gpus

TRAINER = "slipway.trainer"  # the module in the command of Slipway's own trainer, which reports its progress itself
# Variables of a container that no interpreter reads at its start; a replica does not inherit them.
OF_CONTAINER = frozenset({DATA_VARIABLE, PLANNED_VARIABLE, IDLE_VARIABLE})
MAX_SHOWN = 1000  # characters of a line on the terminal


def run_local_cluster(
    worker_pool_specs: list[WorkerPool],
    output: Path,
    *,
    virtual_devices: int = 0,
    restarts: RestartSettings | None = None,
    log: TextIO = sys.stdout,
) -> list[Restart]:
    """Run every replica of a job to its end; restart all of them when one is killed or preempted.

    A rehearsed custom program is ended in all replicas as soon as its chief has reported the rehearsal's last step.

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
    policy = Restarts(restarts or RestartSettings(), output / "checkpoints", MemoryKills())
    rehearsed = output / "checkpoints" / REHEARSED_FILE
    rehearsed.unlink(missing_ok=True)  # of an earlier attempt

    def attempt() -> tuple[Sequence[Child], Sequence[Child]]:
        workers, failed = _try(worker_pool_specs, output, virtual_devices, rehearsed, log)
        return workers, [] if rehearsed.is_file() else failed  # the chief's end lets the others fail

    with termination_deferred():
        return run_to_the_end(attempt, policy, log)


def _try(
    worker_pool_specs: list[WorkerPool], output: Path, virtual_devices: int, rehearsed: Path, log: TextIO
) -> tuple[list[Child], list[Child]]:
    """Run the replicas once, on new ports; return all of them, and those that failed by themselves.

    The file `rehearsed` ends them.
    """
    with Ports(count_processes(worker_pool_specs)) as ports, Children() as workers:
        replicas = replicas_of(worker_pool_specs, ports)
        events.phase(f"running {len(replicas)} replica{'s' if len(replicas) > 1 else ''}")
        (output / "model").mkdir(parents=True, exist_ok=True)  # a program writes there as in a bucket, without mkdir
        for replica in replicas:
            environment = _environment(replica, replicas, output, virtual_devices)
            machine = worker_pool_specs[replica.pool].get("machine_spec")
            if machine is not None and not virtual_devices:
                environment |= first_gpus(environment, int(str(machine.get("accelerator_count", 0))))
            is_shown = replica is replicas[0] and TRAINER not in replica.command
            copy = _copying(replica.name, log, shown=is_shown)
            fork = replica.environment.keys() <= OF_CONTAINER and can_run(replica.command)
            workers.all.append(Child(replica.name, replica.command, environment, copy, own_group=True, fork=fork))
        failed = workers.wait(lambda: termination_requested() or rehearsed.is_file())
    return workers.all, failed


def _copying(name: str, log: TextIO, *, shown: bool) -> Callable[[str], object]:
    """Return what copies a replica's lines to the log, and to the terminal if they are `shown`."""

    def copy(line: str) -> None:
        write_line(log, f"[{name}] {line.rstrip()}")
        text = "".join(letter if letter.isprintable() else " " for letter in line).strip()[:MAX_SHOWN]
        if shown and text and not is_noise(text):
            events.output(text)

    return copy


def _environment(replica: Replica, replicas: list[Replica], output: Path, virtual_devices: int) -> dict[str, str]:
    environment = {
        **os.environ,
        **cluster_environment(replica, replicas),
        "AIP_MODEL_DIR": str(output / "model"),
        "AIP_CHECKPOINT_DIR": str(output / "checkpoints"),
        "AIP_TENSORBOARD_LOG_DIR": str(output / "logs"),
        "PYTHONUNBUFFERED": "1",
        LOCAL_CLUSTER_VARIABLE: "1",
        # Ports reserves each port with an open socket; this lets the replica's server bind to the same port.
        "TF_GRPC_REUSE_PORT": "true",
    }
    if len({(other.pool, other.index) for other in replicas}) == 1:
        environment.pop("TF_CONFIG", None)
    for name in OF_CONTAINER - replica.environment.keys():
        environment.pop(name, None)
    if virtual_devices:
        environment.pop(PLANNED_VARIABLE, None)  # they stand in for what was planned
        environment[VIRTUAL_DEVICES_VARIABLE] = str(virtual_devices // replica.hosts)
    return environment
