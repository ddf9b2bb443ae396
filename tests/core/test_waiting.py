"""What a command says of calls that take long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from slipway.components.cloud import operations
from slipway.components.cloud.retries import retried
from slipway.core import waiting

HOST = "storage.googleapis.com"


class Refused(Exception):
    code = 503


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    printed: list[str] = []
    monkeypatch.setattr(waiting, "SECONDS", 0.02)
    monkeypatch.setattr(waiting, "OPERATION_SECONDS", 0.02)
    monkeypatch.setattr(waiting, "AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(waiting, "_newest", float("-inf"))
    waiting.announce(printed.append)
    yield printed
    waiting.announce(None)


def until(lines: list[str], count: int) -> None:
    ends = time.monotonic() + 60
    while len(lines) < count and time.monotonic() < ends:
        time.sleep(0.005)


def test_a_call_that_hangs_is_said_again_and_again(lines: list[str]) -> None:
    def hang() -> str:
        waiting.asked(HOST)
        until(lines, len(lines) + 2)
        return "answer"

    assert retried(hang) == "answer"
    assert len(lines) >= 2
    assert lines[-1].startswith(f"waiting for {HOST}: no answer after ")
    assert lines[-1].endswith(" s (try 1 of 10)")


def test_a_call_that_fails_says_why_and_when_it_is_tried_again(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.1")
    monkeypatch.setattr(waiting.Call, "_start_timer", lambda call, seconds: None)  # whose lines come in between
    failures = iter((Refused("unavailable"), Refused("unavailable")))

    def fail() -> str:
        for error in failures:
            time.sleep(0.02)
            raise error
        return "answer"

    assert retried(fail, service="the server") == "answer"
    assert "waiting for the server: 503 Service Unavailable; try 2 of 10 in 1 s" in lines


def test_quick_calls_say_nothing(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SECONDS", 30.0)
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.001")
    failures = iter((Refused(), ConnectionResetError()))

    def fail() -> str:
        for error in failures:
            raise error
        return "answer"

    assert retried(fail) == "answer"
    assert lines == []


def test_many_calls_at_once_say_one_line(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(waiting, "AGAIN_SECONDS", 30.0)
    threads = [threading.Thread(target=retried, args=(ended.wait,)) for _ in range(8)]
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)  # all lines are due at one time
    for thread in threads:
        thread.start()
    while not lines:
        threading.Event().wait(0.005)
    ended.set()
    for thread in threads:
        thread.join()
    assert lines == ["waiting for Google Cloud: no answer after 0 s (try 1 of 10)"]


def test_a_call_that_ends_while_its_line_is_printed_says_nothing_more(lines: list[str]) -> None:
    printing, ended = threading.Event(), threading.Event()

    def say(line: str) -> None:
        lines.append(line)
        printing.set()
        ended.wait(60)

    waiting.announce(say)
    retried(lambda: printing.wait(60))
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    ended.set()
    for timer in timers:
        timer.join()
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert len(lines) == 1


def test_an_operation_is_said_by_what_it_does(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.001")
    monkeypatch.setattr(waiting, "SECONDS", 30.0)  # what reads the operation is a call, too, which says nothing here

    def read(name: str) -> dict[str, object]:
        until(lines, 1)
        return {"name": name, "done": True, "response": {}}

    operations.finished({"name": "operations/1"}, read, "enable the APIs")
    assert lines[0].startswith("waiting for Google to enable the APIs: not done after ")


def test_without_a_command_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Timer", lambda *arguments: pytest.fail("a thread"))
    assert retried(lambda: 3) == 3
