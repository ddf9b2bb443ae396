"""The processes that prepare data."""

from __future__ import annotations

import gc
import os
import signal
from multiprocessing.util import register_after_fork
from pathlib import Path

import pytest

from slipway.components.prepare_data.workers import WorkerDied, Workers
from slipway.core.memory import MemoryKills

pytestmark = pytest.mark.usefixtures("processes")


def test_a_worker_that_was_killed_for_lack_of_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "out of memory: the limit of its control group is 2.00 GB, the peak was 2.00 GB"
    monkeypatch.setattr(MemoryKills, "describe", lambda _self: told)
    with Workers(_killed, 1) as workers, pytest.raises(WorkerDied) as caught:
        list(workers.run([signal.SIGKILL]))
    assert caught.value.message == f"A process that prepares the data was killed by SIGKILL: {told}."
    assert caught.value.fix == "use fewer processes: --set data.workers=1"
    with Workers(_killed, 1) as workers, pytest.raises(WorkerDied) as caught:
        list(workers.run([signal.SIGTERM]))
    assert "out of memory" not in caught.value.message


def _killed(number: int, _tick: object) -> None:
    os.kill(os.getpid(), number)


class Garbage:
    """Says in which process it is destroyed."""

    def __init__(self, said: Path) -> None:
        self._said, self._own = said, self

    def __del__(self) -> None:
        with self._said.open("a") as file:
            file.write(f"{os.getpid()}\n")


def _collected(_task: object, _tick: object) -> int:
    gc.collect()
    return os.getpid()


def test_a_worker_destroys_nothing_that_its_parent_has_dropped(tmp_path: Path) -> None:
    """A gRPC channel's destructor crashes a fork."""
    said = tmp_path / "said"
    gc.disable()
    try:
        Garbage(said)
        with Workers(_collected, 1) as workers:
            [(_, worker)] = workers.run([None])
        assert worker != os.getpid()
        assert not said.exists()
    finally:
        gc.enable()
    gc.collect()
    assert said.read_text() == f"{os.getpid()}\n"


class Started:
    """Says whether garbage is collected in a process that has just been forked."""

    def __init__(self, said: Path) -> None:
        register_after_fork(self, lambda _started: said.write_text(str(gc.isenabled())))


def _collects(_task: object, _tick: object) -> bool:
    return gc.isenabled()


def test_a_worker_collects_no_garbage_before_that_of_its_parent_is_set_aside(tmp_path: Path) -> None:
    started = Started(tmp_path / "said")
    assert gc.isenabled()
    with Workers(_collects, 1) as workers:
        assert [*workers.run([None])] == [(0, True)]
    assert gc.isenabled()
    del started
    assert (tmp_path / "said").read_text() == "False"
