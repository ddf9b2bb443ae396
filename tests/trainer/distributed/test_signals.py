"""SIGTERM and SIGHUP: stop at once if nothing is lost, else after saving, and at the deadline in any case."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipway.core.errors import ERROR_PREFIX, UserError
from slipway.core.exit_codes import FAILED, PEER_LOST, UNAVAILABLE
from slipway.trainer import __main__ as worker
from slipway.trainer.distributed.rendezvous import ReplicasMissing
from slipway.trainer.distributed.signals import StopRequest
from slipway.trainer.engines.base import PeerLost
from slipway.trainer.failures import storage_unavailable
from tests.trainer.conftest import job

PROGRAM = """
import os, signal, sys, time
from slipway.trainer.distributed import signals as stopping
stopping.DEADLINE_SECONDS, stopping.PROMPT_SECONDS = 2.0, 0.5
stop = stopping.StopRequest()
stop.install()
{body}
"""


LEAVING = """
import runpy
from slipway.trainer.distributed import processes, signals
def stopped(*_):
    raise signals.Stopped
processes.with_processes = stopped
runpy.run_module("slipway.trainer", run_name="__main__", alter_sys=True)
"""


def run(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_it_ends_at_once_when_nothing_is_deferred(name: str) -> None:
    ended = run(f"os.kill(os.getpid(), signal.{name}); print('still here')")
    assert (ended.stdout, ended.returncode) == ("", 143)


def test_deferred_it_is_looked_at_when_it_suits() -> None:
    ended = run(
        "with stop.deferred():\n    os.kill(os.getpid(), signal.SIGTERM)\n    print(stop.requested)\nsys.exit(7)"
    )
    assert (ended.stdout, ended.returncode) == ("True\n", 7)


# A call that, like an engine's, gives Python no chance to run a handler: a lock taken twice.
HANGING = """
lock, library = ctypes.create_string_buffer(128), ctypes.CDLL(None)
threading.Timer(0.2, os.kill, (os.getpid(), signal.{})).start()
with {}:
    library.pthread_mutex_lock(lock), library.pthread_mutex_lock(lock)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a lock of zeros is Linux's")
@pytest.mark.parametrize(
    ("name", "where", "at_least"),
    [
        ("SIGTERM", "stop.deferred()", 2),
        ("SIGHUP", "contextlib.nullcontext()", 0.5),
        ("SIGTERM", "stop.deferred(), stop.at_once()", 0.5),
    ],
    ids=["with something to save", "with nothing to save", "while measuring"],
)
def test_it_ends_in_the_end_also_from_within_a_library(name: str, where: str, at_least: float) -> None:
    start = "import contextlib, ctypes, threading\nprint(time.monotonic(), flush=True)\n"
    ended = run(start + HANGING.format(name, where))
    assert ended.returncode == 143
    assert time.monotonic() - float(ended.stdout) >= at_least, "it had no time to save"


def test_nothing_is_requested_at_first() -> None:
    assert not StopRequest().requested


def test_deferring_ends_with_its_block() -> None:
    stop = StopRequest()
    with stop.deferred():
        stop._handle(15, None)
    with pytest.raises(SystemExit):
        stop._handle(15, None)


def test_at_once_ends_at_once_also_when_the_request_came_earlier() -> None:
    stop = StopRequest()
    with stop.deferred():
        stop._handle(15, None)
        with pytest.raises(SystemExit) as caught, stop.at_once():
            raise AssertionError("not reached")
        assert caught.value.code == 143
        stop._handle(15, None)  # deferred again


@pytest.mark.parametrize(("asked", "status"), [(True, 143), (False, 1)])
def test_a_stop_that_a_library_turned_into_an_error_is_a_stop(
    monkeypatch: pytest.MonkeyPatch, asked: bool, status: int
) -> None:
    def work(_config: str, stop: StopRequest) -> None:
        stop.requested = asked
        raise RuntimeError("original UnavailableError replaced by SystemExit: 143")

    monkeypatch.setattr(worker, "_work", work)
    monkeypatch.setattr(StopRequest, "install", lambda _stop: None)
    assert worker.main(["--config", "{}"]) == status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(errno.EIO, "Input/output error", "/gcs/bucket/data"), UNAVAILABLE),
        (RuntimeError("UNKNOWN: /gcs/bucket/train-00000; Transport endpoint is not connected"), UNAVAILABLE),
        (ReplicasMissing("Some replicas did not connect."), UNAVAILABLE),
        (PeerLost("connection closed"), PEER_LOST),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "train-00000"), FAILED),
        (ValueError("a bug"), FAILED),
        (UserError("A mistake."), FAILED),
    ],
)
def test_only_an_error_that_may_pass_asks_for_another_try(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, status: int
) -> None:
    def work(_config: str, _stop: StopRequest) -> None:
        raise error

    monkeypatch.setattr(worker, "_work", work)
    monkeypatch.setattr(StopRequest, "install", lambda _stop: None)
    assert worker.main(["--config", "{}"]) == status
    # Without it, the restart policy takes the exit code for a custom program's own.
    assert (ERROR_PREFIX in capsys.readouterr().err) == (status == UNAVAILABLE or isinstance(error, UserError))


def test_an_error_of_the_storage_behind_another_one_may_pass() -> None:
    error = RuntimeError("cannot read the data set")
    error.__cause__ = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    assert storage_unavailable(error)


@pytest.mark.parametrize(("environment", "code"), [({"CLUSTER_SPEC": "{}"}, 134), ({}, 143)])
def test_a_replica_translates_its_status_as_it_leaves(environment: dict[str, str], code: int) -> None:
    """`python -m slipway.trainer` itself, asked to stop before it has anything to save."""
    config = job(Path("data"), steps=1, steps_per_epoch=1).model_dump_json()
    command = [sys.executable, "-c", LEAVING, "--config", config]
    ended = subprocess.run(command, env={**os.environ, **environment}, timeout=180, check=False)
    assert ended.returncode == code
