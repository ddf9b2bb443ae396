"""Ends a training that does nothing for too long: the setting `budget.idle`.

A replica is idle if it has given no sign of life (`slipway.core.idle`: a step, or an evaluation, a save or an export
that is in progress or has ended), its processes have used next to no CPU time and have read and written next to
nothing, and its GPUs report 0 % utilization. The training is idle if all its replicas are, which the chief learns from
their heartbeats. Only on Linux, whose /proc says what processes use.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from slipway.core.errors import UserError, report
from slipway.core.exit_codes import FAILED
from slipway.core.idle import IDLE_VARIABLE, SIGNS_VARIABLE
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.distributed.rendezvous import Watch

# How often a replica is checked in the time that it may be idle.
CHECKS = 20
# Up to so much of one core, and so many bytes per second, an idle process uses: threads that wait, heartbeats.
IDLE_CPU, IDLE_BYTES = 0.01, 100_000
# A check that comes this many times too late means that this process was frozen: what happened is not known.
LATE = 5
PROC = Path("/proc")
GPU_COMMAND = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
GPU_SECONDS = 10.0


@dataclass(frozen=True)
class Usage:
    """What processes have used since the first check: seconds of CPU time, and bytes that they read and wrote."""

    time: float
    cpu: float
    bytes: float


class Processes:
    """What a process (without the thread that calls) and its descendants use; without `root`, the descendants only."""

    def __init__(self, pid: int, *, root: bool) -> None:
        self._pid, self._root = pid, root
        self._before: dict[int, tuple[float, float]] = {}
        self._cpu = self._bytes = 0.0
        self._is_first = True
        self._read = 0  # bytes, for the usage itself

    def usage(self) -> Usage:
        """Return what they have used so far, without what this and other programs of the check use."""
        parents, cpu = {}, {}
        for entry in PROC.iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):  # it has ended
                    fields = self._text(entry / "stat").rpartition(")")[2].split()
                    parents[int(entry.name)] = int(fields[1])
                    # With the time of the children that it has waited for.
                    cpu[int(entry.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        now = {pid: (cpu[pid], self._bytes_of(pid)) for pid in parents if self._is_descendant(pid, parents)}
        for pid, (seconds, size) in now.items():
            before = self._before.get(pid, (0.0, 0.0))
            self._cpu += 0.0 if self._is_first else max(0.0, seconds - before[0])
            self._bytes += 0.0 if self._is_first else max(0.0, size - before[1])
        self._before, self._is_first = now, False
        own_cpu, own_bytes = (time.thread_time(), self._read) if self._root else (0.0, 0)
        return Usage(time.monotonic(), self._cpu - own_cpu, self._bytes - own_bytes)

    def _is_descendant(self, pid: int, parents: Mapping[int, int]) -> bool:
        if pid == self._pid:
            return self._root
        while pid in parents and pid != self._pid:
            pid = parents[pid]
        return pid == self._pid

    def _bytes_of(self, pid: int) -> float:
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = self._text(PROC / str(pid) / "io").splitlines()
            return float(sum(int(line.split()[1]) for line in lines[:2]))  # rchar and wchar
        return 0.0

    def _text(self, path: Path) -> str:
        text = path.read_text()
        self._read += len(text)
        return text


class IdleCheck:
    """Checks in a thread whether this replica, and with it the training, is idle for `seconds`.

    Args:
        seconds: How long it may be.
        cluster: The replicas.
        watch: The connections to the others.
        on_idle: Is called with the error once all replicas are idle, on the chief.
        root: Whether this process itself works; otherwise, only its descendants count.
    """

    def __init__(
        self, seconds: float, cluster: Cluster, watch: Watch, on_idle: Callable[[UserError], object], *, root: bool
    ) -> None:
        self._seconds, self._cluster, self._watch, self._on_idle = seconds, cluster, watch, on_idle
        self._processes = Processes(os.getpid(), root=root)
        self._usages: deque[Usage] = deque()
        self._gpu_at = self._began = time.monotonic()
        self._gpu_command = shutil.which(GPU_COMMAND[0])
        self._signs = tempfile.NamedTemporaryFile(prefix="slipway-signs-")  # noqa: SIM115
        os.environ[SIGNS_VARIABLE] = self._signs.name
        threading.Thread(target=self._run, name="idle", daemon=True).start()

    def _run(self) -> None:
        while PROC.is_dir():
            time.sleep(self._seconds / CHECKS)
            self._watch.is_idle = self.is_idle()
            if self._watch.is_idle and self._watch.all_idle():
                self._on_idle(self.error())
                return

    def is_idle(self) -> bool:
        """Return whether the replica has done nothing for as long as it may."""
        usage = self._processes.usage()
        usages = self._usages
        if usages and usage.time - usages[-1].time > LATE * self._seconds / CHECKS:
            usages.clear()
        usages.append(usage)
        while len(usages) > 1 and usages[1].time <= usage.time - self._seconds:
            usages.popleft()
        first, busy, _ = usages[0], *self._sign()
        if usage.cpu - first.cpu > IDLE_CPU * self._seconds or usage.bytes - first.bytes > IDLE_BYTES * self._seconds:
            return False
        if self._gpu_command and self._gpus_work():
            self._gpu_at = usage.time
        last = max(busy, self._gpu_at, first.time)
        return usage.time - last >= self._seconds * (1 - 1 / CHECKS)

    def error(self) -> UserError:
        """Return the error that ends the training."""
        at, text = self._sign()
        first, last = self._usages[0], self._usages[-1]
        when = datetime.fromtimestamp(time.time() - time.monotonic() + at, UTC)
        idle, window = last.time - at, last.time - first.time
        gpus = " and no GPU" if self._gpu_command else ""
        return UserError(
            f"The training was idle: {_name(self._cluster)} did nothing for {idle:,.0f} s, nor did another replica. "
            f"The last sign of life was {text}, at {when:%Y-%m-%d %H:%M:%S} UTC; in the last {window:,.0f} s "
            f"it used {max(0.0, last.cpu - first.cpu):.1f} s of CPU time{gpus}.",
            setting="budget.idle",
            value=f"{self._seconds:g} s",
            fix="find out what it waits for, then resume it; --set budget.idle=null turns this off",
        )

    def _sign(self) -> tuple[float, str]:
        """Return the time of the last sign of life, now if something is in progress, and what it was."""
        try:
            record = json.loads(Path(self._signs.name).read_text())
        except (OSError, ValueError):  # none yet, or one that is being written
            return self._began, "its start"
        return (time.monotonic() if record["busy"] else record["time"]), str(record["text"])

    def _gpus_work(self) -> bool:
        """Return whether a GPU is used, or does not say."""
        try:
            output = subprocess.run(GPU_COMMAND, capture_output=True, text=True, timeout=GPU_SECONDS, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return False
        return any(line.strip() != "0" for line in output.splitlines())


def _name(cluster: Cluster) -> str:
    """Return this replica's name as in Vertex AI's logs, such as workerpool0-0."""
    task = json.loads(os.environ.get("CLUSTER_SPEC", "{}")).get("task")
    return f"{task['type']}-{task['index']}" if task else str(cluster.task)


def watch_for_idleness(cluster: Cluster, watch: Watch, *, root: bool = True) -> None:
    """End this process, and with it the training, once that is idle for as long as its environment says, if it does."""
    seconds = os.environ.pop(IDLE_VARIABLE, None)  # this process's children are part of the replica
    if seconds:
        IdleCheck(float(seconds), cluster, watch, _end, root=root)


def _end(error: UserError) -> None:
    report(error)
    os._exit(FAILED)
