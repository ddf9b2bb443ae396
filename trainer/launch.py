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

from slipway.core import events
from slipway.core.cores import available_cores
from slipway.core.errors import UserError, report
from slipway.core.exit_codes import FAILED, PEER_LOST, TRY_AGAIN, UNAVAILABLE, can_restart, leave, reported
from slipway.core.paths import OUTPUT_VARIABLES
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.distributed import processes, rendezvous
from slipway.trainer.distributed.signals import ASKED_TO_STOP, StopRequest
from slipway.trainer.distributed.verification import verify_machine

PER_DEVICE = "per_device"
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
        verify_machine(os.environ)
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
    watch = rendezvous.meet(cluster, rendezvous.seconds_to_wait(os.environ))
    events.phase("running the training program")

    def stop_requested() -> bool:
        if stop.requested:
            watch.finish()  # the others may leave while this program saves
        return stop.requested

    with stop.deferred():
        status = processes.supervise(program, cluster, number, stop_requested, None)
        if stop.requested:
            logger.info("%s: so was the program, which ended with exit code %d", ASKED_TO_STOP, status)
        if not status:
            watch.close()
        elif not stop.requested and (status == TRY_AGAIN or not can_restart(status)) and _another_is_lost(watch):
            logger.error("the program failed because %s is lost", watch.lost)
            return PEER_LOST
    return status


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
