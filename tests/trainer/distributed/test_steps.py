"""The clock of steps, and that of a replica's processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipway.trainer.distributed import steps
from slipway.trainer.distributed.steps import StepClock, StepsOfProcesses, publish
from tests.trainer.distributed.test_rendezvous import wait_for


def test_a_replica_waits_once_all_of_its_processes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(steps.STEPS_VARIABLE, "")
    monkeypatch.setattr(steps, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setenv("LOCAL_RANK", "0")
    publish(alone := StepClock())  # no parent watches: nothing is written
    with StepsOfProcesses(2) as together:
        clocks = [StepClock(), StepClock()]
        for number, clock in enumerate(clocks):
            monkeypatch.setenv("LOCAL_RANK", str(2 + number))  # the second replica of its machine
            publish(clock)
        with clocks[0](), alone():
            wait_for(lambda: clocks[0].read()[0] > 0.1)
            assert together.read() == (0.0, 0.0)  # the other one works
            with clocks[1]():
                wait_for(lambda: together.read()[0] > 0.1)
                assert together.read()[0] < clocks[0].read()[0]
            wait_for(lambda: together.read() == (0.0, clocks[1].longest))
        file = Path(os.environ[steps.STEPS_VARIABLE])
    assert not file.exists()


def test_a_pause_of_the_machine_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(steps.time, "monotonic", lambda: now)
    clock = StepClock()
    with clock():
        now = 4.0
        assert clock.read() == (4.0, 0.0)
        now = 64.0  # the laptop was closed for a minute
        assert clock.read() == (4.0, 0.0)
        now = 66.0
        assert clock.read() == (6.0, 0.0)
    assert clock.read() == (0.0, 6.0)
