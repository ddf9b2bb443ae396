"""Restart policy for a job's replicas: which failures are retried, how often, and after what delay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from slipway.components.step import WorkFailed
from slipway.components.train.worker import Worker
from slipway.trainer.checkpoint.store import pointed_step
from slipway.trainer.config import RestartSettings
from slipway.trainer.distributed.signals import ASKED_TO_STOP, PEER_LOST_EXIT_CODE

MOST_BACKOFF_SECONDS = 60.0


@dataclass(frozen=True)
class Restart:
    """A restart of all replicas: the failed replica, the reason, the time (UTC) and the step to resume from."""

    replica: str
    reason: str
    time: str
    step: int
    waited_seconds: float


class Restarts:
    """The restarts of one job. Each replica may cause at most `settings.at_most`."""

    def __init__(self, settings: RestartSettings, checkpoints: Path) -> None:
        self.done: list[Restart] = []
        self._settings, self._checkpoints = settings, checkpoints
        self._by_replica: Counter[str] = Counter()
        self._without_progress = 0

    def next(self, workers: Sequence[Worker], ended: Sequence[Worker]) -> Restart:
        """Return the restart to make after a failed attempt.

        Args:
            workers: All replicas; none is running.
            ended: Those that failed by themselves, earliest first.

        Raises:
            UserError: A replica reported a user error.
            WorkFailed: The user's code failed, or a replica has reached its limit of restarts.
        """
        raise_error_of_user_code(workers, ended)
        cause = _cause(ended)
        name, how = cause.replica.name, cause.how_it_ended()
        self._by_replica[name] += 1
        count, most = self._by_replica[name], self._settings.at_most
        if count > most:
            again = f", for the {_ordinal(count)} time (train.restarts.at_most is {most})" if most else ""
            raise WorkFailed(f"Replica {name} {how}{again}.", cause.traceback())
        step = pointed_step(self._checkpoints) or 0
        if self.done and step > self.done[-1].step:
            self._without_progress = 0
        seconds = min(MOST_BACKOFF_SECONDS, self._settings.backoff_seconds * 2.0**self._without_progress)
        self._without_progress += 1
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.done.append(Restart(name, how, now, step, seconds))
        return self.done[-1]

    def describe(self, restart: Restart) -> str:
        """Return a one-line message about a restart."""
        start = f"the checkpoint of step {restart.step}" if restart.step else "the beginning"
        return (
            f"{restart.replica} {restart.reason}: all start again from {start} in {restart.waited_seconds:g} s "
            f"(restart {self._by_replica[restart.replica]} of at most {self._settings.at_most} for this replica)"
        )


def raise_error_of_user_code(workers: Sequence[Worker], ended: Sequence[Worker]) -> None:
    """Raise errors that a restart cannot fix: a user error reported by a replica, or an exception in one."""
    for worker in workers:
        if (mistake := worker.user_error()) is not None:
            raise mistake
    failed = [worker for worker in ended if 0 < worker.process.returncode < 128]
    for worker in sorted(failed, key=lambda worker: not worker.traceback()):
        raise WorkFailed(f"Replica {worker.replica.name} {worker.how_it_ended()}.", worker.traceback())


def _cause(ended: Sequence[Worker]) -> Worker:
    """Return the replica that most likely caused the others to fail."""

    def likelihood(worker: Worker) -> int:
        if worker.process.returncode == PEER_LOST_EXIT_CODE:
            return 0
        asked = any(line.startswith(ASKED_TO_STOP) for line in worker.tail)
        return 3 if worker.process.returncode < 0 else 2 if asked else 1

    return max(ended, key=likelihood)


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
