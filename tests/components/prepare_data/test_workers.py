"""The processes that prepare data."""

from __future__ import annotations

import os
import signal

import pytest

from slipway.components.prepare_data.workers import WorkerDied, Workers
from slipway.core.memory import MemoryKills


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
