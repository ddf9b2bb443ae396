"""A running replica: its process, the end of its output, and how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
from collections import deque
from typing import TextIO

from slipway.components.train.replica import Replica
from slipway.core.errors import ERROR_PREFIX, UserError
from slipway.trainer.distributed.processes import die_with_parent

KEPT_LINES = 400


class Worker:
    """A running replica. Its output is copied to `log`, each line prefixed with the replica's name."""

    def __init__(self, replica: Replica, environment: dict[str, str], log: TextIO) -> None:
        self.replica = replica
        self.tail: deque[str] = deque(maxlen=KEPT_LINES)
        self.process = subprocess.Popen(
            replica.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
            preexec_fn=die_with_parent(),
        )
        self._reader = threading.Thread(target=self._read, args=(log,), daemon=True)
        self._reader.start()

    def _read(self, log: TextIO) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.tail.append(line.rstrip("\n"))
            # Keep reading even if the disk is full: a replica blocks once its pipe is full.
            with contextlib.suppress(OSError):
                log.write(f"[{self.replica.name}] {line.rstrip()}\n")
                log.flush()

    @property
    def exit_code(self) -> int | None:
        """The exit code, None while running; negative for the signal that killed it."""
        return self.process.poll()

    def signal(self, number: int) -> None:
        """Send a signal to the replica's process group."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def finish(self) -> None:
        """Wait until the process has ended and its output is in the log."""
        self.process.wait()
        self._reader.join(timeout=5)

    def user_error(self) -> UserError | None:
        """Return the user error that the replica reported, or None."""
        line = next((text for text in reversed(self.tail) if text.startswith(ERROR_PREFIX)), None)
        return UserError.from_dict(json.loads(line.removeprefix(ERROR_PREFIX))) if line else None

    def traceback(self) -> str:
        """Return the last traceback in its output, up to the line of the exception; "" if there is none."""
        lines = list(self.tail)
        starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
        if not starts:
            return ""
        block = lines[starts[-1] :]
        end = next(
            (n for n, line in enumerate(block) if n and re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)?\b", line)),
            -1,
        )
        return "\n".join(block[: end + 1] if end > 0 else block)

    def how_it_ended(self) -> str:
        """Return a verb phrase: "was killed by SIGKILL", "failed with exit code 1: KeyError: 'lost'"."""
        code = self.process.returncode
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        if code == 128 + signal.SIGTERM:
            return "was stopped by SIGTERM"
        last = self.traceback().rsplit("\n", 1)[-1]
        return f"failed with exit code {code}" + (f": {last}" if last else "")
