"""The seconds of an attempt of a training by activity, in a file that a killed process leaves behind.

An attempt is a process of the first replica, from its start to its end. The bill of a run (`slipway runs bill`) adds up
the attempts: a restarted or resumed training has several.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path

from slipway.core import idle
from slipway.core.atomic import replace_file
from slipway.core.paths import in_bucket
from slipway.trainer.metrics.history import MOUNTED_SEGMENT_SECONDS
from slipway.trainer.metrics.spent import OTHER, Spent

# In the folder of metrics.jsonl: a file for each attempt, by its start.
FOLDER = "attempts"
# Activities outside of the training loop.
IMPORTING, MACHINES = "importing and building", "waiting for machines"
EXPORT, ENDING = "export and evaluation", "ending"
# Between two writes of the same activity; in a bucket, a write replaces the object.
WRITE_SECONDS = 0.02
# The same as a multiple of how long the last one took: on a slow disk, writing takes 1 % of the time, too.
WRITE_RATIO = 100
# Checkpoints of which the seconds until then are kept: training may resume from an older one than the newest.
SAVED = 4


class Attempt:
    """The stopwatch of this process, from its start on. `folder` is that of the history, None but on the chief.

    Attributes:
        spent: The activities of the training loop while it runs; None before and after it.
    """

    def __init__(self, folder: Path | None) -> None:
        age = _process_age()
        self.spent: Spent | None = None
        self._started, self._began = time.time() - age, time.perf_counter() - age
        self._activity, self._since = IMPORTING, self._began
        self._seconds: dict[str, float] = {}
        self._resumed: int | None = None
        self._step = 0
        self._saved: list[tuple[int, dict[str, float]]] = []
        self._file = folder / FOLDER / f"{round(1000 * self._started)}.json" if folder else None
        self._is_mounted = folder is not None and in_bucket(folder)
        self._size, self._written_at, self._took, self._doing = 0, 0.0, 0.0, ""
        self._lock = threading.Lock()
        self.write(IMPORTING)

    def begin(self, activity: str) -> None:
        """Begin an activity outside of the training loop."""
        now = time.perf_counter()
        self._seconds, self._activity, self._since = self._by_activity(now), activity, now
        self.spent = None
        idle.sign(activity, busy=activity in (EXPORT, ENDING))
        self.write(activity)

    def begin_loop(self, step: int, spent: Spent) -> None:
        """Begin the training loop at the step from which it resumes."""
        self.begin(OTHER)
        self.spent, self._resumed, self._step = spent, step, step

    def write(self, activity: str, step: int | None = None) -> None:
        """Write the seconds so far, soon after the last time only if the activity is another one."""
        self._step = self._step if step is None else step
        now = time.perf_counter()
        every = MOUNTED_SEGMENT_SECONDS if self._is_mounted else max(WRITE_SECONDS, WRITE_RATIO * self._took)
        if self._file is None or (activity == self._doing and now - self._written_at < every):
            return
        self._doing, self._written_at = activity, now
        record = {
            "started": self._started, "time": self._started + now - self._began, "activity": activity,
            "resumed": self._resumed, "step": self._step, "seconds": self._by_activity(now), "saved": self._saved,
        }  # fmt: skip
        content = json.dumps(record).encode()
        if self._is_mounted:
            threading.Thread(target=self._store, args=(content,), daemon=True).start()
        else:
            self._store(content)
            self._took = time.perf_counter() - now

    def saved(self, step: int) -> None:
        """Note that a checkpoint of this step was saved: what follows is lost if training resumes from it."""
        if self._file is not None and (not self._saved or self._saved[-1][0] != step):
            self._saved = [*self._saved[1 - SAVED :], (step, self._by_activity(time.perf_counter()))]

    def _by_activity(self, now: float) -> dict[str, float]:
        seconds, inside = dict(self._seconds), self.spent.seconds if self.spent else {}
        for name, value in {**inside, self._activity: now - self._since - sum(inside.values())}.items():
            seconds[name] = round(seconds.get(name, 0.0) + value, 4)
        return seconds

    def _store(self, content: bytes) -> None:
        """Replace the file's content; not atomically on a local disk, where it is done up to 50 times per second."""
        assert self._file is not None
        with self._lock, contextlib.suppress(OSError):  # a full disk does not end the training
            self._file.parent.mkdir(parents=True, exist_ok=True)
            if self._is_mounted:
                replace_file(self._file, content, durable=False)
                return
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(descriptor, content.ljust(self._size), 0)
            finally:
                os.close(descriptor)
            self._size = max(self._size, len(content))


def _process_age() -> float:
    """Return how many seconds ago this process was started, or forked; 0 where the system does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    started = (ticks + 1) / os.sysconf("SC_CLK_TCK")  # the end of the tick: not before what caused it
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
