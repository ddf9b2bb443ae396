"""The lock of a run's folder (flock), by which one command at a time executes a run on this machine.

The operating system releases it when the last process that holds it ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

from slipway.core.errors import UserError

# How long to wait for the lock: readers hold it for an instant, the processes of a killed command until they end.
READING_SECONDS = 1.0
ENDING_SECONDS = 30.0


class Holder(NamedTuple):
    """The process of the command that executes a run, and its machine."""

    pid: int
    host: str

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    def was_killed(self) -> bool:
        """Return whether the process is known to have ended; processes that it started then still hold the lock."""
        import psutil

        if not self.is_here:
            return False
        try:  # a parent that does not wait for it keeps a zombie
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True


def acquire(path: Path, run_id: str) -> int:
    """Lock the file `path` and return its descriptor, whose closing releases the lock.

    After a command that was killed, wait until the processes that it started have ended.

    Raises:
        UserError: Another command executes the run, or the file system has no locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    started = time.monotonic()
    try:
        while not _locks(descriptor, fcntl.LOCK_EX, path):
            other = _read(descriptor)
            is_ending = other is not None and other.was_killed()
            if time.monotonic() - started > (ENDING_SECONDS if is_ending else READING_SECONDS):
                raise _in_use(run_id, other, is_ending=is_ending)
            time.sleep(0.05)
        hand_over(descriptor, os.getpid())
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def hand_over(descriptor: int, pid: int) -> None:
    """Name the process that holds the lock: one that has inherited the descriptor."""
    content = f"{pid} {socket.gethostname()}".encode()
    os.ftruncate(descriptor, os.pwrite(descriptor, content, 0))


def holder(path: Path) -> Holder | None:
    """Return the process that holds the lock `path`, or None if none does."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        while not _locks(descriptor, fcntl.LOCK_SH, path):
            if process := _read(descriptor):
                return process
            time.sleep(0.01)  # it has just locked the new file
    finally:
        os.close(descriptor)
    return None


def _in_use(run_id: str, other: Holder | None, *, is_ending: bool) -> UserError:
    if is_ending:
        return UserError(
            f"The command of run {run_id} was killed, and the processes that it started are still ending.",
            fix="repeat the command in a minute",
        )
    where = f", in process {other.pid}" if other else ""
    where += f" on {other.host}" if other and not other.is_here else ""
    return UserError(
        f"Run {run_id} is still running{where}.", fix=f"slipway status {run_id}, or slipway cancel {run_id}"
    )


def _locks(descriptor: int, kind: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # as ENOLCK of a network file system
        raise UserError(
            f"The file system cannot lock {path}: {error.strerror}.",
            fix="repeat the command in a folder on a file system with locks (flock), such as a local disk",
        ) from error
    return True


def _read(descriptor: int) -> Holder | None:
    pid, _, host = os.pread(descriptor, 300, 0).decode(errors="replace").partition(" ")
    return Holder(int(pid), host) if pid.isdigit() else None
