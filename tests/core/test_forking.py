"""A fork runs a module like a new interpreter does."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAM = """
import atexit, json, os, signal, sys, tempfile
atexit.register(lambda: print("at the end"))
import changing
print(json.dumps({
    "argv": sys.argv[1:], "value": changing.VALUE, "name": __name__, "set": os.environ.get("SET"),
    "unset": "UNSET" in os.environ, "group": os.getpgid(0) == os.getpid(), "input": sys.stdin.read(),
    "handler": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    "temporary": tempfile.gettempdir(),
    "shown": open("/proc/self/cmdline").read().split("\\0")[:3] if os.path.exists("/proc") else None,
}))
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "raise":
    raise ValueError("wrong")
sys.exit(int(sys.argv[1]))
"""
FORKING = """
import json, os, signal, sys, tempfile
from pathlib import Path
from slipway.core import forking
from slipway.core.supervision import Child, Children

signal.signal(signal.SIGTERM, lambda *_: None)
command = [sys.executable, "-m", "program"]
assert not forking.can_run(command)
forking.announce("program")
assert forking.can_run(command) and not forking.can_run(["python", "-m", "other"])
os.environ["UNSET"] = "1"
assert tempfile.gettempdir() != os.getcwd()
environment = {**os.environ, "SET": "1", "TMPDIR": os.getcwd()}
del environment["UNSET"]
ended = []
folder = tempfile.TemporaryDirectory()
for number, argument in enumerate(["0", "3", "kill", "raise"]):
    Path("changing.py").write_text(f"VALUE = {number}")
    child = Child(argument, [*command, argument], environment, lambda line: None, own_group=True, fork=True)
    assert forking.can_run(command), "its output is not read yet: no thread hinders the next fork"
    child.finish()
    ended.append((child.status, list(child.tail)))
    assert Path(folder.name).exists(), "it is this process's"
print(json.dumps(ended))
"""


def test_a_fork_is_like_a_new_interpreter(tmp_path: Path):
    """Its own arguments, environment, signal handlers, output, exit status and fresh imports of the user's modules."""
    (tmp_path / "program.py").write_text(PROGRAM)
    code = textwrap.dedent(FORKING)
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert [status for status, _ in ended] == [0, 3, 137, 1]
    for number, (_, lines) in enumerate(ended):
        told = json.loads(lines[0])
        assert told["argv"] == [("0", "3", "kill", "raise")[number]]
        assert told["value"] == number, "the user's module was imported anew"
        assert (told["name"], told["set"], told["unset"], told["group"]) == ("__main__", "1", False, True)
        assert told["handler"]
        assert told["input"] == ""
        assert told["temporary"] == str(tmp_path)
        assert told["shown"] in (None, [sys.executable, "-m", "program"])
    assert ended[0][1][1:] == ["at the end"]
    assert len(ended[2][1]) == 1
    assert "ValueError: wrong" in ended[3][1]


IN_SESSION = """
import os, sys
from slipway.core import forking

forking.announce("program")
reading, writing = os.pipe()
kept, other = os.open("kept", os.O_RDWR | os.O_CREAT), os.open("other", os.O_RDWR | os.O_CREAT)
fork = forking.start_session(
    [sys.executable, "-m", "program", str(kept), str(other), str(writing)], os.environ, (reading, 1, 2), [kept]
)
assert isinstance(fork, forking.Forked) and fork.poll() is None
os.write(writing, b"asked")
os.close(writing)
assert fork.wait() == fork.returncode == 0
"""
SESSION_PROGRAM = """
import os, sys
kept, other, writing = map(int, sys.argv[1:])
os.write(kept, sys.stdin.buffer.read())
os.write(other, b"lost")
os.write(writing, b"lost")
print(os.getsid(0) == os.getpid(), os.getppid() != os.getsid(0))
"""


def test_a_fork_in_a_session_of_its_own_has_its_streams_and_the_descriptors_that_it_keeps(tmp_path: Path):
    """It does not hold the other end of its own stdin, which would never end."""
    (tmp_path / "program.py").write_text(SESSION_PROGRAM)
    done = subprocess.run(
        [sys.executable, "-B", "-c", IN_SESSION], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\n", "")
    assert (tmp_path / "kept").read_text() == "asked"
    assert (tmp_path / "other").read_text() == ""


COLLECTED = """
import os, sys
import psutil
from slipway.core import forking

forking.announce("program")
fork = forking.start_session([sys.executable, "-m", "program"], os.environ, (0, 1, 2), [])
psutil.wait_procs([psutil.Process(fork.pid)])
assert fork.wait() == fork.poll() == 1
"""


def test_a_fork_whose_status_was_collected_elsewhere_has_failed(tmp_path: Path):
    """As psutil does when the session of a run is stopped."""
    (tmp_path / "program.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-B", "-c", COLLECTED], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
