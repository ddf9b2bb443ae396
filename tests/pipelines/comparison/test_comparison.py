"""Runs are selected and sorted by metrics, settings and facts, and compared on one page."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from slipway.core.errors import UserError
from slipway.pipelines.comparison.page import render
from slipway.pipelines.config.config import validate
from slipway.pipelines.runs import provenance
from slipway.pipelines.runs.record import RunFolder, RunRecord, StepRecord
from slipway.pipelines.selection.selection import Row, differences, read, select


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    """Three runs with accuracies, of rising learning rates, and one that failed."""
    settings = [(0.001, "adam", 0.95), (0.01, "sgd", 0.99), (0.1, "adam", 0.97), (1.0, "adam", None)]
    return [run(tmp_path, number, *each) for number, each in enumerate(settings)]


def run(root: Path, number: int, rate: float, optimizer: str, accuracy: float | None) -> Row:
    folder = RunFolder(root / f"run-{number}")
    folder.path.mkdir()
    metrics = {} if accuracy is None else {"accuracy": accuracy, "loss": 1 - accuracy}
    outputs = {
        "metrics": metrics,
        "metric": "accuracy",
        "intervals": {"accuracy": [0.9, 0.999]},
        "verdict": {"decision": "promote"},
    }
    record = RunRecord(
        run_id=folder.run_id,
        name="digits",
        platform="local",
        hardware="cpu",
        status="succeeded" if metrics else "failed",
        created=datetime(2026, 11, 1, tzinfo=UTC) + timedelta(hours=number),
        steps=[
            StepRecord(name="prepare_data", outputs={"fingerprint": "0123456789abcdef"}),
            StepRecord(name="train", outputs={"validation": {"accuracy": 0.5 + number / 10}}),
            StepRecord(name="evaluate", outputs=outputs if metrics else {}),
        ],
    )
    folder.write(record)
    folder.configuration_file.write_text(yaml.safe_dump({"train": {"learning_rate": rate, "optimizer": optimizer}}))
    history = [{"kind": "validation", "step": step, "accuracy": step / 10, "steps_per_second": 9} for step in (1, 2)]
    logs = folder.path / "train" / "logs"
    logs.mkdir(parents=True)
    (logs / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in history))
    (folder.path / provenance.FILE_NAME).write_text(json.dumps({"commit": f"{str(number) * 40}-dirty"}))
    return read(folder)


def numbers(rows: list[Row]) -> list[int]:
    return [int(row.record.run_id[-1]) for row in rows]


@pytest.mark.parametrize(
    ("conditions", "order", "expected"),
    [
        ([], None, [0, 1, 2, 3]),
        (["accuracy>=0.97"], None, [1, 2]),
        (["accuracy > 0.95", "train.optimizer=adam"], None, [2]),
        (["train.optimizer!=sgd"], "-train.learning_rate", [3, 2, 0]),
        (["status=failed"], None, [3]),
        (["validation.accuracy<0.65"], "validation.accuracy", [0, 1]),
        ([], "-accuracy", [1, 2, 0, 3]),
        ([], "created", [0, 1, 2, 3]),
        (["accuracy>high"], None, []),
    ],
)
def test_runs_are_selected_and_sorted(
    rows: list[Row], conditions: list[str], order: str | None, expected: list[int]
) -> None:
    assert numbers(select(rows, conditions, order)) == expected


@pytest.mark.parametrize(
    ("conditions", "order", "said"),
    [
        (["acuracy>0.9"], None, "closest:  accuracy"),
        (["accuracy"], None, "fix:      --where 'accuracy>0.97'"),
        ([], "-train.learning_rat", "closest:  train.learning_rate"),
    ],
)
def test_a_value_that_no_run_has_is_refused(
    rows: list[Row], conditions: list[str], order: str | None, said: str
) -> None:
    with pytest.raises(UserError, match=r"is not a condition|No run has") as refused:
        select(rows, conditions, order)
    assert said in str(refused.value)


def test_programs_are_compared_by_their_options(tmp_path: Path) -> None:
    def program(number: int, *arguments: str) -> Row:
        row = run(tmp_path, number, 0.1, "adam", 0.9)
        tune = {"parameters": {"--lr": {"low": 0.001, "high": 1.0}}, "trials": number + 1}
        values = {"name": "x", "train": {"module": "program", "arguments": arguments}, "tune": tune}
        row.folder.configuration_file.write_text(validate(values, "test").as_yaml())
        return read(row.folder)

    rows = [program(0, "--lr", "1e-3", "--fast"), program(1, "--lr", "0.5"), program(2, "--lr=0.1", "--epochs=3")]
    assert differences([row.settings for row in rows]) == [
        "train.arguments.epochs", "train.arguments.fast", "train.arguments.lr"
    ]  # fmt: skip
    assert numbers(select(rows, ["train.arguments.lr<2e-1"], "train.arguments.lr")) == [0, 2]
    with pytest.raises(UserError, match=r"No run has 'train\.engine'"):
        select(rows, ["train.engine=tensorflow"], None)


def test_the_page_shows_what_differs_and_marks_the_best(rows: list[Row]) -> None:
    page = render(rows)
    assert re.findall(r'class="best">([\d.]+)', page) == ["0.9900", "0.0100"]
    assert "0.9000 – 0.9990" in page
    assert re.findall(r'<th class="text">(train\.\w+)', page) == ["train.learning_rate", "train.optimizer"]
    assert page.count("accuracy in validation, a line per run") + page.count("accuracy in validation by step") == 1
    assert "steps per second" not in page
    assert page.count("<polyline") >= 4 + 3
    assert "333333333333-dirty" in page
    assert "0123456789ab" in page
    assert "<script" not in page


def test_rows_of_many_runs_are_folded(rows: list[Row]) -> None:
    assert "<details>" not in render(rows)
    page = render(rows * 30)
    assert page.count("20 more runs") == 3
    assert page.count(">run-1</th>") == 3 * 30
