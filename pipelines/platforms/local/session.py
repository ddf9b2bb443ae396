"""The session of a run: the executing process, the processes that it starts, and their temporary folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from slipway.core.forking import Forked
from slipway.pipelines.runs.record import RunFolder

TEMPORARY = "slipway-"
RUN_LINK = ".run"


def stop(process: subprocess.Popen[bytes] | Forked, seconds: float) -> None:
    """Stop the executing process and its session; see `stop_members`."""
    stop_members(process.pid, seconds)
    process.wait()


def stop_members(leader: int, seconds: float) -> None:
    """Stop the processes of the session of `leader`, except this one: SIGTERM, then SIGKILL after `seconds`."""
    running = members(leader)
    for member in running:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
            member.resume()  # a frozen process handles no signal before it is continued
    _, alive = psutil.wait_procs(running, timeout=seconds)
    for member in alive + members(leader):
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


def members(leader: int, *, frozen: bool = False) -> list[psutil.Process]:
    """Return the other live processes of the session of `leader`; with `frozen`, only those stopped by SIGSTOP."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            if process.pid != os.getpid() and os.getsid(process.pid) == leader:
                status = process.status()
                if status == psutil.STATUS_STOPPED if frozen else status != psutil.STATUS_ZOMBIE:
                    processes.append(process)
    return processes


@contextlib.contextmanager
def temporary_folder(folder: RunFolder) -> Iterator[str]:
    """Return a temporary folder for a held run, with a link to it; remove those of commands that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):  # another user's, or not a run's
            run = RunFolder((path / RUN_LINK).readlink())
            if run.path == folder.path or run.holder() is None:
                shutil.rmtree(path)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as temporary:
        Path(temporary, RUN_LINK).symlink_to(folder.path)
        yield temporary
