"""Launch and supervise one training process per device, for engines that train on one device per process.

The replica's initial process becomes their parent: it takes part in the rendezvous but does not train. Its child
processes read their ranks from torchrun's variables.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from slipway.trainer.config import JobConfig
from slipway.trainer.data.assignment import check_shared_evenly
from slipway.trainer.distributed.accelerators import VIRTUAL_DEVICES_VARIABLE
from slipway.trainer.distributed.cluster import TORCHRUN, Cluster
from slipway.trainer.distributed.ports import Ports
from slipway.trainer.distributed.signals import EXIT_CODE, PEER_LOST_EXIT_CODE, StopRequest
from slipway.trainer.engines.table import ENGINES

POLL_SECONDS = 0.05
# A failing process often makes others fail too: the root cause is chosen among those that exit within this time.
BLAME_SECONDS = 1.0
# Grace period before SIGKILL, in seconds: a checkpoint may be half-written.
GRACE_SECONDS = 10.0
KEPT_LINES = 400
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl

logger = logging.getLogger(__name__)


def count(engine: str, cluster: Cluster) -> int:
    """Return the number of training processes for this replica: one, or one per device.

    Replicas on the same machine divide its GPUs equally. If torchrun has already started several processes on this
    machine, each is one process.
    """
    here = cluster.accelerators
    launched = cluster.source == TORCHRUN and cluster.on_this_machine > 1
    if launched or not ENGINES[engine].one_device_per_process:
        return 1
    if here.kind == "virtual":
        return here.count
    return max(1, here.count // cluster.on_this_machine) if here.kind == "gpu" else 1


def run(job: JobConfig, cluster: Cluster, processes: int, stop: StopRequest) -> int:
    """Train in `processes` child processes; return this replica's exit status.

    The children end with this process. The first one's output is passed through; another one's only if it failed.

    Raises:
        UserError: The batch size is not divisible by the number of processes.
    """
    check_shared_evenly(job.train, cluster.world_size, processes)
    plan = job.plan.model_copy(update={"processes": processes})
    command = [
        sys.executable,
        "-m",
        "slipway.trainer",
        "--config",
        job.model_copy(update={"plan": plan}).model_dump_json(),
    ]
    with contextlib.ExitStack() as ended, stop.deferred():
        if cluster.world_size == 1:
            ports = Ports(1)
            ended.callback(ports.close)
            meeting = ("127.0.0.1", ports.numbers[0])
        else:
            meeting = cluster.tasks[0].host_and_port
        children: list[_Child] = []
        ended.callback(lambda: _end(children))
        children.extend(
            _Child(number, command, environment_of(os.environ, cluster, processes, number, meeting))
            for number in range(processes)
        )
        return _watch(children, stop)


class _Child:
    """The training process of one device."""

    def __init__(self, number: int, command: list[str], environment: dict[str, str]) -> None:
        self.number = number
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if number else None,
            stderr=subprocess.STDOUT if number else None,
            text=True,
            errors="replace",
            preexec_fn=die_with_parent(),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._lines.append(line)

    def print_lines(self) -> None:
        """Print the captured output; the first process's output was already passed through."""
        self._reader.join(timeout=5)
        sys.stderr.write("".join(self._lines))
        sys.stderr.flush()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    @property
    def status(self) -> int:
        """The exit status as a shell reports it: 128 + the signal's number after a signal."""
        code = self.process.returncode
        return 128 - code if code < 0 else code


def _watch(children: list[_Child], stop: StopRequest) -> int:
    """Wait until all processes succeed or one fails; return the exit status, after a failure the root cause's."""
    deadline: float | None = None
    asked = False
    while True:
        if stop.requested and not asked:
            asked = True
            for child in children:
                child.signal(signal.SIGTERM)
        codes = [child.process.poll() for child in children]
        if all(code is not None for code in codes):
            break
        if any(codes) and not asked and deadline is None:
            deadline = time.monotonic() + BLAME_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    bad = [child for child in children if child.process.returncode]
    if not bad:
        return 0
    cause = min(bad, key=_innocence)
    if cause.process.returncode < 0:
        how = f"was killed by {signal.Signals(-cause.process.returncode).name}"
        logger.error("the process of device %d of this replica %s", cause.number, how)
    elif cause.status not in (EXIT_CODE, PEER_LOST_EXIT_CODE):
        cause.print_lines()
    return cause.status


def _innocence(child: _Child) -> int:
    """Rank how likely another process caused this one's exit; 0 is an error of its own."""
    return {EXIT_CODE: 2, PEER_LOST_EXIT_CODE: 3}.get(child.status, 1 if child.process.returncode < 0 else 0)


def _end(children: list[_Child]) -> None:
    """Stop the processes still running: SIGTERM first, SIGKILL after the grace period."""
    for child in children:
        child.signal(signal.SIGTERM)
        child.signal(signal.SIGCONT)  # a stopped process does not handle SIGTERM
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.signal(signal.SIGKILL)
            child.process.wait()


def environment_of(
    environment: Mapping[str, str], cluster: Cluster, processes: int, number: int, meeting: tuple[str, int]
) -> dict[str, str]:
    """Return the environment for device `number`'s process: torchrun's variables in place of the replica's own."""
    kept = {name: value for name, value in environment.items() if name not in ("TF_CONFIG", "CLUSTER_SPEC")}
    if cluster.accelerators.kind == "virtual":
        kept[VIRTUAL_DEVICES_VARIABLE] = "1"
    return kept | {
        "RANK": str(cluster.rank * processes + number),
        "WORLD_SIZE": str(cluster.world_size * processes),
        "LOCAL_RANK": str(cluster.local_rank * processes + number),
        "LOCAL_WORLD_SIZE": str(cluster.on_this_machine * processes),
        "MASTER_ADDR": meeting[0],
        "MASTER_PORT": str(meeting[1]),
    }


def die_with_parent() -> Callable[[], None] | None:
    """Return a `preexec_fn` that kills the child when its parent dies; None except on Linux."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None, use_errno=True)

    def ask() -> None:
        library.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)

    return ask
