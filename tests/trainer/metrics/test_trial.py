"""The metric of a trial, in the file that Vertex AI reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipway.trainer.metrics import history
from slipway.trainer.metrics.trial import DEFAULT_FILE, trial_metric


def entries(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(history, "is_installed", lambda _name: False)  # no scalars for TensorBoard
    file = tmp_path / "var" / "output.metrics"
    for name, value in {
        "SLIPWAY_TUNED_METRIC": "accuracy",
        "CLOUD_ML_HP_METRIC_FILE": str(file),
        "CLOUD_ML_TRIAL_ID": "7",
    }.items():
        monkeypatch.setenv(name, value)
    return file


def test_validations_are_entries_of_hypertunes_format(file: Path, tmp_path: Path) -> None:
    metrics = history.Metrics(tmp_path / "logs", 0)
    metrics.write("train", 5, 0.5, accuracy=0.1)
    metrics.write("validation", 10, 1.0, accuracy=0.5, loss=1.5)
    metrics.write("validation", 20, 2.0, accuracy=None)
    metrics.write("validation", 30, 3.0, loss=1.0)
    metrics.write("validation", 40, 4.0, accuracy=0.75)
    metrics.close()
    found = entries(file)
    assert all(isinstance(entry.pop("timestamp"), float) for entry in found)
    assert found == [
        {"accuracy": "0.5", "global_step": "10", "trial": "7"},
        {"accuracy": "0.75", "global_step": "40", "trial": "7"},
    ]
    metrics.report_exported(40)
    assert len(entries(file)) == 2
    metrics.report_exported(10)
    last = entries(file)[-1]
    assert (last["accuracy"], last["global_step"]) == ("0.5", "40")


def test_a_resumed_trial_reports_what_its_new_machine_does_not_have(file: Path, tmp_path: Path) -> None:
    metrics = history.Metrics(tmp_path / "logs", 0)
    for step in range(150):
        metrics.write("validation", step, None, accuracy=step / 200)
    metrics.close()
    assert [entry["global_step"] for entry in entries(file)] == [str(step) for step in range(50, 150)]
    file.unlink()
    history.Metrics(tmp_path / "logs", 3).close()
    assert [entry["accuracy"] for entry in entries(file)] == ["0.0", "0.005", "0.01"]


def test_other_trainings_report_nothing() -> None:
    assert trial_metric({}) is None
    assert trial_metric({"SLIPWAY_TUNED_METRIC": "loss"}) is None
    assert trial_metric({"CLOUD_ML_TRIAL_ID": "1"}) is None
    found = trial_metric({"CLOUD_ML_TRIAL_ID": "1", "SLIPWAY_TUNED_METRIC": "loss"})
    assert found is not None
    assert str(found._file) == DEFAULT_FILE
