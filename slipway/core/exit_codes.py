"""Exit statuses of a job's processes as a shell or a container reports them, and what they tell about a failure."""

from __future__ import annotations

import signal

FAILED = 1
# A signal ended the process. Kubernetes training operators retry exit codes from here on.
SIGNALLED = 128
# Another replica is lost; this one is healthy and the job can be restarted.
PEER_LOST = 138
# SIGTERM or SIGHUP was received, and a checkpoint saved if there was something to save.
STOPPED = SIGNALLED + signal.SIGTERM

_KILLED_BY = {SIGNALLED + number: number.name for number in signal.Signals if SIGNALLED + number != PEER_LOST}


def status_of(returncode: int) -> int:
    """Return the status for a return code of `subprocess`, which is negative after a signal."""
    return SIGNALLED - returncode if returncode < 0 else returncode


def can_restart(status: int) -> bool:
    """Return whether another attempt may succeed; an error of the process's own would recur."""
    return status >= SIGNALLED


def innocence(status: int) -> int:
    """Rank how likely another process caused this failure; of several that failed, the one with the lowest did."""
    if not can_restart(status):
        return 0
    return {STOPPED: 2, PEER_LOST: 3}.get(status, 1)


def describe(status: int) -> str:
    """Return a verb phrase: "was killed by SIGKILL", "was stopped by SIGTERM", "failed with exit code 1"."""
    if status == STOPPED:
        return "was stopped by SIGTERM"
    return f"was killed by {_KILLED_BY[status]}" if status in _KILLED_BY else f"failed with exit code {status}"
