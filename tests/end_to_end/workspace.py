"""A working folder for tests, and the `slipway` command run in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from typer.testing import CliRunner

from slipway.core import dataclass_json
from slipway.pipelines.cli.app import app
from slipway.pipelines.runs.record import RunRecord

SLIPWAY = [str(Path(sys.executable).with_name("slipway"))]
CONFIGURATIONS = Path(__file__).parents[2] / "configs"

# A training program for tests of what surrounds the training: without TensorFlow, a run of it is several times quicker.
QUICK_PROGRAM = """
import json
import os
from pathlib import Path

folder = Path(os.environ["AIP_MODEL_DIR"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "metrics.json").write_text(json.dumps({"accuracy": 0.75}))
"""


class Workspace:
    """A working folder with the repository's configurations, in which `slipway` is run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        shutil.copytree(CONFIGURATIONS, path / "configs")

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*SLIPWAY, *arguments],
            cwd=self.path,
            env={**os.environ, "COLUMNS": "120", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_in_terminal(self, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
        """Start a command in the foreground of a new terminal; also returns the terminal's other end."""
        ours, theirs = os.openpty()
        process = subprocess.Popen(
            [*SLIPWAY, *arguments],
            cwd=self.path,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_in_the_foreground,
        )
        os.close(theirs)
        return process, ours

    def slipway(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        output, error = process.communicate(timeout=240)
        return subprocess.CompletedProcess(arguments, process.returncode, output, error)

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call a command that starts no run, in this process: what a process adds is tested once per command."""
        with contextlib.chdir(self.path):
            result = CliRunner().invoke(app, arguments, prog_name="slipway", env={"COLUMNS": "120"})
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)

    def record(self, run_id: str = "latest") -> dict[str, Any]:
        return record_in(self.path / "runs" / run_id)

    def log(self, step: str, run_id: str = "latest") -> str:
        return (self.path / "runs" / run_id / "logs" / f"{step}.log").read_text()

    def runs(self) -> list[Path]:
        root = self.path / "runs"
        return [path for path in root.iterdir() if not path.is_symlink()] if root.exists() else []


def record_in(folder: Path) -> dict[str, Any]:
    """The record of the run in `folder`, as commands print it."""
    return dataclass_json.read(RunRecord, (folder / "run.json").read_bytes()).as_dict()


@dataclass(frozen=True)
class FinishedRun:
    """The first run in the workspace `path`, which nobody changes: its output, and the temporary files left by it.

    `connections` has a line for each of its Python processes, and for each host elsewhere to which one connected.
    """

    path: Path
    returncode: int
    stdout: str
    stderr: str
    left: list[str]
    connections: list[str]

    @property
    def folder(self) -> Path:
        (folder,) = [run for run in (self.path / "runs").iterdir() if not run.is_symlink()]
        return folder

    @property
    def record(self) -> dict[str, Any]:
        return record_in(self.folder)

    def copy(self, path: Path) -> Workspace:
        """A new workspace at `path` with the run's data set and registered model."""
        assert self.returncode == 0, self.stdout + self.stderr
        for name in ("datasets", "models"):
            shutil.copytree(self.path / name, path / name)
        return Workspace(path)


def steps(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {step["name"]: step for step in record["steps"]}


def _in_the_foreground() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup


def wait_for(condition: Callable[[], Any], seconds: float = 90) -> Any:
    """Wait for the condition and return its first true value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError("it did not come true in time")


def processes_of(path: Path, *programs: str) -> list[psutil.Process]:
    """Return the processes whose working folder is `path`, or whose command line contains it, perhaps of programs."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            command = process.cmdline()
            is_of = process.cwd() == str(path) or str(path) in " ".join(command)
            if is_of and (not programs or not set(programs).isdisjoint(command)):
                found.append(process)
    return found


def trainers(path: Path) -> list[psutil.Process]:
    """Return the replicas' processes: of the trainer, or of the launcher of a custom program."""
    return processes_of(path, "slipway.trainer", "slipway.trainer.launch")
