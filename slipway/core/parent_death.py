"""Let the kernel kill a process when its parent dies (Linux only).

Run as a program, it replaces itself by a command that dies with the given parent. `Child` starts commands this way and
not with `preexec_fn`, for which subprocess would fork: libraries with threads, such as gRPC, have fork handlers that
now and then crash or block the new process before it runs its command.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence

PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl
SIGKILL, SIGPIPE, SIGXFSZ = 9, 13, 25  # importing the module signal would take longer
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # a shell's exit codes


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` as a child of this process that dies with it; except on Linux, `command`."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies; end it if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, SIGKILL)
        if os.getppid() != parent:
            os._exit(128 + SIGKILL)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    for number in (SIGPIPE, SIGXFSZ):  # ignored by Python, and by default not by other programs
        ctypes.CDLL(None).signal(number, None)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.stderr.write(f"{sys.argv[2]}: {error.strerror}\n")
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)
