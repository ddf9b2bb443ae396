"""Restart policy for a job's replicas: which failures are retried, how often, and after what delay."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TextIO, TypeVar

from slipway.components.step import WorkFailed, raise_if_terminated
from slipway.core import events, exit_codes
from slipway.core.atomic import append_line
from slipway.core.errors import ERROR_PREFIX, UserError
from slipway.core.memory import MemoryKills
from slipway.core.supervision import POLL_SECONDS, write_line
from slipway.trainer.checkpoint.store import pointed_step
from slipway.trainer.config import RestartSettings
from slipway.trainer.distributed.rendezvous import PEER_SECONDS_VARIABLE
from slipway.trainer.distributed.signals import ASKED_TO_STOP

# When the replicas of each attempt started and ended, in the folder of the history.
REPLICAS_FILE = "replicas.jsonl"
MAX_MESSAGE_LINES = 12
MAX_BACKOFF_SECONDS = 60.0
# Printed by a replica that ends because of another one, with the time of the first sign; see rendezvous.py.
LOST = re.compile(r"^lost (.+?): (.+), since (\S+);")
RANK = re.compile(r"\S+ \d+(?: at \S+)? \(rank (\d+)\)")
# Printed by JAX's runtime before it aborts a replica because another one, or the connection to it, is lost.
ABORTED_BY_JAX = "JAX distributed service detected fatal errors"
# Printed by every replica of the trainer at the end.
CHECKSUM = re.compile(r"weights checksum ([0-9a-f]{64})")


@dataclass(frozen=True)
class Restart:
    """A restart of all replicas: the cause, the reason, the time (UTC) and the step to resume from.

    `replica` is the failed replica, or the lost connection of two.
    """

    replica: str
    reason: str
    time: str
    step: int
    waited_seconds: float


class Ended(Protocol):
    """A replica that has ended: a process, or a pod. `tail` is the end of its output."""

    @property
    def name(self) -> str: ...
    @property
    def tail(self) -> Iterable[str]: ...
    @property
    def status(self) -> int: ...


class Restarts:
    """The restarts of one job. Each replica may cause at most `settings.at_most`.

    `memory` says which of the replicas' kills were for lack of memory, if they run on this machine.
    """

    def __init__(self, settings: RestartSettings, checkpoints: Path, memory: MemoryKills | None = None) -> None:
        self._memory = memory
        self.done: list[Restart] = []
        self._settings, self._checkpoints = settings, checkpoints
        self._by_replica: Counter[str] = Counter()
        self._without_progress = 0

    def next(self, workers: Sequence[Ended], failed: Sequence[Ended], how: str | None = None) -> Restart:
        """Return the restart to make after a failed attempt.

        Args:
            workers: All replicas; none is running.
            failed: Those that failed by themselves, earliest first.
            how: What happened to them, as a verb phrase; None: what their exit statuses say.

        Raises:
            UserError: A replica reported a user error, or too often that the storage is unavailable.
            WorkFailed: The user's code failed, or a replica has reached its limit of restarts.
        """
        for worker in workers:
            if (mistake := reported_error(worker.tail)) is not None and not _may_pass(mistake, worker.status):
                raise mistake
        cause = min(failed, key=_root_cause_rank)
        name, trace = cause.name, last_traceback(cause.tail)
        if _status(cause) == exit_codes.PEER_LOST and how is None and (sign := _first_sign(workers)) is not None:
            name, how = sign
        if any(worker.name == name and _status(worker) != worker.status for worker in workers):
            name = f"a connection of {name}"  # closed by the abort
        how = how or exit_codes.describe(_status(cause))
        if cause.status == exit_codes.SIGKILLED and self._memory and (lacking := self._memory.describe()):
            how += f", {lacking}; a smaller train.batch_size or fewer replicas need less"
        unavailable = reported_error(cause.tail)
        can_restart = unavailable is not None or exit_codes.can_restart(cause.status)
        if unavailable is not None:
            how += f": {unavailable.message.rstrip('.')}"
        elif trace and not can_restart:
            how += f": {trace[-1]}"
        self._by_replica[name] += 1
        count, most = self._by_replica[name], self._settings.at_most
        if count > most and unavailable is not None:
            raise unavailable
        if count > most or not can_restart:
            if count > most > 0:
                how += f", for the {_ordinal(count)} time (train.restarts.at_most is {most})"
            raise WorkFailed(f"Replica {name} {how}.", "\n".join(trace))
        step = 0
        with contextlib.suppress(OSError):  # of storage that fails; the replicas read it again
            step = pointed_step(self._checkpoints) or 0
        if self.done and step > self.done[-1].step:
            self._without_progress = 0
        seconds = min(MAX_BACKOFF_SECONDS, self._settings.backoff_seconds * 2.0**self._without_progress)
        self._without_progress += 1
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.done.append(Restart(name, how, now, step, seconds))
        return self.done[-1]

    def note(self, event: str) -> None:
        """Note when the replicas have started or ended, and after how many restarts, beside the history."""
        with contextlib.suppress(OSError):  # a full disk does not end the training
            folder = self._checkpoints.parent / "logs"
            folder.mkdir(parents=True, exist_ok=True)
            record = {"event": event, "restarts": len(self.done), "time": time.time()}
            append_line(folder / REPLICAS_FILE, json.dumps(record))

    def describe(self, restart: Restart) -> str:
        """Return a one-line message about a restart."""
        kept = self._checkpoints.is_dir() and any(self._checkpoints.iterdir())
        other = "the files in the checkpoint folder" if kept else "the beginning"
        start = f"the checkpoint of step {restart.step}" if restart.step else other
        return (
            f"{restart.replica} {restart.reason}: all start again from {start} in {restart.waited_seconds:g} s "
            f"(restart {self._by_replica[restart.replica]} of at most {self._settings.at_most} for this "
            f"{'connection' if 'connection' in restart.replica else 'replica'})"
        )


Replica = TypeVar("Replica", bound=Ended)


def run_to_the_end(
    attempt: Callable[[], tuple[Sequence[Replica], Sequence[Replica]]], policy: Restarts, log: TextIO
) -> list[Restart]:
    """Run a job's replicas until all have succeeded; return the restarts.

    Call this with termination deferred.

    Args:
        attempt: Runs the replicas once; returns all of them, and those that failed by themselves, earliest first.
        policy: Decides whether to run them again.
        log: Receives the messages about restarts.

    Raises:
        UserError: A replica reported an error that the user can fix.
        WorkFailed: A replica failed, or was killed too often, or the replicas' weights differ.
    """
    while True:
        policy.note("started")
        try:
            workers, failed = attempt()
        finally:
            policy.note("ended")
        if not failed:
            check_same_weights(workers)
            return policy.done
        raise_if_terminated()  # the signal may have been sent to this process as well
        restart = policy.next(workers, failed)
        say(policy.describe(restart), log)
        wait(restart.waited_seconds)


def say(text: str, log: TextIO) -> None:
    """Write what happens to a training to its log and to the step's events."""
    write_line(log, text)
    events.message(text)


