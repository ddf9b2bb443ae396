"""How long a process has waited in a step of the training, and the same of all processes of a replica.

A replica with a process per device watches the other replicas in its initial process, which does not train: its child
processes publish their steps in a file, a row for each.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

# The file of the child processes' rows.
STEPS_VARIABLE = "SLIPWAY_STEPS_FILE"
HEARTBEAT_SECONDS = 1.0
# A pause of the watching thread this long means that this process was frozen: nobody else is to blame for it.
FROZEN_SECONDS = 5.0


@dataclass
class _Steps:
    """Steps that are running; `began` moves on while they do not wait for other replicas."""

    is_waiting: Callable[[], bool]
    began: float


class StepClock:
    """The clock of this process's steps; calling it is the context of some of them. `longest` is in seconds."""

    def __init__(self) -> None:
        self._steps: _Steps | None = None
        self.longest = 0.0
        self._read_at = time.monotonic()

    @contextlib.contextmanager
    def __call__(self, is_waiting: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Time what runs in the context.

        `is_waiting` returns whether it waits for something else than the other replicas; such time does not count.
        """
        steps = self._steps = _Steps(is_waiting, time.monotonic())
        try:
            yield
        finally:
            self._steps = None
            self.longest = max(self.longest, time.monotonic() - steps.began)

    def read(self) -> tuple[float, float]:
        """Return the seconds since the running steps began, 0 between steps, and the longest ones before them.

        A pause since the last call in which this process was frozen, as by the suspension of a laptop, does not count.
        """
        now = time.monotonic()
        pause, self._read_at = now - self._read_at, now
        if (steps := self._steps) is None:
            return 0.0, self.longest
        if steps.is_waiting():
            steps.began = now
        elif pause > FROZEN_SECONDS:
            steps.began += pause
        return now - steps.began, self.longest


class StepsOfProcesses:
    """The steps of a replica's child processes, which `publish` them; a context with their file."""

    def __init__(self, count: int) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="slipway-steps-")  # noqa: SIM115
        self._rows = np.memmap(self._file.name, np.float64, "w+", shape=(count, 2))

    def __enter__(self) -> Self:
        os.environ[STEPS_VARIABLE] = self._file.name
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self) -> tuple[float, float]:
        """Return the shortest time that a process has waited, since one that works is waited for; the longest steps."""
        return float(self._rows[:, 0].min()), float(self._rows[:, 1].max())


def publish(clock: StepClock) -> None:
    """Write the clock to this process's row from now on, if its parent watches the other replicas."""
    if not (path := os.environ.get(STEPS_VARIABLE)):
        return
    rows = np.memmap(path, np.float64, "r+").reshape(-1, 2)
    row = rows[int(os.environ["LOCAL_RANK"]) % len(rows)]  # replicas on one machine number their processes together

    def run() -> None:
        while True:
            row[:] = clock.read()
            time.sleep(HEARTBEAT_SECONDS)

    threading.Thread(target=run, daemon=True).start()
