"""A process that imports the libraries of runs once, and forks for each: a study has many, which are often short.

The process of a run, the one that executes its pipeline, the one that waits for its steps and the steps are then forks.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from slipway import extensions
from slipway.core import forking
from slipway.core.parent_death import dying_with_parent
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.base import Platform
from slipway.pipelines.platforms.local import launch, warm

MAX_REQUEST = 2**16
REAP_SECONDS = 1.0
PACKAGE = __spec__.parent
PROGRAMS = tuple(f"{PACKAGE}.{name}" for name in ("launch", "executor", "warm"))
# What these import when they are called.
LATER = (
    "kfp.compiler",
    "kfp.local.subprocess_task_handler",
    *(f"{PACKAGE}.{name}" for name in ("containers", "earlier", "steps")),
    *(reference.partition(":")[0] for reference in extensions.references("observers")),
)


class ForkServer:
    """Starts runs with this configuration, each in a session of its own, which outlives this process."""

    def __init__(self, config: RunConfig) -> None:
        self._channel, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_end:
            command = [sys.executable, "-m", __name__, str(child_end.fileno()), config.train.engine]
            self._process = subprocess.Popen(
                dying_with_parent(command),
                pass_fds=[child_end.fileno()],
                stdout=subprocess.DEVNULL,  # what libraries log while they are imported
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process alone
            )

    def start(self, folder: Path, lock: int, streams: forking.Streams) -> int:
        """Start the process of a run, without the server if that was killed; return its id."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._channel, [os.fsencode(folder)], [*streams, lock])
            if answer := self._channel.recv(MAX_REQUEST):
                return int(answer)
        return launch.start_process(folder, lock, streams)

    def close(self) -> None:
        """End the server, but not the runs."""
        self._channel.close()
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def run_starter(config: RunConfig, platform: Platform) -> Iterator[launch.StartProcess | None]:
    """Return what starts runs with this configuration quickly; None where forks cannot train."""
    if "train" not in warm.warm_steps(config, platform, os.environ):
        yield None
        return
    with contextlib.closing(ForkServer(config)) as server:
        yield server.start


def main() -> None:
    """Import the libraries, then fork for each request."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    warm.import_all((*PROGRAMS, *LATER))
    warm.import_for_training(sys.argv[2])
    for program in (*PROGRAMS, warm.TRAINER):
        forking.announce(program)
    while True:
        while not select.select([channel], [], [], REAP_SECONDS)[0]:
            _reap()
        folder, descriptors, *_ = socket.recv_fds(channel, MAX_REQUEST, 4)
        if not folder:
            return
        stdin, stdout, stderr, lock = descriptors
        with launch.stop_signals_blocked():
            command = launch.command_of(Path(os.fsdecode(folder)), lock)
            forked = forking.Forked.in_session(command, os.environ, (stdin, stdout, stderr), [lock])
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(str(forked.pid).encode())


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()