def wait(seconds: float) -> None:
    """Wait; raise `Terminated` if a stop signal was received. Call this with termination deferred."""
    end = time.monotonic() + seconds
    raise_if_terminated()
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, POLL_SECONDS))
        raise_if_terminated()


def check_same_weights(workers: Sequence[Ended]) -> None:
    """Raise WorkFailed if the replicas report different weight checksums."""
    checksums = {
        worker.name: matches[-1] for worker in workers if (matches := CHECKSUM.findall("\n".join(worker.tail)))
    }
    if len(set(checksums.values())) > 1:
        listed = ", ".join(f"{name} {checksum[:12]}" for name, checksum in checksums.items())
        raise WorkFailed(f"The replicas ended with different weights: {listed}.")


def _first_sign(workers: Sequence[Ended]) -> tuple[str, str] | None:
    """Return which replica or connection was lost, and a verb phrase, by what most replicas printed, then the first."""
    signs = [
        (rank, match[1], match[2], match[3])
        for rank, worker in enumerate(workers)
        for match in map(LOST.match, worker.tail)
        if match
    ]
    if not signs:
        return None
    # A machine behind a cut cable accuses the chief, in the same second as the chief accuses it.
    accusers = Counter(lost for _, lost, _, _ in signs)
    rank, lost, how, _ = min(signs, key=lambda sign: (-accusers[sign[1]], sign[3]))
    for other, accused, of, _ in signs:
        # Of two that accuse each other of the same, neither knows whose cable it is.
        is_mutual = other != rank and (_rank(lost), _rank(accused)) == (other, rank)
        if is_mutual and accusers[accused] == accusers[lost] and of == how:
            lost = f"the connection of {' and '.join(sorted((lost, accused), key=_rank))}"
            break
    name = RANK.sub(
        lambda rank_match: workers[int(rank_match[1])].name if int(rank_match[1]) < len(workers) else rank_match[0],
        lost,
    )
    return name, f"was lost ({how})"


def _rank(replica: str) -> int:
    """Return the rank in a replica's name; -1 for a connection, of two replicas."""
    match = RANK.fullmatch(replica)
    return int(match[1]) if match else -1


def _may_pass(mistake: UserError, status: int) -> bool:
    """Return whether another attempt may succeed after a reported error: the storage is unavailable.

    Replicas that are missing have been waited for; they do not come for another attempt here.
    """
    return status == exit_codes.UNAVAILABLE and mistake.setting != PEER_SECONDS_VARIABLE


def _status(worker: Ended) -> int:
    """Return a replica's exit status; that of a lost replica if JAX's runtime aborted it for one."""
    aborted = worker.status == exit_codes.TRY_AGAIN and any(ABORTED_BY_JAX in line for line in worker.tail)
    return exit_codes.PEER_LOST if aborted else worker.status


def _root_cause_rank(worker: Ended) -> tuple[int, bool, bool]:
    """Rank how likely another replica caused this one's failure.

    Of equal exit statuses, the replica that received the signal itself is the cause, or the one with a traceback.
    """
    asked = any(line.startswith(ASKED_TO_STOP) for line in worker.tail)
    return exit_codes.root_cause_rank(_status(worker)), not asked, not last_traceback(worker.tail)


def reported_error(lines: Iterable[str]) -> UserError | None:
    """Return the last user error that a replica reported in its output, or None."""
    reports = [line for line in lines if line.startswith(ERROR_PREFIX)]
    return UserError.from_dict(json.loads(reports[-1].removeprefix(ERROR_PREFIX))) if reports else None


def last_traceback(output: Iterable[str]) -> list[str]:
    """Return the lines of the last traceback in a replica's output, up to the exception's; [] if there is none.

    An exception's text may continue, such as "PerReplica:{" of TensorFlow: until its brackets are closed.
    """
    lines = list(output)
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if not starts:
        return []
    block = lines[starts[-1] :]
    for number, line in enumerate(block[1:], start=1):
        if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)?\b", line):
            end = number + 1
            while end < min(len(block), number + MAX_MESSAGE_LINES) and _is_open(block[number:end]):
                end += 1
            return block[:end]
    return block


def _is_open(lines: Iterable[str]) -> bool:
    """Return whether a bracket is opened in the lines and not closed."""
    text = "".join(lines)
    return any(text.count(left) > text.count(right) for left, right in ("{}", "[]", "()"))


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
