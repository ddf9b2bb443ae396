"""A process that imports the engine's libraries while the first steps run, and forks for each step that needs them.

The steps `train` and `evaluate` then begin at once, each in its own process. The executor starts it and sends it the
commands of steps, one after another. User code is never imported here.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.core import forking
from slipway.core.exit_codes import FAILED
from slipway.core.parent_death import dying_with_parent
from slipway.trainer.distributed.accelerators import find
from slipway.trainer.engines.quick_import import import_before_tensorflow, import_tensorflow

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.base import Platform

STARTED = "started\n"
TRAINER = "slipway.trainer"
EXECUTOR = "kfp.dsl.executor_main"
# What the trainer and the steps import when they are called, without their libraries.
TRAINING = ("slipway.trainer.loop", "slipway.trainer.data.inputs")
STEPS = ("kfp.dsl.executor", "slipway.components.train.local_cluster", "slipway.components.train.result")
EVALUATION = ("slipway.components.evaluate.report", "jinja2")


def warm_steps(config: RunConfig, platform: Platform, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the steps of a run that can be forks; none except on Linux without accelerators.

    Elsewhere, the imports may start threads or a driver, which do not survive a fork.
    """
    if sys.platform != "linux" or find(environment).kind != "cpu" or config.train.program is not None:
        return ()
    return ("train", "evaluate") if platform.trains_here else ("evaluate",)


class Warm:
    """The process that imports and forks; `close` ends it.

    If this process is killed, it and its forks are, too: a run that is resumed would train beside them. They hold the
    run's lock (`lock`, a descriptor) until they have ended. It forks for `steps`; if it is itself a fork, which has
    imported everything, also for all others but `train`, which may have something to do after a stop signal.
    """

    def __init__(self, steps: Sequence[str], engine: str, lock: int | None = None) -> None:
        self._steps = steps
        self._is_fork = False
        self._channel, child_end = socket.socketpair()
        with child_end:
            command = [sys.executable, "-m", __name__, str(child_end.fileno()), engine, *steps]
            environment = {**os.environ, "_KFP_RUNTIME": "true"}  # as in steps: kfp imports only what they need
            descriptors = [child_end.fileno(), *([] if lock is None else [lock])]
            self._process: forking.Forked | subprocess.Popen[bytes]
            if forking.can_run(command):
                self._process = forking.Forked(command, environment, piped=False, own_group=False)
                self._is_fork = True
            else:
                self._process = subprocess.Popen(dying_with_parent(command), pass_fds=descriptors, env=environment)
        self._answers = self._channel.makefile()

    def run(self, command: Sequence[str]) -> int | None:
        """Run a step in a fork; return its exit status, or None if it forks for others or could not be started.

        Args:
            command: kfp's: a shell, its option, a script, the component's source, and the executor's arguments.
        """
        name = command[command.index("--function_to_execute") + 1]
        if name not in self._steps and (name == "train" or not self._is_fork):
            return None
        try:
            self._channel.sendall(json.dumps(command[3:]).encode() + b"\n")
            if self._answers.readline() != STARTED:
                return None
            answer = self._answers.readline()
        except OSError:
            return None
        return int(answer) if answer else FAILED

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._answers.close()
        self._channel.close()


def main() -> None:
    """Import the libraries, then fork for each request; each fork becomes its step."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}")
    parser.add_argument("channel", type=int)
    parser.add_argument("engine")
    parser.add_argument("steps", nargs="*")
    arguments = parser.parse_args()
    import_all(STEPS)
    if "train" in arguments.steps:
        import_for_training(arguments.engine)
        forking.announce(TRAINER)
    elif "evaluate" in arguments.steps:
        import_before_tensorflow()
        import_tensorflow(keras=False)
        import_all(EVALUATION)
    server = os.getpid()
    signal.signal(signal.SIGTERM, lambda *_: None)  # the forks end with this process, and may have something to save
    command = _serve(socket.socket(fileno=arguments.channel), EVALUATION if "evaluate" in arguments.steps else ())
    if command:
        source, *options = command
        program = Path(tempfile.mkdtemp(), "ephemeral_component.py")
        program.write_text(source)
        command = [sys.executable, "-m", EXECUTOR, "--component_module_path", str(program), *options]
        forking.become(command, os.environ, server)


def import_for_training(engine: str) -> None:
    """Import the trainer, the engine and its libraries, as far as they are installed."""
    import_before_tensorflow()
    with contextlib.suppress(ImportError):  # the step reports it
        import_tensorflow(engine)
    runpy.run_module(TRAINER, run_name=f"{TRAINER}.imported")
    import_all((*TRAINING, f"slipway.trainer.engines.{engine}.engine"))


def _serve(channel: socket.socket, later: Sequence[str]) -> list[str]:
    """Fork for each request and answer with the exit status; return the request in the fork, at the end nothing.

    The modules `later` are imported beside the first step.
    """
    with channel, channel.makefile("rw") as lines:
        for line in lines:
            lines.write(STARTED)  # before the fork, which may end this process
            lines.flush()
            pid = os.fork()
            if not pid:
                return list(json.loads(line))
            import_all(later)
            _, status = os.waitpid(pid, 0)
            lines.write(f"{os.waitstatus_to_exitcode(status)}\n")
            lines.flush()
    return []


def import_all(names: Sequence[str]) -> None:
    """Import modules, as far as they are installed."""
    with contextlib.suppress(ImportError):  # the step reports it
        for name in names:
            importlib.import_module(name)


if __name__ == "__main__":
    main()
