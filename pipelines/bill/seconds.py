"""The seconds of a training's machines by activity, from the records of its attempts and of its replicas."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from slipway.core.values import JsonObject
from slipway.trainer.metrics import attempt, spent

STARTING = "starting replicas"
LOST = "steps lost to restarts"
PROGRAM = "training program"
IDLE = "idle between restarts"
UNNAMED = "not named"
# The rows of a bill in their order.
ROWS = (
    *(STARTING, attempt.MACHINES, attempt.IMPORTING, spent.COMPILING, spent.STEPS, LOST, PROGRAM, spent.INPUT),
    *(spent.REPLICAS, spent.VALIDATION, spent.CHECKPOINTS, spent.FUNCTION, attempt.EXPORT, attempt.ENDING, IDLE),
    UNNAMED,
)
# A process's start is known to a tick of the kernel.
CLOCK_SECONDS = 0.05
# The activities of the training loop that training from an older checkpoint repeats.
_REPEATED = (
    *(spent.STEPS, spent.INPUT, spent.REPLICAS, spent.VALIDATION, spent.CHECKPOINTS, spent.FUNCTION, spent.OTHER),
)


@dataclass(frozen=True)
class Attempt:
    """A process of the first replica: what it recorded until `time`, and what it did then; see trainer.metrics.attempt.

    `resumed` is the step from which it trained, None if it did not, `step` its last one.
    """

    started: float
    time: float
    activity: str
    resumed: int | None
    step: int
    seconds: dict[str, float]
    saved: list[tuple[int, dict[str, float]]] = field(default_factory=list)


@dataclass(frozen=True)
class Period:
    """When all replicas ran, in seconds since 1970; after `restarts` restarts. `end` is infinite if that is unknown."""

    start: float
    end: float
    restarts: int = 0


@dataclass(frozen=True)
class Seconds:
    """The seconds by activity, what was lost, and how often training resumed from an older step than it had reached."""

    rows: dict[str, float]
    lost_steps: int
    losses: int
    unpaid: float

    @property
    def total(self) -> float:
        """The seconds between the start of the first replica and the end of the last one."""
        return math.fsum(self.rows.values())

    @property
    def named(self) -> float:
        """The fraction of them that is named."""
        return 1.0 - self.rows.get(UNNAMED, 0.0) / self.total if self.total else 1.0


def periods_of(events: Iterable[JsonObject]) -> tuple[list[Period], float]:
    """Return when the replicas ran, by the records of replicas.jsonl, and the seconds in a queue before."""
    periods: list[Period] = []
    created, unpaid = None, 0.0
    for event in sorted(events, key=lambda event: event["time"]):
        if event["event"] == "created":
            created = event["time"]
        elif event["event"] == "started":
            unpaid += event["time"] - created if created is not None else 0.0
            created = None
            periods.append(Period(event["time"], math.inf, event["restarts"]))
        elif periods and periods[-1].end == math.inf:
            periods[-1] = Period(periods[-1].start, event["time"], periods[-1].restarts)
    return periods, unpaid


def by_activity(
    attempts: Iterable[Attempt], periods: Sequence[Period], *, has_finished: bool, unpaid: float = 0.0
) -> Seconds:
    """Return the seconds of a training.

    Args:
        attempts: Its attempts.
        periods: When the replicas ran; none: as long as the attempts.
        has_finished: Whether it has succeeded; otherwise, steps after the last checkpoint are lost, too.
        unpaid: The seconds in a queue.
    """
    ordered = sorted(attempts, key=lambda record: record.started)
    periods = _ended(ordered, periods or [Period(record.started, math.inf) for record in ordered])
    rows: defaultdict[str, float] = defaultdict(float)
    lost_steps = losses = 0
    idle, before = 0.0, math.inf
    for period, inside in zip(periods, _by_period(ordered, periods), strict=True):
        idle += max(0.0, period.start - before) if period.restarts else 0.0
        cursor, before = period.start, period.end
        for number, record in enumerate(inside):
            rows[IDLE if number else STARTING] += max(0.0, record.started - cursor)
            cursor = record.time if number < len(inside) - 1 else period.end
            steps, seconds = _split(record, cursor - record.time, _kept(record, ordered, has_finished=has_finished))
            for name, value in seconds.items():
                rows[name] += value
            lost_steps, losses = lost_steps + steps, losses + bool(steps)
        if not inside:
            rows[STARTING if ordered else PROGRAM] += period.end - period.start
    rows[IDLE] += idle
    rows[UNNAMED] += rows.pop(spent.OTHER, 0.0)
    whole = math.fsum(period.end - period.start for period in periods) + idle
    rows[UNNAMED] += max(0.0, whole - math.fsum(rows.values()))
    return Seconds({name: round(rows[name], 3) for name in ROWS if rows[name] > 0}, lost_steps, losses, unpaid)


def _by_period(ordered: Sequence[Attempt], periods: Sequence[Period]) -> list[list[Attempt]]:
    """Return the attempts of each period: those that started in it, by clocks that differ by up to `CLOCK_SECONDS`."""
    inside: list[list[Attempt]] = [[] for _ in periods]
    for record in ordered:
        begun = sum(period.start <= record.started + CLOCK_SECONDS for period in periods)
        inside[max(0, begun - 1)].append(record)
    return inside


def _ended(ordered: Sequence[Attempt], periods: Sequence[Period]) -> list[Period]:
    """Return the periods with an end: of one whose supervisor was killed, the last record of its attempts."""
    return [
        replace(period, end=max([period.start, *(record.time for record in inside)]))
        if period.end == math.inf
        else period
        for period, inside in zip(periods, _by_period(ordered, periods), strict=True)
    ]


def _kept(record: Attempt, ordered: Sequence[Attempt], *, has_finished: bool) -> int:
    """Return the step until which an attempt's steps are part of the result: later attempts resumed from there."""
    later = [other.resumed for other in ordered if other.started > record.started and other.resumed is not None]
    if later or has_finished:
        return min([record.step, *later])
    return max([step for step, _ in record.saved], default=record.resumed or 0)


def _split(record: Attempt, rest: float, kept: int) -> tuple[int, dict[str, float]]:
    """Return the steps of an attempt that were lost, and its seconds by activity with `rest` after its last record."""
    seconds = defaultdict(float, record.seconds)
    seconds[record.activity] += max(0.0, rest)
    lost = record.step - max(kept, record.resumed) if record.resumed is not None else 0
    if lost <= 0 or record.resumed is None:
        return 0, dict(seconds)
    snapshot = dict(record.saved).get(kept)
    fraction = lost / (record.step - record.resumed)
    for name in _REPEATED:
        repeated = seconds[name] - snapshot.get(name, 0.0) if snapshot else seconds[name] * fraction
        seconds[name] -= repeated
        seconds[LOST] += repeated
    return lost, dict(seconds)
