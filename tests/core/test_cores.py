"""The cores of a process, divided between the processes of a machine."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from slipway.core import cores

linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be confined to cores")


def parts(available: set[int], processes: int, monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """Return the cores that each process confines itself to."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: available)
    taken: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, chosen: taken.append(set(chosen)))
    for number in range(processes):
        cores.take_part(number, processes)
    return taken


@linux
@pytest.mark.parametrize(
    ("available", "processes", "expected"),
    [
        ({0, 1}, 2, [{0}, {1}]),
        ({2, 3, 6, 7}, 2, [{2, 3}, {6, 7}]),
        ({0, 1, 2}, 2, [{0}, {1, 2}]),
        ({0, 1}, 4, [{0}, {0}, {1}, {1}]),
        ({5}, 3, [{5}, {5}, {5}]),
    ],
)
def test_processes_divide_the_cores(
    available: set[int], processes: int, expected: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parts(available, processes, monkeypatch) == expected


@linux
def test_a_process_has_no_more_cores_than_its_part() -> None:
    def of_one_in_many() -> int:
        cores.take_part(0, 10_000)
        return cores.available_cores()

    with ThreadPoolExecutor(1) as thread:  # the mask is the thread's own
        assert thread.submit(of_one_in_many).result() == 1


def test_without_affinity_the_number_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(cores, "_sharing", 1)
    assert cores.available_cores() == 8
    cores.take_part(1, 3)
    assert cores.available_cores() == 2
