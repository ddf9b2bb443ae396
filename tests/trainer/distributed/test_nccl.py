"""The environment of gIB reaches the program; without its script, nothing changes and the log says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.pipelines.hardware.catalogue import load
from slipway.trainer.distributed import nccl

TELL = "import json, os, sys; print('told', json.dumps([dict(os.environ), sys.argv[1:]])); sys.exit(7)"
SET = """
echo "gIB is configured"
export NCCL_NET=gIB NCCL_CONF_FILE="$GIB_HOME/nccl.conf"
unset NCCL_PROTO
"""


@pytest.fixture
def gib(tmp_path: Path) -> Path:
    """A folder like /usr/local/gib, with a script and the library that the plugin loads."""
    for name, text in ((nccl.SCRIPT, SET), (f"{nccl.LIBRARIES}/{nccl.VERBS}", "")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    return tmp_path


def start(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that prints its environment as a replica of an A4 job does."""
    command = nccl.started_with(["python", "-c", TELL, "--steps", "3"], "a4-highgpu-8g", folder)
    assert command[0] == "python"
    told = {**os.environ, "GIB_HOME": "/home of gib", **environment}
    return subprocess.run([sys.executable, *command[1:]], env=told, capture_output=True, text=True, check=False)


def told(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the program's environment; it also has its arguments, and its exit code is that of the replica."""
    assert done.returncode == 7, done.stderr
    environment, arguments = json.loads(done.stdout.partition("told ")[2])
    assert arguments == ["--steps", "3"]
    return dict(environment)


def test_the_variables_of_the_script_reach_the_program(gib: Path) -> None:
    done = start(gib, LD_LIBRARY_PATH="/opt/lib", NCCL_PROTO="Simple", OTHER="two\nlines")
    environment = told(done)
    assert environment["NCCL_NET"] == "gIB"
    assert environment["NCCL_CONF_FILE"] == "/home of gib/nccl.conf"
    assert environment["LD_LIBRARY_PATH"] == f"{gib}/lib64:/opt/lib"
    assert environment["OTHER"] == "two\nlines"
    assert "NCCL_PROTO" not in environment
    assert "NCCL uses gIB: LD_LIBRARY_PATH=" in done.stdout
    assert told(start(gib))["LD_LIBRARY_PATH"].split(":")[0] == f"{gib}/lib64"


def test_without_the_script_nothing_changes_and_the_log_says_so(gib: Path) -> None:
    (gib / nccl.SCRIPT).unlink()
    done = start(gib, NCCL_PROTO="Simple")
    environment = told(done)
    assert "NCCL_NET" not in environment
    assert environment["NCCL_PROTO"] == "Simple"
    assert environment.get("LD_LIBRARY_PATH") == os.environ.get("LD_LIBRARY_PATH")
    assert (
        f"NCCL does not use gIB, so the machines of a job are connected by TCP, which is slower: {gib}/" in done.stdout
    )


def test_without_the_library_that_the_plugin_loads_nothing_changes(
    gib: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """NCCL_NET=gIB has no fallback: NCCL would end the program."""
    monkeypatch.setattr(nccl, "VERBS", "libabsent.so.1")
    assert nccl.environment_of(gib, {"PATH": os.environ["PATH"]}) == {"PATH": os.environ["PATH"]}
    assert "libabsent.so.1 is missing" in caplog.text


def test_a_script_that_fails_changes_nothing(gib: Path, caplog: pytest.LogCaptureFixture) -> None:
    (gib / nccl.SCRIPT).write_text("export NCCL_NET=gIB; return 3")
    assert nccl.environment_of(gib, {"PATH": os.environ["PATH"]}) == {"PATH": os.environ["PATH"]}
    assert "failed" in caplog.text


@pytest.mark.parametrize("machine", load().machines, ids=lambda machine: machine.name)
def test_the_machines_with_h200_b200_and_gb200_are_started_with_it(machine) -> None:
    wanted = bool({"h200", "b200", "gb200"} & machine.accelerators.keys())
    command = nccl.started_with(["python", "-m", "my.training"], machine.name)
    assert (command != ["python", "-m", "my.training"]) is wanted
    assert command[-3:] == ["python", "-m", "my.training"]
