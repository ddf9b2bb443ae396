"""Workers as forks of one process that has imported TensorFlow, which would be most of a short training's work.

The forks are children of this process, as those of `subprocess` are: the server's fork forks again and ends, and the
kernel then makes this process, the nearest subreaper, the parent of the second one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slipway.core import forking
from slipway.pipelines.platforms.local.warm import TRAINER, import_for_training
from slipway.trainer.distributed.accelerators import find

PR_SET_CHILD_SUBREAPER = 36
LARGEST_REQUEST = 2**18
_one_at_a_time = threading.Lock()
ENGINE = os.environ.get("SLIPWAY_TEST_ENGINE", "tensorflow")
# Where the libraries survive a fork, as slipway.pipelines.platforms.local.warm says.
CAN_FORK = sys.platform == "linux" and find({}).kind == "cpu"


class Popen(subprocess.Popen[Any]):
    """A process that is a fork of the server if it runs the trainer, `python -m slipway.trainer`."""

    def _execute_child(self, *arguments: Any) -> None:
        """Start the process; called by `__init__`."""
        start: Any = super()._execute_child  # type: ignore[misc]
        told = inspect.signature(start).bind(*arguments).arguments
        command = list(told["args"])
        with contextlib.suppress(ValueError):  # without the program that makes it die with its parent, as forks do
            command = command[command.index(TRAINER) - 2 :]
        if not CAN_FORK or command[:3] != [sys.executable, "-m", TRAINER]:
            start(*arguments)
            return
        streams = [told[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self.pid = _fork(
            [stream if stream != -1 else number for number, stream in enumerate(streams)],
            command=command,
            folder=str(told["cwd"] or Path.cwd()),
            environment=dict(os.environ if told["env"] is None else told["env"]),
            own_group=told["process_group"] == 0,
        )
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(told[name] for name in pipes))  # type: ignore[attr-defined]


def _fork(streams: list[int], **request: Any) -> int:
    with _one_at_a_time, _subreaper():
        channel = _server()
        socket.send_fds(channel, [json.dumps(request | {"parent": os.getpid()}).encode()], streams)
        return int(channel.recv(100))  # once it is this process's child


@functools.cache
def _server() -> socket.socket:
    """Start the server, which ends with this process; return the channel to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), ENGINE]
        subprocess.Popen(
            command, pass_fds=[theirs.fileno()], cwd=Path(__file__).parents[2], env=environment, start_new_session=True
        )
    return ours


@contextlib.contextmanager
def _subreaper() -> Iterator[None]:
    """Let this process be the parent of descendants whose parent ends."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)


def main() -> None:
    """Import the trainer and its libraries, then fork for each request; the fork becomes the worker."""
    import_for_training(sys.argv[2])
    forking.announce(TRAINER)
    channel = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, streams, *_ = socket.recv_fds(channel, LARGEST_REQUEST, 3)
        if not request:
            return
        if not (pid := os.fork()):
            if os.fork():
                os._exit(0)
            break
        os.waitpid(pid, 0)
        for stream in streams:
            os.close(stream)
    _become(channel, streams, **json.loads(request))


def _become(
    channel: socket.socket,
    streams: list[int],
    *,
    command: list[str],
    folder: str,
    environment: dict[str, str],
    own_group: bool,
    parent: int,
) -> None:
    while os.getppid() != parent:
        time.sleep(0.0005)
    if own_group:
        os.setpgid(0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for text in (sys.stdout, sys.stderr):
        if isinstance(text, io.TextIOWrapper):
            text.reconfigure(write_through=True)
    os.chdir(folder)
    sys.path[:0] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    with channel:
        channel.send(str(os.getpid()).encode())
    forking.become(command, environment, parent)


if __name__ == "__main__":
    main()
