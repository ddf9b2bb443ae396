"""The control address of imitated services: faults by the number of the call, recorded calls, and refusals."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.fakes.control import Control
from tests.fakes.services import Services

RUNS = "/api/2.0/mlflow/runs/get?run_id=none"


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    with Services(tmp_path, ["mlflow"]) as services, Control(services) as control:
        yield control


def ask(control: Control) -> int:
    """Return the status of a call of MLflow, which has no run."""
    assert control.services.mlflow is not None
    return requests.get(control.services.mlflow.url + RUNS, timeout=180).status_code


def add_fault(control: Control, **fault: Any) -> int:
    return requests.post(f"{control.url}/faults", json={"method": "runs/get", **fault}, timeout=180).status_code


@pytest.mark.parametrize(
    ("fault", "status"), [(429, 429), (500, 500), (503, 503), ("expired token", 401), ("permission denied", 403)]
)
def test_a_fault_strikes_from_the_call_on_that_it_names(control: Control, fault: object, status: int) -> None:
    assert add_fault(control, fault=fault, at_call=2, times=2) == 200
    assert [ask(control) for _ in range(4)] == [404, status, status, 404]
    calls = requests.get(f"{control.url}/calls?after=1", timeout=180).json()["calls"]
    assert calls == ["mlflow GET /api/2.0/mlflow/runs/get"] * 3


def test_a_broken_connection(control: Control) -> None:
    add_fault(control, fault="reset")
    with pytest.raises(requests.ConnectionError):
        ask(control)
    assert ask(control) == 404


def test_a_stall_ends_after_its_seconds_or_when_faults_are_cleared(control: Control) -> None:
    add_fault(control, fault="stall", seconds=0.5)
    began = time.monotonic()
    assert ask(control) == 404
    assert time.monotonic() - began >= 0.5
    add_fault(control, fault="stall", seconds=1000)
    statuses: list[int] = []
    caller = threading.Thread(target=lambda: statuses.append(ask(control)))
    caller.start()
    while len(control.services.faults.history) < 2:
        time.sleep(0.01)
    assert requests.delete(f"{control.url}/faults", timeout=180).json() == {"struck": 2}
    caller.join(60)
    assert statuses == [404]


@pytest.mark.parametrize(
    "body", [{"fault": 418}, {"fault": 500, "at_call": 0}, {"fault": 500, "code": "print()"}, {}], ids=str
)
def test_what_is_not_a_fault_is_refused(control: Control, body: dict[str, object]) -> None:
    assert add_fault(control, **body) == 400
    assert ask(control) == 404
