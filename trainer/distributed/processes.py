"""A replica's child processes: one per device for engines that train on one, and those of a custom program.

The replica's initial process becomes their parent: it takes part in the rendezvous but does not train. Its child
processes read their ranks from torchrun's variables.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from slipway.core import exit_codes
from slipway.core.forking import can_run
from slipway.core.supervision import Child, Children, Ports
from slipway.trainer.config import JobConfig
from slipway.trainer.data.assignment import check_even_split
from slipway.trainer.distributed.accelerators import VIRTUAL_DEVICES_VARIABLE
from slipway.trainer.distributed.cluster import TORCHRUN, Cluster
from slipway.trainer.distributed.signals import StopRequest
from slipway.trainer.engines.table import ENGINES

# The number of processes per replica, for a child process: its `--config` is the replica's.
PROCESSES_VARIABLE = "SLIPWAY_PROCESSES"

logger = logging.getLogger(__name__)


def count(engine: str, cluster: Cluster) -> int:
    """Return the number of training processes for this replica: one, or one per device.

    Replicas on the same machine divide its GPUs equally. If torchrun has already started several processes on this
    machine, each is one process.
    """
    launched = cluster.source == TORCHRUN and cluster.on_this_machine > 1
    return 1 if launched or not ENGINES[engine].one_device_per_process else per_device(cluster)


def per_device(cluster: Cluster) -> int:
    """Return the number of this replica's devices; 1 without accelerators."""
    here = cluster.accelerators
    if here.kind == "virtual":
        return here.count
    return max(1, here.count // cluster.on_this_machine) if here.kind == "gpu" else 1


def with_processes(job: JobConfig, environment: Mapping[str, str]) -> JobConfig:
    """Return the job of this process; a child process learns the number of processes from its environment."""
    if not environment.get(PROCESSES_VARIABLE):
        return job
    plan = job.plan.model_copy(update={"processes": int(environment[PROCESSES_VARIABLE])})
    return job.model_copy(update={"plan": plan})


def run(config: str, job: JobConfig, cluster: Cluster, processes: int, stop: StopRequest) -> int:
    """Train in `processes` child processes with the replica's `config`; return this replica's exit status.

    The children end with this process. The first one's output is passed through; another one's only if it failed.

    Raises:
        UserError: The batch size is not divisible by the number of processes.
    """
    check_even_split(job.train, cluster.world_size, processes)
    command = [sys.executable, "-m", "slipway.trainer", "--config", config]
    with stop.deferred():
        return supervise(command, cluster, processes, lambda: stop.requested, _keep)


def supervise(
    command: Sequence[str],
    cluster: Cluster,
    processes: int,
    stop_requested: Callable[[], bool],
    on_line: Callable[[str], object] | None,
) -> int:
    """Run `command` in `processes` child processes, which end with this one; return this replica's exit status.

    Args:
        command: The program and its arguments.
        cluster: The job's replicas, of which this process is one.
        processes: Number of child processes.
        stop_requested: Called at every poll; whether this process was asked to stop.
        on_line: Receives the output of all children but the first, line by line; the last lines of one that failed are
            printed. None: their output is this process's own, as the first one's is.
    """
    with contextlib.ExitStack() as ended:
        if cluster.world_size == 1:
            rendezvous = ("127.0.0.1", ended.enter_context(Ports(1))[0])
        else:
            rendezvous = cluster.tasks[0].host_and_port
        children = ended.enter_context(Children())
        for number in range(processes):
            environment = environment_of(os.environ, cluster, processes, number, rendezvous)
            output = on_line if number else None
            children.all.append(Child(str(number), command, environment, output, fork=can_run(command)))
        failed = children.wait(stop_requested)
    if not failed:
        return 0
    cause = min(failed, key=lambda child: exit_codes.root_cause_rank(child.status))
    if not exit_codes.can_restart(cause.status):
        if cause.tail:
            print("\n".join(cause.tail), file=sys.stderr, flush=True)
    elif cause.status not in (exit_codes.STOPPED, exit_codes.PEER_LOST):
        how = exit_codes.describe(cause.status)
        logger.error("the process of device %s of this replica %s", cause.name, how)
    return cause.status


def _keep(_line: str) -> None:
    """Do not pass on a line; it stays in the child's `tail`."""


def environment_of(
    environment: Mapping[str, str], cluster: Cluster, processes: int, number: int, rendezvous: tuple[str, int]
) -> dict[str, str]:
    """Return the environment for device `number`'s process: torchrun's variables, of a job without restarts.

    They replace the replica's own variables, unless the replica has only this process. See `_start_workers` in
    PyTorch's torch/distributed/elastic/agent/server/local_elastic_agent.py; there is no agent's store, so rank 0 opens
    the port.
    """
    kept = dict(environment)
    if processes > 1:
        kept = {name: value for name, value in environment.items() if name not in ("TF_CONFIG", "CLUSTER_SPEC")}
        if cluster.accelerators.kind == "virtual":
            kept[VIRTUAL_DEVICES_VARIABLE] = "1"
    rank, size = str(cluster.rank * processes + number), str(cluster.world_size * processes)
    machine = str(cluster.rank // cluster.on_this_machine)
    return kept | {
        PROCESSES_VARIABLE: str(processes),
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": str(cluster.local_rank * processes + number),
        "LOCAL_WORLD_SIZE": str(cluster.on_this_machine * processes),
        "GROUP_RANK": machine,
        "GROUP_WORLD_SIZE": str(cluster.world_size // cluster.on_this_machine),
        "NODE_RANK": machine,  # not torchrun's, but Lightning's and others'
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": rendezvous[0],
        "MASTER_PORT": str(rendezvous[1]),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environment.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
