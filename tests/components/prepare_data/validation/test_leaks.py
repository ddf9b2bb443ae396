"""Inputs that alone predict the target."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.manifest import TaskName

MakeSettings = Callable[..., DataSettings]
RANDOM = random.Random(0)
NUMBERS = [round(RANDOM.gauss(0, 1), 3) for _ in range(300)]
OTHERS = [round(RANDOM.gauss(0, 1), 3) for _ in range(300)]


@pytest.mark.parametrize(
    ("task", "column", "label", "leak"),
    [
        ("classification", [number > 1 for number in NUMBERS], [number > 1 for number in NUMBERS], "x alone"),
        ("classification", NUMBERS, ["high" if number > 0.5 else "low" for number in NUMBERS], "x alone"),
        ("classification", NUMBERS, ["high" if abs(number) > 0.5 else "low" for number in NUMBERS], ""),
        ("classification", [f"k{n // 2}" for n in range(300)], [n > 0 for n in NUMBERS[:150] for _ in "ab"], ""),
        ("classification", NUMBERS, [0] * 292 + [1] * 8, ""),
        ("regression", NUMBERS, NUMBERS, r"x \(equal to it\) alone"),
        ("regression", [1.8 * number + 32 for number in NUMBERS], NUMBERS, "x alone"),
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
    notes = [note for note in prepared.manifest.notes if "equal another one" not in note]
    assert [note.partition(" predicts")[0] for note in notes] == (
        ["The input " + leak.replace("\\", "")] if leak else []
    )
    assert all(f"predicts the {target} in all 240 training examples" in note for note in notes)
    assert all(note in (prepared.folder / "statistics.html").read_text() for note in prepared.manifest.notes)
