"""Child processes that succeed or fail together, and reserved ports on loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from slipway.core import supervision
from slipway.core.supervision import Child, Children, Ports


def start(children: Children, name: str, code: str) -> Child:
    """A child that waits for a line from its program before the next is started."""
    ready = threading.Event()
    program = f"import os, signal, sys, time\n{code}"
    child = Child(name, [sys.executable, "-c", program], os.environ, lambda _: ready.set(), own_group=True)
    children.all.append(child)
    assert ready.wait(10)
    return child


FOREVER = "print('ready', flush=True); time.sleep(60)"


def test_the_wait_ends_when_all_have_succeeded_with_their_last_lines() -> None:
    with Children() as children:
        for number in range(2):
            start(children, str(number), f"print('first', flush=True); print({number})")
        assert children.wait(lambda: False) == []
    assert [list(child.tail) for child in children.all] == [["first", "0"], ["first", "1"]]


def test_those_that_fail_by_themselves_are_returned_in_order_and_the_rest_is_stopped(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    then = f"\nwhile not os.path.exists({str(ended)!r}): time.sleep(0.01)\ntime.sleep(0.5)\nos.kill(os.getpid(), 9)"
    with Children() as children:
        start(children, "healthy", FOREVER)
        start(children, "second", f"print('ready', flush=True){then}")
        start(children, "first", f"print('ready', flush=True); open({str(ended)!r}, 'w'); sys.exit(3)")
        failed = children.wait(lambda: False)
        assert [(child.name, child.status) for child in failed] == [("first", 3), ("second", 137)]
        assert children.all[0].is_running
    assert children.all[0].status == 143


def test_a_stop_request_also_ends_the_frozen_and_those_that_do_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "GRACE_SECONDS", 1.0)
    with Children() as children:
        start(children, "frozen", FOREVER).signal(signal.SIGSTOP)
        start(children, "deaf", f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {FOREVER}")
        started = time.monotonic()
        failed = children.wait(lambda: True)
        assert {child.name: child.status for child in failed} == {"frozen": 143, "deaf": 137}
        assert time.monotonic() - started < 5


FORKED = """
import os, sys
from slipway.core.supervision import Child
os.register_at_fork(after_in_child=os.abort)  # as gRPC's handlers do now and then, in C
child = Child("quick", ["sh", "-c", "echo $PPID; yes | head -n 1"], os.environ, lambda _: None, own_group=True)
child.finish()
print(child.status, list(child.tail) == [str(os.getpid()), "y"])
"""


def test_a_child_starts_without_the_fork_handlers_of_its_parents_libraries() -> None:
    """It is its parent's own child, and has the signal handlers that other programs expect."""
    ended = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("0 True\n", "")


def test_ports_are_kept_from_others_and_let_our_servers_in():
    with Ports(3) as ports:
        assert len(set(ports)) == 3
        with socket.socket() as stranger, pytest.raises(OSError):
            stranger.bind(("127.0.0.1", ports[0]))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("127.0.0.1", ports[0]))
            server.listen()
            socket.create_connection(("127.0.0.1", ports[0]), timeout=2).close()
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", ports[0]))
