"""Equal inputs with different labels in tables and texts."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.components.prepare_data.listing import conflicts
from slipway.components.prepare_data.listing.repeats import Repeats
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.manifest import TaskName

MakeSettings = Callable[..., DataSettings]
RANDOM = np.random.default_rng(0)
ROWS = [[round(float(number), 4), RANDOM.choice(["Bern", "Zug"]), "yes" if number > 0 else "no"]
        for number in RANDOM.normal(size=200)]  # fmt: skip
TEXTS = [
    [" ".join(RANDOM.choice(["the", "cat", "dog", "bites", "sees", "a"], 9)), "yes" if number % 2 else "no"]
    for number in range(100)
]


def notes(path: Path, make_settings: MakeSettings, rows: Sequence[Sequence[object]], task: TaskName) -> list[str]:
    """Return the notes on equal inputs of a table, whose last column is the label, prepared as a data set."""
    with (path / "t.csv").open("w") as file:
        csv.writer(file).writerows([[*["x", "city"][: len(rows[0]) - 1], "label"], *rows])
    manifest = prepare(make_settings(f"csv:{path / 't.csv'}"), 2, task=task).manifest
    return [note for note in manifest.notes if "of one with another label" in note]


@pytest.mark.parametrize(
    ("rows", "task", "note"),
    [
        (ROWS, "classification", ""),
        ([*ROWS, ROWS[0]], "classification", ""),
        ([*ROWS, [0.5, "Bern", "yes"], [0.5, "Bern", "no"], [0.5, "Bern", "no"]], "classification",
         "3 of 203 rows compared have the inputs of one with another label, such as x 0.5, city Bern (no, yes): any "
         "model is wrong on at least 1."),
        ([*ROWS, [0.5, "", "yes"], [0.5, "", "no"]], "multilabel", "2 of 202 rows compared "),
        ([[number, city, len(city) + index / 9] for index, (number, city, _) in enumerate([*ROWS, *ROWS])],
         "regression", ""),
        ([[index % 5, "Bern", "yes" if index % 2 else "no"] for index in range(200)], "classification", ""),
        ([*TEXTS, *(["the cat sees a dog and the dog sees a cat", label] for label in ("no", "yes"))],
         "classification", "2 of 102 rows compared have the inputs of one with another label, such as x the cat sees a "
         "dog and the dog sees a ca… (no, yes)"),
    ],
)  # fmt: skip
def test_equal_inputs_with_different_labels_are_noted(
    tmp_path: Path, make_settings: MakeSettings, rows: Sequence[Sequence[object]], task: TaskName, note: str
) -> None:
    noted = notes(tmp_path, make_settings, rows, task)
    assert [text.startswith(note) for text in noted] == [True] * bool(note), noted


def test_of_many_examples_the_first_are_compared(
    tmp_path: Path, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicts, "MAX_EXAMPLES", 50)
    rows = [[number, city, other] for number, city, _ in ROWS for other in ("yes", "no")]
    [note] = notes(tmp_path, make_settings, rows, "classification")
    assert " of 50 rows compared (of 400) have " in note


def test_all_rows_are_compared(tmp_path: Path, make_settings: MakeSettings) -> None:
    numbers = RANDOM.permutation(20_000) / 7
    rows = [[number, "Bern", "yes" if number > 100 else "no"] for number in numbers]
    [note] = notes(tmp_path, make_settings, [*rows, [max(numbers), "Bern", "no"]], "classification")
    assert note.startswith("2 of 20,001 rows compared have the inputs of one with another label, "), note


@given(
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from("aabcd")), min_size=1, max_size=150),
    st.integers(0, 2**31),
)
def test_conflicts_are_those_of_a_comparison_of_all_pairs(rows: list[tuple[int, str]], seed: int) -> None:
    different = np.random.default_rng(seed).integers(0, 2**64 - 1, 201, np.uint64)  # a hash may be any number
    labels: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for number, label in rows:
        labels[number][label] += 1
    repeats = Repeats()
    repeats.add(np.array([counts.total() for counts in labels.values()]), np.ones(len(labels), np.int64))
    expected = {number: counts for number, counts in labels.items() if len(counts) > 1}
    labels_of = np.array([ord(label) for _, label in rows], np.uint64)
    conflict = conflicts.find_conflicts(different[[number for number, _ in rows]], labels_of)
    if repeats.are_observations or not expected:
        assert conflict is None
        return
    assert conflict is not None
    first = next(index for index, (number, _) in enumerate(rows) if number in expected)
    of_first = [index for index, (number, _) in enumerate(rows) if number == rows[first][0]]
    assert conflict.examples == sum(counts.total() for counts in expected.values())
    assert conflict.wrong == sum(counts.total() - max(counts.values()) for counts in expected.values())
    assert conflict.first == [next(i for i in of_first if rows[i][1] == label) for label in expected[rows[first][0]]]
