"""The 95% confidence intervals contain the population's metrics as often as docs/evaluation.md says."""

from __future__ import annotations

import math

import pytest

from tests.components.evaluate.coverage import POPULATIONS, coverage

SAMPLES = 200
LEAST = 0.93 - 2 * math.sqrt(0.93 * 0.07 / SAMPLES)  # two standard errors below; `python -m …coverage` draws more


@pytest.mark.slow
@pytest.mark.parametrize("examples", [50, 180])
@pytest.mark.parametrize(
    "population",
    [
        "2 classes, 1 in 17, AUC 0.92",
        "3 uneven classes, accuracy 0.95",
        "10 classes, accuracy 0.998",
        "4 labels that go together",
        "Laplace errors",
        "errors of t, 5 degrees",
    ],
)
def test_95_percent_intervals_cover_at_least_93(population: str, examples: int) -> None:
    found = list(coverage(POPULATIONS[population], examples, SAMPLES))
    assert {name: share for name, _, share, _ in found if share < LEAST} == {}
    assert len(found) >= 6
