"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from filelock import FileLock

from tests.end_to_end.workspace import FinishedRun, Workspace

# Every Python process of a run adds a line when it starts, and for each name or address elsewhere that it asks for.
WATCHED = """
import os
import sys


def watch(event, arguments):
    where = {"socket.connect": 1, "socket.sendto": 1, "socket.getaddrinfo": 0}.get(event)
    if where is None:
        return
    address = arguments[where]
    host = str(address[0] if isinstance(address, tuple) else address)
    if event == "socket.getaddrinfo" or isinstance(address, tuple):
        if host not in ("localhost", "::1", "None", "") and not host.startswith("127."):
            note(f"{event} {host}")


def note(line):
    with open(os.environ["CONNECTIONS"], "a") as file:
        file.write(f"{line}\\n")


note("started")
sys.addaudithook(watch)
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A finished run of configs/digits.yaml: one for all processes of the test session."""
    root = tmp_path_factory.getbasetemp()
    if root.name.startswith("popen-"):  # a process of pytest-xdist has a folder in the session's
        root = root.parent
    with FileLock(root / "finished.lock"):
        path = root / "finished"
        if not path.exists():
            temporary = root / "finished-temporary"
            temporary.mkdir()
            (root / "watched").mkdir()
            (root / "watched" / "sitecustomize.py").write_text(WATCHED)
            connections = root / "connections.txt"
            paths = os.pathsep.join([str(root / "watched"), *filter(None, [os.environ.get("PYTHONPATH")])])
            watched = {"PYTHONPATH": paths, "CONNECTIONS": str(connections)}
            result = Workspace(path).slipway("run", TMPDIR=str(temporary), **watched)
            told = {"returncode": result.returncode, "stdout": result.stdout, "stderr": result.stderr}
            told["connections"] = connections.read_text().splitlines()
            left = [file.name for file in temporary.iterdir()]
            (root / "finished.json").write_text(json.dumps({**told, "left": left}))
    values = json.loads((root / "finished.json").read_text())
    return FinishedRun(Path(path), **values)
