"""The list of runs: ids that can be copied, and the settings that differ."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipway.pipelines.cli.app import app
from slipway.pipelines.cli.display import MAX_SETTINGS, differences
from slipway.pipelines.config.config import validate
from slipway.pipelines.runs.record import RunRecord, StepRecord, create


def test_the_settings_that_differ_are_shown_and_no_other() -> None:
    same = {"name": "digits", "hardware": "cpu"}
    runs = [
        {**same, "train": {"epochs": 5.0, "learning_rate": 0.001}},
        {**same, "train": {"epochs": 5.0, "learning_rate": 0.01}, "hardware": "cpu*2"},
        {**same, "train": {"steps": 20, "epochs": None, "learning_rate": 0.001}},
    ]
    assert differences(runs) == [
        "train.epochs=5 train.learning_rate=0.001",
        "train.epochs=5 train.learning_rate=0.01",
        "train.learning_rate=0.001 train.steps=20",
    ]
    assert differences(runs[:1]) == [""]


def test_many_differences_are_counted() -> None:
    runs = [{f"setting{number}": each for number in range(MAX_SETTINGS + 3)} for each in (1, 2)]
    assert all(text.endswith(" and 3 more") for text in differences(runs))


def test_the_list_never_cuts_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")
    ids = []
    for epochs in (1, 2):
        values = {"data": {"source": "digits"}, "model": {"builder": "a:b"}, "train": {"epochs": epochs}}
        folder = create(validate({"name": "a" * 40, **values}, "test"))
        folder.write(
            RunRecord(
                run_id=folder.run_id, name="a", platform="local", hardware="cpu", status="succeeded",
                created=datetime.now(UTC), steps=[StepRecord(name="evaluate")],
            )
        )  # fmt: skip
        ids.append(folder.run_id)
    lines = CliRunner().invoke(app, ["list"]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["run", ids[1], "train.epochs=2", ids[0], "train.epochs=1"]
