"""Exit statuses of a job's processes as a shell or a container reports them, and what they tell about a failure.

A replica ends with `leave`, which translates its status for Vertex AI; everywhere else, and between the processes of
one replica, statuses are as defined here.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import NoReturn

FAILED = 1
# Something outside this process was unavailable, such as the storage; another attempt may succeed (EX_TEMPFAIL).
UNAVAILABLE = 75
# A signal ended the process. Kubernetes training operators retry exit codes from here on.
SIGNALLED = 128
# Another replica is lost; this one is healthy and the job can be restarted.
PEER_LOST = 138
# SIGTERM or SIGHUP was received, and a checkpoint saved if there was something to save.
STOPPED = SIGNALLED + signal.SIGTERM
# The kernel or the cluster ended the process: no memory is left, or its machine is lost.
SIGKILLED = SIGNALLED + signal.SIGKILL
# What Vertex AI retries of the exit codes of a custom container is 134 and 139; any other than 0 ends the job for good.
# https://cloud.google.com/vertex-ai/docs/training/understanding-training-service (table of common errors)
TRY_AGAIN = SIGNALLED + signal.SIGABRT

# Set by Slipway's own cluster, whose processes otherwise have the environment variables of Vertex AI.
LOCAL_CLUSTER_VARIABLE = "SLIPWAY_LOCAL_CLUSTER"
# Vertex AI acts on the first failure that it notices: a replica that only lost another one leaves after the culprit.
CULPRIT_FIRST_SECONDS = 10.0

_KILLED_BY = {SIGNALLED + number: number.name for number in signal.Signals if SIGNALLED + number != PEER_LOST}


def status_of(returncode: int) -> int:
    """Return the status for a return code of `subprocess`, which is negative after a signal."""
    return SIGNALLED - returncode if returncode < 0 else returncode


def can_restart(status: int) -> bool:
    """Return whether another attempt may succeed; an error of the process's own would recur."""
    return status >= SIGNALLED


def root_cause_rank(status: int) -> int:
    """Rank how likely another process caused this failure; of several that failed, the one with the lowest did."""
    if not can_restart(status):
        return 0
    return {STOPPED: 2, PEER_LOST: 3}.get(status, 1)


def describe(status: int) -> str:
    """Return a verb phrase: "was killed by SIGKILL", "was stopped by SIGTERM", "failed with exit code 1"."""
    if status == STOPPED:
        return "was stopped by SIGTERM"
    if status == TRY_AGAIN:
        return f"asked for another try with exit code {status}, or was killed by {_KILLED_BY[status]}"
    return f"was killed by {_KILLED_BY[status]}" if status in _KILLED_BY else f"failed with exit code {status}"


def on_vertex(environment: Mapping[str, str]) -> bool:
    """Return whether Vertex AI started this process; it sets CLUSTER_SPEC on every replica of a custom job."""
    return bool(environment.get("CLUSTER_SPEC")) and not environment.get(LOCAL_CLUSTER_VARIABLE)


def reported(status: int, environment: Mapping[str, str]) -> int:
    """Return the exit code for whatever restarts the process: 134 on Vertex AI if another attempt may succeed.

    Signals that killed a child process keep their own: on Vertex AI, running out of memory (SIGKILL) is permanent.
    """
    again = status in (UNAVAILABLE, PEER_LOST, STOPPED)
    return TRY_AGAIN if again and on_vertex(environment) else status


def leave(status: int) -> NoReturn:
    """End this process at once with the exit code for `status`.

    Not sys.exit: TensorFlow's server would wait for replicas that may be lost, PyTorch takes seconds to shut down, and
    a thread that the model builder left running would keep the replica alive.
    """
    if status == PEER_LOST and on_vertex(os.environ):
        time.sleep(CULPRIT_FIRST_SECONDS)
    os._exit(reported(status, os.environ))
