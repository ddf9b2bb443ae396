"""Child processes that succeed or fail together, and reserved ports on loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from slipway.core import supervision
from slipway.core.supervision import Child, Children, Ports


def start(children: Children, name: str, code: str) -> Child:
    """A child that waits for a line from its program before the next is started."""
    ready = threading.Event()
    program = f"import os, signal, sys, time\n{code}"
    child = Child(name, [sys.executable, "-c", program], os.environ, lambda _: ready.set(), own_group=True)
    children.all.append(child)
    child.read()
    assert ready.wait(60)
    return child


FOREVER = "print('ready', flush=True); time.sleep(1000)"


def test_the_wait_ends_when_all_have_succeeded_with_their_last_lines() -> None:
    with Children() as children:
        for number in range(2):
            start(children, str(number), f"print('first', flush=True); print({number})")
        assert children.wait(lambda: False) == []
    assert [list(child.tail) for child in children.all] == [["first", "0"], ["first", "1"]]


def test_the_states_of_a_progress_bar_are_folded() -> None:
    bar = "import sys\nfor step in range(100):\n    sys.stderr.write(f'\\r{step}%')\nsys.stderr.write('\\r100%\\n')"
    lines: list[str] = []
    with Children() as children:
        children.all.append(
            Child("0", [sys.executable, "-c", f"print('a\\r\\n', flush=True)\n{bar}"], {}, lines.append)
        )
        assert children.wait(lambda: False) == []
    assert lines[:2] + lines[-1:] == ["a", "", "100%"]
    assert len(lines) <= 5, "the last state, and one every few seconds"


def test_those_that_fail_by_themselves_are_returned_in_order_and_the_rest_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    with Children() as children:
        healthy, second = (start(children, name, FOREVER) for name in ("healthy", "second"))
        first = start(children, "first", "print('ready', flush=True); sys.exit(3)")
        polls_after_first = 0

        def meanwhile() -> bool:
            """Kill the second one a poll after the first one's end was seen; then the time to blame is over."""
            nonlocal polls_after_first
            polls_after_first += not first.is_running
            if polls_after_first == 2:
                second.signal(signal.SIGKILL)
            if not second.is_running:
                now[0] += supervision.BLAME_SECONDS + 1
            return False

        with monkeypatch.context() as clock:
            clock.setattr(supervision.time, "monotonic", lambda: now[0])
            failed = children.wait(meanwhile)
        assert [(child.name, child.status) for child in failed] == [("first", 3), ("second", 137)]
        assert healthy.is_running
    assert healthy.status == 143


def test_a_stop_request_also_ends_the_frozen() -> None:
    """It is continued, so that it ends by itself."""
    with Children() as children:
        start(children, "frozen", FOREVER).signal(signal.SIGSTOP)
        (failed,) = children.wait(lambda: True)
        assert failed.status == 143


def test_those_that_do_not_listen_to_a_stop_request_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "GRACE_SECONDS", 0.5)
    with Children() as children:
        start(children, "deaf", f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {FOREVER}")
        (failed,) = children.wait(lambda: True)
        assert failed.status == 137


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


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, subprocess raises the error")
@pytest.mark.parametrize(
    ("command", "status", "text"),
    [("no-such-command", 127, "No such file or directory"), (os.devnull, 126, "Permission denied")],
)
def test_a_command_that_cannot_be_run_ends_as_in_a_shell(command: str, status: int, text: str) -> None:
    child = Child("missing", [command], {}, lambda _: None)
    child.finish()
    assert (child.status, list(child.tail)) == (status, [f"{command}: {text}"])


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
