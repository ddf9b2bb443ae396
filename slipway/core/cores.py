"""The CPU cores of this process."""

from __future__ import annotations

import os

_sharing = 1  # processes that divide the cores, where the system cannot confine a process to some of them


def available_cores() -> int:
    """Return the number of cores that this process may use, which its affinity mask may limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return max(1, (os.cpu_count() or 1) // _sharing)


def take_part(number: int, processes: int) -> None:
    """Confine this process to its part of the cores, which are divided evenly between `processes` processes.

    Processes that train together wait for each other in every step: with cores of their own, none is interrupted by
    another one's threads. If there are fewer cores than processes, each process gets one. Threads that run already keep
    all cores: call this before importing libraries that start threads.

    Args:
        number: This process's number among them, from 0.
        processes: Number of processes on this machine.
    """
    global _sharing
    if not hasattr(os, "sched_setaffinity"):
        _sharing = processes
        return
    cores = sorted(os.sched_getaffinity(0))
    first = number * len(cores) // processes
    end = max(first + 1, (number + 1) * len(cores) // processes)
    os.sched_setaffinity(0, cores[first:end])
