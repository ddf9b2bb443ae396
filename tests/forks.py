"""Python programs of Slipway as forks of one process that has imported their libraries, which would be most of the work
of a short run.

While `installed` is entered, `subprocess.Popen` starts these programs so: the console script `slipway`, the modules
`PROGRAMS` and those in tests/programs, and the steps of pipelines as kfp starts them. All other programs, and those
whose environment changes how an interpreter or TensorFlow starts, are processes as ever. `as_processes` is for tests of
what only a new interpreter has.

The forks are children of this process, as those of `subprocess` are: the server's fork forks again and ends, and the
kernel then makes this process, the nearest subreaper, the parent of the second one. Programs with threads,
such as a notebook's kernel, have a server of their own, their first child: what they start are forks, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import inspect
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from slipway import extensions
from slipway.core import forking, parent_death
from slipway.pipelines.platforms.local import forkserver
from slipway.pipelines.platforms.local.warm import EXECUTOR, TRAINER, import_all, import_for_training
from slipway.trainer.distributed.accelerators import find

ROOT = Path(__file__).parents[1]
PR_SET_CHILD_SUBREAPER = 36
MAX_REQUEST = 2**20
ENGINE = os.environ.get("SLIPWAY_TEST_ENGINE", "tensorflow")
# Where the libraries survive a fork, as slipway.pipelines.platforms.local.warm says.
CAN_FORK = sys.platform == "linux" and find({}).kind == "cpu"
COMMAND_LINE = "slipway.pipelines"
NOTEBOOK = "ipykernel_launcher"
SERVER = "slipway.serving"
SERVICES = "tests.fakes"
TESTS_PROGRAMS = "tests.programs."
# Programs that have threads when they start others.
THREADED = {NOTEBOOK, f"{TESTS_PROGRAMS}run_pipeline", f"{TESTS_PROGRAMS}script"}
PROGRAMS = (TRAINER, "slipway.trainer.launch", COMMAND_LINE, EXECUTOR, NOTEBOOK, SERVER, SERVICES, *forkserver.PROGRAMS)
CONSOLE_SCRIPT = str(Path(sys.executable).with_name("slipway"))
# What an interpreter, the dynamic linker and TensorFlow read once, when they start.
READ_AT_START = re.compile(
    r"LANG|LC_(?!CTYPE)|PYTHON(?!PATH|IOENCODING|UNBUFFERED|DONTWRITEBYTECODE)|LD_|TF_(?!CONFIG|CLI_|GRPC_)|XLA_|KERAS_"
    r"|OMP_(?!WAIT_POLICY)|COVERAGE_|MALLOC_"
)
# The programs above set it where it is missing, before they import Keras: to the engine's backend, as this process has.
_SET_BY_PROGRAMS = "KERAS_BACKEND"
# Arguments of Popen that only a new process can have.
_ONLY_PROCESSES = {"executable", "preexec_fn", "shell", "gid", "gids", "uid"}
_RealPopen = subprocess.Popen
_one_at_a_time = threading.Lock()


class Popen(_RealPopen[Any]):
    """A process that is a fork of the server if it runs one of the programs above."""

    def _execute_child(self, *arguments: Any) -> None:
        """Start the process; called by `__init__`."""
        start: Any = super()._execute_child  # type: ignore[misc]
        options = inspect.signature(start).bind(*arguments).arguments
        environment = dict(os.environ if options["env"] is None else options["env"])
        program = program_of(options["args"])
        if program is None or starts_anew(environment) or any(options[name] for name in _ONLY_PROCESSES):
            start(*arguments)
            return
        command, parent = program
        streams = [options[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self.pid = _fork(
            [stream if stream != -1 else number for number, stream in enumerate(streams)],
            list(options["pass_fds"]),
            command=command,
            folder=os.fspath(options["cwd"] or Path.cwd()),
            environment={os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
            dies_with=parent,
            session=options["start_new_session"],
            group=options["process_group"],
            umask=options["umask"] if options["umask"] != -1 else _umask(),
            blocked=[int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        )
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(options[name] for name in pipes))  # type: ignore[attr-defined]


def program_of(command: Any) -> tuple[list[str], int | None] | None:
    """Return what a fork runs in place of `command`, and the process with which it dies; None if no fork runs it."""
    if not CAN_FORK or isinstance(command, (str, bytes, os.PathLike)):
        return None
    command, parent = [os.fsdecode(part) for part in command], None
    if command[:4] == [sys.executable, "-I", "-S", parent_death.__file__]:
        parent, command = int(command[4]), command[5:]
    if command[:1] == [CONSOLE_SCRIPT]:
        return [CONSOLE_SCRIPT, *command[1:]], parent
    if command[:2] == [sys.executable, "-m"] and (command[2] in PROGRAMS or command[2].startswith(TESTS_PROGRAMS)):
        return command, parent
    if command[:2] == ["sh", "-ec"] and len(command) > 4 and f"-m {EXECUTOR}" in command[2]:
        return command, parent
    return None


def starts_anew(environment: Mapping[str, str]) -> bool:
    """Return whether programs in this environment have to be new processes: a fork would not read it."""
    paths = [Path(path) for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if any((path / f"{name}customize.py").exists() for path in paths for name in ("site", "user")):
        return True
    if any((path / "slipway").is_dir() and not path.samefile(ROOT) for path in paths):
        return True  # another copy of the sources
    if any(next(path.glob("*-info/entry_points.txt"), None) for path in paths if str(path) not in sys.path):
        return True  # other extensions
    names = {name for name in {*environment, *os.environ} if READ_AT_START.match(name)}
    if _SET_BY_PROGRAMS not in environment:
        names.discard(_SET_BY_PROGRAMS)
    return any(environment.get(name) != os.environ.get(name) for name in names) or _processes_only


_processes_only = False


@contextlib.contextmanager
def as_processes() -> Iterator[None]:
    """Start all programs as processes."""
    global _processes_only
    before, _processes_only = _processes_only, True
    try:
        yield
    finally:
        _processes_only = before


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Let `subprocess` start the programs above as forks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Popen)
        yield


def _umask() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask:"))
    return int(line.split()[1], 8)


def _fork(streams: list[int], passed: list[int], **request: Any) -> int:
    with _one_at_a_time, _subreaper():
        channel = _server()
        message = json.dumps(request | {"parent": os.getpid(), "passed": passed}).encode()
        socket.send_fds(channel, [message], [*streams, *passed])
        return int(channel.recv(100))  # once it is this process's child


_channel: socket.socket | None = None  # to the server, which ends with this process


def _server() -> socket.socket:
    """Return the channel to the server; start it first if there is none."""
    global _channel
    if _channel is None:
        _channel, theirs = _socket_pair()
        with theirs:
            environment = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
            command = [sys.executable, "-m", __name__, str(theirs.fileno()), ENGINE]
            _RealPopen(command, pass_fds=[theirs.fileno()], cwd=ROOT, env=environment, start_new_session=True)
    return _channel


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST)
    return ours, theirs


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
    """Import the programs and their libraries, then fork for each request; the fork becomes the program."""
    from slipway.pipelines.cli.app import COMMANDS
    from slipway.pipelines.doctor import imported

    channel = socket.socket(fileno=int(sys.argv[1]))
    rows = (*COMMANDS, *(row for extension in extensions.installed() for row in extension.commands))
    commands = {row.source.partition(":")[0] for row in rows if row.source}
    import_all((*forkserver.PROGRAMS, *forkserver.LATER, *sorted(commands), f"{SERVER}.app"))
    import_for_training(sys.argv[2])
    for program in (*PROGRAMS, imported.PROGRAM):
        forking.announce(program)
    forking.can_run = _can_run
    gc.collect()
    gc.freeze()  # collections in forks would copy the pages of these objects
    _serve(channel)


def _serve(channel: socket.socket) -> None:
    """Fork for each request; end with the process at the other end of the channel."""
    while True:
        message, descriptors, *_ = socket.recv_fds(channel, MAX_REQUEST, 100)
        if not message:
            return
        if not (pid := os.fork()):
            if os.fork():
                os._exit(0)
            break
        os.waitpid(pid, 0)
        for descriptor in descriptors:
            os.close(descriptor)
    _become(channel, descriptors, **json.loads(message))


def _serve_beside(channel: socket.socket, descriptors: list[int]) -> None:
    """Let a child of this process fork for what it starts from now on."""
    global _channel
    _channel, theirs = _socket_pair()
    if os.fork():
        theirs.close()
        subprocess.Popen = Popen  # type: ignore[misc]
        return
    for end in (channel, _channel):
        end.close()
    for descriptor in descriptors:
        os.close(descriptor)
    _channel = None
    os.setsid()
    _serve(theirs)
    os._exit(0)


def _can_run(command: Sequence[str]) -> bool:
    """Return whether a fork can run `command`, also beside the thread of `slipway run` that prints now and then."""
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    is_module = tuple(command[:2]) == (sys.executable, "-m") and forking.is_announced(command[2])
    return is_module and all("(_repeat)" in name for name in threads)


def _become(
    channel: socket.socket,
    descriptors: list[int],
    *,
    command: list[str],
    folder: str,
    environment: dict[str, str],
    parent: int,
    dies_with: int | None,
    passed: list[int],
    session: bool,
    group: int,
    umask: int,
    blocked: list[int],
) -> None:
    while os.getppid() != parent:
        time.sleep(0.0005)
    if THREADED & {*command}:
        _serve_beside(channel, descriptors)
    if session:
        os.setsid()
    elif group != -1:
        os.setpgid(0, group)
    os.umask(umask)
    os.chdir(folder)
    answer = fcntl.fcntl(channel.fileno(), fcntl.F_DUPFD_CLOEXEC, 500)
    channel.close()
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 500) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for number, descriptor in zip((0, 1, 2, *passed), high, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    encoding = environment.get("PYTHONIOENCODING", "utf-8").partition(":")[0]
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    with socket.socket(fileno=answer) as answers:
        answers.send(str(os.getpid()).encode())
    paths = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [folder, *paths] if command[0] != CONSOLE_SCRIPT else paths
    if command[0] == "sh":  # as kfp starts a step: its script writes the source to a file, which the executor imports
        program = Path(tempfile.mkdtemp(dir=environment.get("TMPDIR")), "ephemeral_component.py")
        program.write_text(command[3])
        command = [sys.executable, "-m", EXECUTOR, "--component_module_path", str(program), *command[4:]]
        environment = {**environment, "_KFP_RUNTIME": "true"}
    elif command[0] == CONSOLE_SCRIPT:
        command = [sys.executable, "-m", f"{TESTS_PROGRAMS}console_script", *command]
    forking.become(command, environment, dies_with)


if __name__ == "__main__":
    main()
