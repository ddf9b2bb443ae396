"""SIGTERM: at once where nothing is lost, later where all can be saved, and in the end whatever hangs."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from trainer.stopping import StopRequest

PROGRAM = """
import os, signal, sys, time
from trainer import stopping
stopping.DEADLINE_SECONDS = 0.5
stop = stopping.StopRequest()
stop.install()
{body}
"""


def run(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM.format(body=body)], capture_output=True, text=True, timeout=30)


def test_it_ends_at_once_when_nothing_is_deferred() -> None:
    assert run("os.kill(os.getpid(), signal.SIGTERM); print('still here')").stdout == ""
    assert run("os.kill(os.getpid(), signal.SIGTERM)").returncode == 143


def test_deferred_it_is_looked_at_when_it_suits() -> None:
    ended = run(
        "with stop.deferred():\n    os.kill(os.getpid(), signal.SIGTERM)\n    print(stop.requested)\nsys.exit(7)"
    )
    assert (ended.stdout, ended.returncode) == ("True\n", 7)


def test_it_ends_in_the_end_also_from_within_a_library() -> None:
    # A call that, like an engine's, gives Python no chance to run a handler: a lock held in C.
    started = time.monotonic()
    ended = run(
        "import ctypes\n"
        "with stop.deferred():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    while True: ctypes.CDLL(None).usleep(10**6)\n"
    )
    assert ended.returncode == 143
    assert time.monotonic() - started < 20


def test_nothing_is_requested_at_first() -> None:
    assert not StopRequest().requested


def test_deferring_ends_with_its_block() -> None:
    stop = StopRequest()
    with stop.deferred():
        stop._handle(15, None)
    with pytest.raises(SystemExit):
        stop._handle(15, None)
