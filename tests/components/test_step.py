"""A step's events, log, error line and exit code; each step runs in its own process, as in production."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.core.errors import ERROR_PREFIX, UserError
from slipway.core.exit_codes import TRY_AGAIN


def run_step(tmp_path: Path, body: str) -> tuple[int, list[dict], str]:
    """Run a step's body; gives its exit code, its events and its log."""
    code = "from slipway.components.step import *\nfrom slipway.core.errors import UserError\nimport os, time\n"
    code += f"with step('train') as outcome:\n    {body}\n"
    environment = {**os.environ, "SLIPWAY_EVENTS": str(tmp_path / "events"), "SLIPWAY_LOGS": str(tmp_path)}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert process.stdout + process.stderr == "", "all output belongs in the log"
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert {event["step"] for event in events} == {"train"}
    return process.returncode, events, (tmp_path / "train.log").read_text()


def test_a_finished_step_reports_its_outputs(tmp_path):
    code, events, log = run_step(tmp_path, "outcome.outputs['n'] = 3; outcome.reused = True; os.system('echo from C')")
    assert code == 0
    assert [event["event"] for event in events] == ["started", "finished"]
    assert events[1]["outputs"] == {"n": 3}
    assert events[1]["reused"] is True
    assert 5e6 < events[1]["peak_memory_bytes"] < 1e9
    assert log == "from C\n"


def test_a_users_mistake_is_one_screen_and_one_line_for_programs(tmp_path):
    code, events, log = run_step(tmp_path, "raise UserError('Bad.', setting='a.b', value=3, fix='do it')")
    assert code == 1
    assert events[-1]["event"] == "failed"
    assert "Traceback" not in log
    line = next(line for line in log.splitlines() if line.startswith(ERROR_PREFIX))
    error = UserError.from_dict(json.loads(line.removeprefix(ERROR_PREFIX)))
    assert error.as_dict() == events[-1]["error"]
    assert str(error) in log


def test_our_mistake_keeps_its_traceback(tmp_path):
    code, events, log = run_step(tmp_path, "{}['lost']")
    assert code == 1
    assert events[-1]["error"]["message"] == "KeyError: 'lost'"
    assert "Traceback" in events[-1]["error"]["traceback"]
    assert "KeyError: 'lost'" in log


def test_a_failure_elsewhere_brings_that_traceback(tmp_path):
    _, events, _ = run_step(tmp_path, "raise WorkFailed('It failed.', 'Traceback of the other')")
    assert events[-1]["error"] == {"message": "It failed.", "traceback": "Traceback of the other"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_stop_unwinds_the_step(tmp_path, number):
    body = f"""
    try:
        os.kill(os.getpid(), {number:d}); time.sleep(5)
    finally:
        print("closed")
    """
    code, events, log = run_step(tmp_path, body.strip())
    assert code == 128 + signal.SIGTERM
    assert [event["event"] for event in events] == ["started", "cancelled"]
    assert log == "closed\n"


def test_a_step_that_vertex_ai_stops_asks_for_another_try(tmp_path, monkeypatch):
    monkeypatch.setenv("CLUSTER_SPEC", "{}")
    code, _, _ = run_step(tmp_path, f"os.kill(os.getpid(), {signal.SIGTERM:d}); time.sleep(5)")
    assert code == TRY_AGAIN


def test_a_closed_terminal_does_not_stop_what_nohup_started(tmp_path):
    body = "os.kill(os.getpid(), signal.SIGHUP); outcome.outputs['n'] = 3"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as a new process inherits it
    try:
        code, events, _ = run_step(tmp_path, body)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert code == 0
    assert events[-1]["outputs"] == {"n": 3}


def test_what_the_operating_system_refuses_is_a_users_mistake(tmp_path):
    _, events, log = run_step(tmp_path, "raise OSError(28, os.strerror(28), '/data/shard')")
    assert events[-1]["error"]["message"] == "No space left on device: /data/shard."
    assert "free disk space" in events[-1]["error"]["fix"]
    assert "Traceback" in log


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
@pytest.mark.parametrize("body", ["pass", "{}['lost']", "os.kill(os.getpid(), 15); time.sleep(5)"])
def test_a_step_that_cannot_say_how_it_ended_has_failed(tmp_path, body):
    """Else the platform keeps a result whose outputs nobody knows."""
    code = "from slipway.components.step import *\nfrom slipway.core import events\nimport os, time\n"
    code += f"with step('train') as outcome:\n    os.environ[events.EVENTS_VARIABLE] = '/dev/full'\n    {body}\n"
    environment = {**os.environ, "SLIPWAY_LOGS": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True).returncode != 0


@pytest.mark.parametrize("value", [3, None, "text", 1.5, True])
def test_errors_round_trip(value):
    error = UserError("Bad.", setting="s", value=value, allowed="a", nearest="n", fix="m")
    assert UserError.from_dict(json.loads(json.dumps(error.as_dict()))).as_dict() == error.as_dict()
