"""Inputs that alone predict the target."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.validation import input_scores
from slipway.components.prepare_data.validation.leaks import near_model_notes
from slipway.core.manifest import Input, TaskName

MakeSettings = Callable[..., DataSettings]
RANDOM = random.Random(0)
NUMBERS = [round(RANDOM.gauss(0, 1), 3) for _ in range(300)]
OTHERS = [round(RANDOM.gauss(0, 1), 3) for _ in range(300)]
HIGH = ["high" if number > 0.5 else "low" for number in NUMBERS]
DATES = [str(datetime.date(2024, 1, 1) + datetime.timedelta(100 + 30 * number)) for number in NUMBERS]
EXCEPTION = [-3.0 if number == max(NUMBERS) else number for number in NUMBERS]


@pytest.mark.parametrize(
    ("task", "column", "label", "leak"),
    [
        ("classification", [n > 1 for n in NUMBERS], [n > 1 for n in NUMBERS], "x (AUC 1.0000) alone"),
        ("classification", NUMBERS, HIGH, "x (AUC 1.0000) alone"),
        ("classification", EXCEPTION, HIGH, "x (AUC 0.98"),
        ("classification", DATES, HIGH, "x (AUC 1.0000) alone"),
        ("classification", ["" if high == "high" else 1.5 for high in HIGH], HIGH, "x (AUC 1.0000) alone"),
        ("classification", [f"{high} {n % 9}" for n, high in enumerate(HIGH)], HIGH, "x (AUC "),
        ("classification", NUMBERS, ["high" if abs(number) > 0.5 else "low" for number in NUMBERS], "x (AUC 0.9"),
        ("classification", [f"k{n // 2}" for n in range(300)], [n > 0 for n in NUMBERS[:150] for _ in "ab"], ""),
        ("classification", [n + 2 * o for n, o in zip(NUMBERS, OTHERS, strict=True)], HIGH, ""),
        ("classification", NUMBERS, [0] * 292 + [1] * 8, ""),
        ("regression", NUMBERS, NUMBERS, "x (equal to it) alone"),
        ("regression", EXCEPTION, NUMBERS, "x (R² 0.9"),
        ("regression", [1.8 * number + 32 for number in NUMBERS], NUMBERS, "x (R² 1.0000) alone"),
        ("regression", [round(np.exp(3 * number), 6) for number in NUMBERS], NUMBERS, "x (R² 1.0000) alone"),
        ("regression", DATES, NUMBERS, "x (R² 0.99"),
        ("regression", [number + other for number, other in zip(NUMBERS, OTHERS, strict=True)], NUMBERS, ""),
        ("regression", [7] * 300, NUMBERS, ""),
    ],
)  # fmt: skip
def test_an_input_that_alone_predicts_the_target_is_noted(
    tmp_path: Path, make_settings: MakeSettings, task: TaskName, column: list[object], label: list[object], leak: str
) -> None:
    rows = [",".join(map(str, row)) for row in zip(column, OTHERS, label, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["x,other,label", *rows]))
    prepared = prepare(make_settings(f"csv:{tmp_path / 't.csv'}"), 2, task=task)
    target = "target" if task == "regression" else "class"
    notes = [note for note in prepared.manifest.notes if "alone predicts" in note]
    assert len(notes) == bool(leak)
    assert all(note.startswith(f"The input {leak}") for note in notes)
    assert all(f"alone predicts the {target}, in 240 training examples" in note for note in notes)
    assert all(note in (prepared.folder / "statistics.html").read_text() for note in notes)


@pytest.mark.parametrize(
    ("task", "metrics", "note"),
    [
        (
            "classification",
            {"macro_auc": 0.89},
            "The model's AUC is 0.8900, and one input reaches nearly as much or more",
        ),
        ("classification", {"macro_auc": 0.7}, "The model's AUC is 0.7000, and one input reaches"),
        ("classification", {"macro_auc": 0.97}, ""),
        ("classification", {}, ""),
        ("regression", {"r2": 0.5}, "The model's R² is 0.5000, and one input reaches"),
        ("regression", {"r2": -0.2}, "The model's R² is −0.2000, and one input reaches"),
        ("regression", {"r2": 0.9}, ""),
    ],
)
def test_an_input_near_the_models_metric_is_noted(
    tmp_path: Path, make_settings: MakeSettings, task: TaskName, metrics: dict[str, float], note: str
) -> None:
    """The input alone has an AUC of 0.87, or an R² of 0.5."""
    mixed = [n + (o if task == "regression" else 0.8 * o) for n, o in zip(NUMBERS, OTHERS, strict=True)]
    noise = [round(RANDOM.gauss(0, 1), 3) for _ in range(300)]
    label = NUMBERS if task == "regression" else HIGH
    rows = [",".join(map(str, row)) for row in zip(mixed, noise, label, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["x,other,label", *rows]))
    prepared = prepare(make_settings(f"csv:{tmp_path / 't.csv'}"), 2, task=task)
    notes = near_model_notes(prepared.folder, prepared.manifest, metrics)
    assert [each.startswith(note) and "alone: x 0." in each for each in notes] == [True] * bool(note)
    alone = {name: each for name, each in prepared.manifest.inputs.items() if name == "x"}
    assert near_model_notes(prepared.folder, prepared.manifest.model_copy(update={"inputs": alone}), metrics) == []


def test_one_exception_in_1000_rows_does_not_hide_a_leak() -> None:
    generator = np.random.default_rng(0)
    labels = (generator.random(1000) < 0.3).astype(int)
    values = labels + 0.4 * generator.random(1000)
    values[np.flatnonzero(labels)[0]] = -5
    score = input_scores.score(values.tolist(), labels.tolist(), Input(kind="number"), "classification")
    assert input_scores.area(values, labels == 1) == pytest.approx(roc_auc_score(labels, values), abs=1e-12)
    assert 0.99 < roc_auc_score(labels, values) <= score < 1
    targets = generator.normal(0, 1, 1000)
    copy = targets.copy()
    copy[3] = 1e6
    assert input_scores.score(copy.tolist(), targets.tolist(), Input(kind="number"), "regression") > 0.98


@pytest.mark.parametrize("kind", ["number", "category"])
def test_inputs_that_predict_nothing_are_near_one_half(kind: str) -> None:
    """Out of fold, also with as many texts as examples, and few of a class."""
    generator = np.random.default_rng(1)
    for _ in range(50):
        labels = (generator.random(400) < 0.05).astype(int)
        values = generator.integers(0, 60, 400)
        column = [f"k{value}".encode() for value in values] if kind == "category" else values.tolist()
        assert input_scores.score(column, labels.tolist(), Input(kind=kind), "classification") < 0.85
        assert input_scores.score(column, generator.normal(size=400).tolist(), Input(kind=kind), "regression") < 0.3
