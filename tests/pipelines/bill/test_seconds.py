"""The seconds of simulated trainings, which are killed at random moments, by activity."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest

from slipway.pipelines.bill.seconds import (
    IDLE,
    LOST,
    PROGRAM,
    STARTING,
    UNNAMED,
    Attempt,
    Period,
    by_activity,
    periods_of,
)
from slipway.trainer.metrics import attempt as attempts
from slipway.trainer.metrics import spent

STEPS = 400


@dataclass
class Simulation:
    """A training of `STEPS` steps that is killed at random moments, and what its processes record of it."""

    chance: random.Random
    clock: float = 1_000_000.0
    records: list[Attempt] = field(default_factory=list)
    periods: list[Period] = field(default_factory=list)
    lost_steps: int = 0
    repeated_seconds: float = 0.0
    checkpoint: int = 0

    def run(self) -> None:
        """Train until the last step."""
        restarts = 0
        while not self.attempt(restarts):
            is_resumed = self.chance.random() < 0.3  # by a command, after its supervisor was killed, too
            restarts = 0 if is_resumed else restarts + 1
            if is_resumed and self.chance.random() < 0.5:
                self.periods[-1] = Period(self.periods[-1].start, math.inf, self.periods[-1].restarts)
            self.clock += 3600 if is_resumed else self.chance.uniform(0.0, 5.0)

    def attempt(self, restarts: int) -> bool:
        """Run until the end, or a kill; return whether it was the end."""
        begun, kill = self.clock, self.clock + self.chance.expovariate(1 / 60)
        self.clock += self.chance.uniform(0.0, 1.0)
        record = Attempt(self.clock, self.clock, attempts.IMPORTING, None, 0, {attempts.IMPORTING: 0.0})
        step, since = self.checkpoint, 0.0
        alive = self.spend(record, attempts.IMPORTING, self.chance.uniform(1.0, 9.0), kill)
        if alive:
            record = self.changed(record, resumed=step, step=step)
            alive = self.spend(record, spent.COMPILING, self.chance.uniform(0.1, 5.0), kill)
        while alive and step < STEPS:
            before = self.clock
            waiting = self.chance.choice((0.0, 0.0, 0.2))
            alive = self.spend(record, spent.INPUT, waiting, kill) and self.spend(record, spent.STEPS, 0.1, kill)
            since += self.clock - before
            if alive:
                step += 1
                record = self.changed(record, step=step)
                if self.chance.random() < 0.02 and (alive := self.spend(record, spent.CHECKPOINTS, 0.05, kill)):
                    self.checkpoint, since = step, 0.0
                    saved = [*record.saved[-3:], (step, dict(record.seconds))]
                    record = self.changed(record, saved=saved)
        alive = alive and self.spend(record, attempts.EXPORT, 2.0, kill)
        self.records.append(self.changed(record))
        self.periods.append(Period(begun, self.clock, restarts))
        if not alive:
            self.lost_steps += step - self.checkpoint
            self.repeated_seconds += since if step > self.checkpoint else 0.0
        return alive

    def spend(self, record: Attempt, activity: str, seconds: float, kill: float) -> bool:
        """Spend time on an activity; what a killed process did after its last record is in no record."""
        object.__setattr__(record, "activity", activity)
        if self.clock + seconds >= kill:
            self.clock = max(self.clock, kill)
            return False
        self.clock += seconds
        record.seconds[activity] = record.seconds.get(activity, 0.0) + seconds
        object.__setattr__(record, "time", self.clock)
        return True

    def changed(self, record: Attempt, **values: object) -> Attempt:
        return Attempt(**{**record.__dict__, **values})


@pytest.mark.parametrize("seed", random.Random(20261130).sample(range(10**6), 50))
def test_every_second_of_a_disturbed_training_is_named_and_lost_steps_are_those_that_were_repeated(seed: int) -> None:
    simulation = Simulation(random.Random(seed))
    simulation.run()
    seconds = by_activity(simulation.records, simulation.periods, has_finished=True)
    assert seconds.lost_steps == simulation.lost_steps, seed
    assert seconds.named >= 0.95, seed
    assert seconds.rows.get(spent.STEPS, 0.0) == pytest.approx(0.1 * STEPS, abs=2.0), seed
    # The last record of a killed process may be up to a step old, if that of its supervisor is lost, too.
    assert seconds.rows.get(LOST, 0.0) <= simulation.repeated_seconds + 0.3 * len(simulation.records), seed
    held = sum(period.end - period.start for period in simulation.periods if period.end < math.inf)
    assert seconds.total >= held - 0.01, seed


def test_the_steps_after_the_last_checkpoint_of_a_failed_training_are_lost() -> None:
    record = Attempt(100.0, 120.0, spent.STEPS, 0, 30, {spent.STEPS: 20.0}, [(20, {spent.STEPS: 12.0})])
    seconds = by_activity([record], [Period(98.0, 121.0)], has_finished=False)
    assert (seconds.lost_steps, seconds.losses) == (10, 1)
    assert seconds.rows == {STARTING: 2.0, spent.STEPS: 12.0, LOST: 9.0}


def test_training_that_resumes_from_an_older_checkpoint_loses_a_part_of_earlier_attempts() -> None:
    first = Attempt(0.0, 10.0, spent.CHECKPOINTS, 0, 10, {spent.STEPS: 10.0})
    second = Attempt(20.0, 30.0, spent.STEPS, 10, 20, {spent.STEPS: 10.0})
    third = Attempt(40.0, 55.0, attempts.ENDING, 5, 20, {spent.STEPS: 15.0})
    seconds = by_activity([third, first, second], [], has_finished=True)
    assert seconds.lost_steps == 5 + 10
    assert seconds.rows == {spent.STEPS: 20.0, LOST: 15.0}


def test_time_between_restarts_is_idle_and_the_queue_is_not_paid() -> None:
    events = [
        {"event": "created", "time": 0.0},
        {"event": "started", "restarts": 0, "time": 60.0},
        {"event": "ended", "restarts": 0, "time": 70.0},
        {"event": "started", "restarts": 1, "time": 75.0},
        {"event": "ended", "restarts": 1, "time": 90.0},
    ]
    periods, unpaid = periods_of(events)
    seconds = by_activity([], periods, has_finished=True, unpaid=unpaid)
    assert (unpaid, seconds.unpaid) == (60.0, 60.0)
    assert seconds.rows == {PROGRAM: 25.0, IDLE: 5.0}


def test_what_the_training_loop_does_besides_is_not_named() -> None:
    record = Attempt(0.0, 10.0, attempts.ENDING, 0, 10, {spent.STEPS: 6.0, spent.OTHER: 3.0})
    seconds = by_activity([record], [Period(0.0, 10.0)], has_finished=True)
    assert seconds.rows == {spent.STEPS: 6.0, UNNAMED: 4.0}
    assert seconds.named == pytest.approx(0.6)
