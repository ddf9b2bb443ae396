"""A few targets that make most of the squared deviation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.validation.outliers import outliers

TARGETS = np.random.default_rng(0).normal(300_000, 50_000, 500).round()


def with_outliers(**changed: float) -> list[float]:
    """The targets, with some set to other values."""
    values = TARGETS.copy()
    for name, value in changed.items():
        values[int(name[1:])] = value
    return values.tolist()


@pytest.mark.parametrize(
    ("targets", "settings", "note"),
    [
        (TARGETS.tolist(), {}, ""),
        (with_outliers(_3=9e6), {}, "1 of 500 training targets makes 98% of the squared deviation"),
        (with_outliers(_3=-8.7e6, _4=9.3e6), {}, "2 of 500 training targets make 9"),
        (with_outliers(_3=9e6), {"target": "log"}, ""),
        (with_outliers(**{f"_{index}": 9e6 for index in range(100)}), {}, ""),
        (np.full(500, 7.0).tolist(), {}, ""),
        ([*TARGETS[:29].tolist(), 9e6], {}, "1 of 30 training targets makes "),
    ],
)  # fmt: skip
def test_a_few_targets_that_make_most_of_the_squared_deviation_are_noted(
    tmp_path: Path,
    make_settings: Callable[..., DataSettings],
    targets: list[float],
    settings: dict[str, str],
    note: str,
) -> None:
    rows = [f"{index % 7},{target},train" for index, target in enumerate(targets)]
    rows += [f"0,{targets[0]},{split}" for split in ("validation", "test")]
    (tmp_path / "t.csv").write_text("\n".join(["x,price,split", *rows]))
    about = prepare(
        make_settings(f"csv:{tmp_path / 't.csv'}", label="price", **settings), 2, task="regression"
    ).manifest
    found = [each for each in about.notes if "squared deviation" in each]
    assert [each.startswith(note) for each in found] == [True] * bool(note)
    assert all("from the mean (9,000,000)" in each or "9,300,000" in each for each in found)


def test_few_are_at_most_one_in_fifty() -> None:
    squares = np.ones(100)
    assert outliers(squares) == (0, 0.0)
    squares[:2] = 60
    assert outliers(squares) == (2, pytest.approx(120 / 218))
    squares[:3] = 40
    assert outliers(squares) == (0, 0.0)
    assert outliers(np.zeros(5)) == (0, 0.0)
