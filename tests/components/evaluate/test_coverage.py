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
        "errors of t, 3 degrees",
        "errors of t, 2.5 degrees",
        "lognormal errors",
        "9 of 10 errors are 0",
    ],
)
def test_95_percent_intervals_cover_at_least_93(population: str, examples: int) -> None:
    found = list(coverage(POPULATIONS[population], examples, SAMPLES))
    assert {name: share for name, _, share, _, _ in found if share < LEAST} == {}
    assert len(found) >= (2 if population.startswith("10 classes") and examples == 50 else 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("population", "examples"),
    [
        ("20 uneven classes, accuracy 0.5", 50),
        ("20 uneven classes, accuracy 0.5", 200),
        ("20 classes, accuracy 0.2", 500),
    ],
)
def test_metrics_of_many_classes_have_an_interval_only_if_it_covers(population: str, examples: int) -> None:
    found = {name: share for name, _, share, _, _ in coverage(POPULATIONS[population], examples, SAMPLES)}
    assert {name: share for name, share in found.items() if share < LEAST} == {}
    assert found.keys() >= {"accuracy", "top_5_accuracy"}
    assert ("macro_average_precision" in found) == (examples == 500)
