"""Start a custom training program in a replica: `python -m slipway.trainer.launch [--processes N] MODULE ARGUMENT…`.

The program runs as `python -m MODULE ARGUMENT…`, in one process or, with `--processes per_device`, in one per device,
with the variables that torchrun sets. This process waits for the other replicas and watches them; it passes SIGTERM on
to the program. Its exit status says whether another attempt may succeed:

- The program's own, as translated by `slipway.core.exit_codes` for Vertex AI.
- 138 if the program failed, or its framework aborted it, because another replica was lost, which it cannot know itself.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slipway.core import events
from slipway.core.cores import available_cores
from slipway.core.errors import UserError, report
from slipway.core.exit_codes import FAILED, PEER_LOST, TRY_AGAIN, UNAVAILABLE, can_restart, leave, reported
from slipway.core.idle import IDLE_VARIABLE
from slipway.core.paths import OUTPUT_VARIABLES
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.distributed import processes, rendezvous
from slipway.trainer.distributed.accelerators import VISIBLE_GPUS_VARIABLE, first_gpus
from slipway.trainer.distributed.idle import IdleCheck
from slipway.trainer.distributed.signals import ASKED_TO_STOP, StopRequest
from slipway.trainer.distributed.verification import verify_program

PER_DEVICE = "per_device"
# Linux's tables of sockets, the state of those that listen, and how often they are read.
TCP_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LISTENING = "0A"
LISTENER_SECONDS = 0.25
# How long after the program's failure another replica is still found to be the cause. It is lost once its own launcher
# has ended, which first stops the processes of its other devices.
BLAME_SECONDS = 3.0

logger = logging.getLogger("slipway.trainer")


def command(module: str, count: int | str) -> list[str]:
    """Return the command that starts `module` in `count` processes per replica, a number or `PER_DEVICE`."""
    options = ["--processes", str(count)] if count != 1 else []
    return ["python", "-m", "slipway.trainer.launch", *options, module]


def expanded(argument: str, environment: Mapping[str, str]) -> str:
    """Return an argument with the run's folders in place of $(AIP_MODEL_DIR) and the other output variables."""
    for name in OUTPUT_VARIABLES:
        argument = argument.replace(f"$({name})", environment.get(name, f"$({name})"))
    return argument


def main(arguments: Sequence[str]) -> int:
    """Run the program and return this replica's exit status."""
    count = "1"
    if arguments[0] == "--processes":
        _, count, *arguments = arguments
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    stop = StopRequest()
    stop.install()
    program = [sys.executable, "-m", *(expanded(argument, os.environ) for argument in arguments)]
    try:
        verify_program(os.environ)
        if clusters.slice_hosts(os.environ) > 1:  # hosts that know each other only through the TPU's runtime
            os.execv(sys.executable, program)
        return _run(program, count, stop)
    except UserError as error:
        report(error)
        return UNAVAILABLE if isinstance(error, rendezvous.ReplicasMissing) else FAILED


def _run(program: Sequence[str], count: str, stop: StopRequest) -> int:
    cluster = clusters.read(os.environ)
    number = processes.per_device(cluster) if count == PER_DEVICE else int(count)
    logger.info("%s", cluster.describe())
    if not cluster.is_chief:
        events.mute()
    if cluster.world_size > 1:
        events.phase(f"waiting for all {cluster.world_size} replicas")
    together = cluster.on_this_machine * number
    if together > 1:  # as torchrun, or the processes' threads would compete for the cores
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // together)))
    if cluster.tasks[0].host_and_port[0] in ("127.0.0.1", "localhost", ""):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's name may not resolve
    watch = rendezvous.join(cluster, rendezvous.seconds_to_wait(os.environ))
    events.phase("running the training program")
    errors: list[UserError] = []
    if seconds := os.environ.pop(IDLE_VARIABLE, None):  # the program is part of the replica
        IdleCheck(float(seconds), cluster, watch, errors.append, root=False)

    # Each replica is a machine for its program, as in the cloud, also where they are on one.
    os.environ |= own_gpus(os.environ, cluster)
    machine = replace(cluster, local_rank=0, on_this_machine=1)
    joined = _Listener(cluster)

    def stop_requested() -> bool:
        joined.check()
        if stop.requested:
            watch.finish()  # the others may leave while this program saves
        return stop.requested or bool(errors)

    with stop.deferred():
        status = processes.supervise(program, machine, number, stop_requested, None)
        if errors:
            raise errors[0]
        if stop.requested:
            logger.info("%s: so was the program, which ended with exit code %d", ASKED_TO_STOP, status)
        if not status:
            watch.close()
            if not joined.found:
                events.message(
                    f"{cluster.world_size} replicas ran, and none joined the other: the program opened no port at "
                    f"{joined.address}, the chief's address in CLUSTER_SPEC"
                )
        elif not stop.requested and (status == TRY_AGAIN or not can_restart(status)) and _another_is_lost(watch):
            logger.error("the program failed because %s is lost", watch.lost)
            return PEER_LOST
    return status


def own_gpus(environment: Mapping[str, str], cluster: clusters.Cluster) -> dict[str, str]:
    """Return the variables that let replicas on one machine see different GPUs of it; none if it has too few."""
    count = processes.per_device(cluster)
    together, here = cluster.on_this_machine, cluster.accelerators
    if together == 1 or here.kind != "gpu" or here.count < count * together:
        return {}
    seen = first_gpus(environment, here.count)
    first = cluster.local_rank * count
    return seen | {VISIBLE_GPUS_VARIABLE: ",".join(seen[VISIBLE_GPUS_VARIABLE].split(",")[first : first + count])}


class _Listener:
    """Whether this replica's program has listened at its address in the cluster, where the others would join it.

    `found` is True where that cannot be observed or needs not be: without /proc, and except on the chief of several.
    """

    def __init__(self, cluster: clusters.Cluster) -> None:
        host, port = cluster.tasks[0].host_and_port
        self.address = f"{host}:{port}"
        self.found = not (cluster.is_chief and cluster.world_size > 1 and TCP_TABLES[0].exists())
        self._ending = f":{port:04X}"
        self._next = 0.0

    def check(self) -> None:
        """Read the machine's listening sockets, at most a few times per second."""
        if self.found or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LISTENER_SECONDS
        rows = [row.split() for table in TCP_TABLES if table.exists() for row in table.read_text().splitlines()[1:]]
        self.found = any(row[1].endswith(self._ending) and row[3] == LISTENING for row in rows)


def _another_is_lost(watch: rendezvous.Watch) -> bool:
    """Return whether another replica is lost, or will be in a moment."""
    deadline = time.monotonic() + BLAME_SECONDS
    while watch.has_others and watch.lost is None and time.monotonic() < deadline:
        time.sleep(rendezvous.POLL_SECONDS)
    return watch.lost is not None


if __name__ == "__main__":
    status = main(sys.argv[1:])
    if (code := reported(status, os.environ)) != status:
        logger.info("exit code %d asks Vertex AI for another try", code)
    sys.stdout.flush()
    sys.stderr.flush()
    leave(status)
