"""Run a Python module in a fork of a process that has already imported its libraries: importing takes seconds.

A fork has the imported modules, and otherwise begins like a new interpreter: with its own environment, arguments and
signal handlers. It must come from a process without threads of its own, whose libraries have not started theirs.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import io
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Self, TextIO

from slipway.core.exit_codes import FAILED
from slipway.core.parent_death import die_with_parent

Streams = tuple[int, int, int]  # the descriptors of stdin, stdout and stderr

_ready: set[str] = set()


def announce(module: str) -> None:
    """Declare that this process, and its forks, have imported what `module` needs and can fork to run it."""
    _ready.add(module)


def is_announced(module: str) -> bool:
    """Return whether this process has imported what `module` needs."""
    return module in _ready


def can_run(command: Sequence[str]) -> bool:
    """Return whether a fork of this process can run `command`: `python -m MODULE` of an announced module."""
    return tuple(command[:2]) == (sys.executable, "-m") and is_announced(command[2]) and threading.active_count() == 1


class Forked:
    """A fork that runs a module as `python -m` does, with the methods of subprocess.Popen that `Child` uses.

    Args:
        command: `python -m MODULE ARGUMENT…`, of which `can_run` is true.
        environment: All of its environment variables.
        piped: Whether its stdout and stderr are read from `stdout`; otherwise they are this process's own.
        own_group: Whether it leads a process group.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, piped: bool, own_group: bool) -> None:
        self.stdout: TextIO | None = None
        ends = os.pipe() if piped else None
        parent = os.getpid()

        def run() -> None:
            _redirect(ends[1] if ends else None, own_group=own_group)
            become(command, environment, parent)

        self._fork(run)
        if own_group:  # here, too, because either process may be first
            with contextlib.suppress(OSError):
                os.setpgid(self.pid, 0)
        if ends:
            os.close(ends[1])
            self.stdout = os.fdopen(ends[0], encoding="utf-8", errors="replace")

    @classmethod
    def in_session(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        streams: Streams,
        kept: Collection[int],
    ) -> Self:
        """Return a fork in a session of its own, which outlives this process.

        Args:
            command, environment: As for the class.
            streams: The descriptors that become its stdin, stdout and stderr.
            kept: The other descriptors that it keeps.
        """
        forked = cls.__new__(cls)
        forked.stdout = None

        def run() -> None:
            os.setsid()
            _keep(streams, kept)
            become(command, environment, None)

        forked._fork(run)
        return forked

    def _fork(self, run: Callable[[], None]) -> None:
        self._status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            try:
                run()
            finally:
                os._exit(FAILED)

    @property
    def returncode(self) -> int | None:
        """The exit status that was last seen; None while the process is running."""
        return self._status

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit status, negative after a signal, or None while it is running."""
        return self._collect(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the end; return the exit status."""
        while (status := self._collect(0)) is None:
            pass
        return status

    def _collect(self, options: int) -> int | None:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # its status was collected elsewhere: psutil does so while it waits
                self._status = FAILED
            else:
                self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status


def start_session(
    command: Sequence[str], environment: Mapping[str, str], streams: Streams, kept: Collection[int]
) -> subprocess.Popen[bytes] | Forked:
    """Start a program in a session of its own, which outlives this process: a fork, if this process can run it.

    The arguments are those of `Forked.in_session`.
    """
    if can_run(command):
        return Forked.in_session(command, environment, streams, kept)
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        command, env=environment, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True, pass_fds=kept
    )


def become(command: Sequence[str], environment: Mapping[str, str], parent: int | None) -> NoReturn:
    """Run a module in this fork as a new interpreter, started as `python -m MODULE ARGUMENT…`, would; then end.

    It dies with its `parent`, unless that is None. The libraries' objects are not freed one by one, which would take a
    fifth of a second after TensorFlow.
    """
    status = FAILED
    try:
        if parent is not None:
            die_with_parent(parent)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        variables = dict(environment)
        os.environ.clear()
        os.environ.update(variables)
        tempfile.tempdir = None  # that of TMPDIR, which may be another one now
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            finalizer.detach()  # at its end, this process would remove the temporary folders of the one that forked it
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)  # a killed process keeps what it printed
        sys.argv = [command[2], *command[3:]]
        importlib.invalidate_caches()  # the user's modules may have changed
        _retitle(command)
        warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)  # the fork's parent imported it
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as request:
        if isinstance(request.code, str):
            print(request.code, file=sys.stderr)
        status = request.code if isinstance(request.code, int) else int(request.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _redirect(output: int | None, *, own_group: bool) -> None:
    """Disconnect stdin, and send stdout and stderr to `output`."""
    if own_group:
        os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if output is not None:
        os.dup2(output, 1)
        os.dup2(output, 2)


def _keep(streams: Streams, kept: Collection[int]) -> None:
    """Replace the streams, and all other descriptors by the null device: the objects that have them may close them."""
    for number, stream in enumerate([os.dup(original) for original in streams]):
        os.dup2(stream, number)
        os.close(stream)
    null = os.open(os.devnull, os.O_RDWR)
    for path in Path("/proc/self/fd").iterdir():
        if (descriptor := int(path.name)) > 2 and descriptor not in kept:
            with contextlib.suppress(OSError):  # that of the folder, which is closed
                os.fstat(descriptor)
                os.dup2(null, descriptor, inheritable=False)


def _retitle(command: Sequence[str]) -> None:
    """Let ps and pgrep show `command`, as far as it fits into the place of the original arguments."""
    status = Path("/proc/self/stat")
    if status.exists():
        start, end = (int(field) for field in status.read_text().rpartition(")")[2].split()[45:47])
        if end > start > 0:
            text = "\0".join(command).encode()[: end - start - 1]
            ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
