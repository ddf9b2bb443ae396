"""Child processes of one job that succeed or fail together, and the ports of their rendezvous."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TextIO

from slipway.core.exit_codes import status_of
from slipway.core.forking import Forked
from slipway.core.parent_death import dying_with_parent

# Grace period between SIGTERM and SIGKILL, in seconds: a process may be writing a checkpoint.
GRACE_SECONDS = 15.0
# A failing process often makes others fail too: the cause is searched among those that fail within this time.
BLAME_SECONDS = 1.0
POLL_SECONDS = 0.05
KEPT_LINES = 400
# Between the shown states of a progress bar that writes over its own line.
REFRESH_SECONDS = 10.0


def write_line(log: TextIO, line: str) -> None:
    """Write a line of a training's log at once; a full disk does not end the training."""
    with contextlib.suppress(OSError):
        log.write(f"{line}\n")
        log.flush()


class Child:
    """A child process with the end of its output in `tail`. On Linux, the kernel kills it when its parent dies.

    Its output is read from `read` on: threads must not run before the last child is forked.

    Args:
        name: Its name in messages.
        command: The program and its arguments.
        environment: All of its environment variables.
        output: Receives each line of its output, in a thread. None: the output is this process's own, and `tail` is
            empty.
        own_group: Whether it leads a process group, which then receives its signals.
        fork: Whether a fork of this process runs the command, `python -m MODULE`; see `forking`.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: Callable[[str], object] | None,
        *,
        own_group: bool = False,
        fork: bool = False,
    ) -> None:
        self.name = name
        self.tail: deque[str] = deque(maxlen=KEPT_LINES)
        self._own_group = own_group
        self._process: subprocess.Popen[str] | Forked
        if fork:
            self._process = Forked(command, environment, piped=output is not None, own_group=own_group)
        else:
            self._process = subprocess.Popen(
                dying_with_parent(command),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if output else None,
                stderr=subprocess.STDOUT if output else None,
                text=True,
                errors="replace",
                process_group=0 if own_group else None,
            )
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True)

    def read(self) -> None:
        """Start to read the output, unless that has happened."""
        if self._reader.ident is None:
            self._reader.start()

    def _read(self, output: Callable[[str], object]) -> None:
        """Read the lines; of those that a progress bar writes over each other, one in some seconds and the last."""
        stdout, shown = self._process.stdout, 0.0
        if stdout is None:
            return
        if isinstance(stdout, io.TextIOWrapper):
            stdout.reconfigure(newline="")
        for line in stdout:
            if line.endswith("\r"):
                if not line.strip() or time.monotonic() - shown < REFRESH_SECONDS:
                    continue
                shown = time.monotonic()
            self.tail.append(line.rstrip("\r\n"))
            # Keep reading even if the disk is full: the process blocks once its pipe is full.
            with contextlib.suppress(OSError):
                output(self.tail[-1])

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def status(self) -> int:
        """The exit status (see `exit_codes`); waits for the end."""
        return status_of(self._process.wait())

    def signal(self, number: int) -> None:
        """Send a signal to a running process, or to its group."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if self._own_group else os.kill)(self._process.pid, number)

    def finish(self) -> None:
        """Wait until the process has ended and its output was read."""
        self.read()
        self._process.wait()
        self._reader.join(timeout=5)


class Children:
    """The processes of one job; those still running at the end of the context are stopped."""

    def __init__(self) -> None:
        self.all: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait(self, stop_requested: Callable[[], bool]) -> list[Child]:
        """Wait until all have succeeded, or until shortly after one has failed; after a stop request, stop all.

        Args:
            stop_requested: Called at every poll; whether this process was asked to stop.

        Returns:
            Those that failed, earliest first.
        """
        for child in self.all:
            child.read()
        failed: list[Child] = []
        deadline: float | None = None
        while True:
            if stop_requested():
                self.stop()
            ended = [child for child in self.all if not child.is_running]
            failed += [child for child in ended if child.status and child not in failed]
            if len(ended) == len(self.all):
                break
            if failed and deadline is None:
                deadline = time.monotonic() + BLAME_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        for child in failed:
            child.finish()
        return failed

    def stop(self) -> None:
        """Stop those still running: SIGTERM first, SIGKILL after the grace period."""
        for child in self.all:
            child.signal(signal.SIGTERM)
            child.signal(signal.SIGCONT)  # a stopped process handles SIGTERM only once it continues
        deadline = time.monotonic() + GRACE_SECONDS
        while any(child.is_running for child in self.all) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        for child in self.all:
            child.signal(signal.SIGKILL)
            child.finish()


class Ports:
    """Reserved free ports on loopback, until the end of the context.

    Each is held by a bound, non-listening socket with SO_REUSEPORT and SO_REUSEADDR: a server of the same user with one
    of these options can listen on the port, but the kernel assigns it to no other program.
    """

    def __init__(self, count: int) -> None:
        self._sockets = [socket.socket() for _ in range(count)]
        for held in self._sockets:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
        self.numbers: list[int] = [held.getsockname()[1] for held in self._sockets]

    def __enter__(self) -> list[int]:
        return self.numbers

    def __exit__(self, *_: object) -> None:
        for held in self._sockets:
            held.close()
