"""The 95% confidence intervals contain the population's metrics as often as docs/evaluation.md says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import coverage as benchmark
from benchmarks.coverage import POPULATIONS, Population, coverage
from slipway.components.evaluate.measures.base import Measures
from slipway.components.evaluate.measures.regression import RegressionMeasures, Values
from slipway.core.manifest import Input

SAMPLES = 200
LEAST = benchmark.LEAST - 2 * math.sqrt(0.93 * 0.07 / SAMPLES)  # two standard errors below: the benchmark draws more


@pytest.mark.slow
@pytest.mark.parametrize("examples", [50, 180])
@pytest.mark.parametrize(
    "population",
    [
        "3% positives, threshold 0.8",
        "3% positives, rarely predicted",
        "3% positives, ties",
        "30% positives, rarely predicted",
        "30% positives, threshold 0.3",
        "3 uneven classes, accuracy 0.95",
        "10 classes, one rarely predicted",
        "10 classes, accuracy 0.998",
        "4 labels that go together",
        "4 rare labels, rarely predicted",
        "errors of t, 2.5 degrees",
        "lognormal errors",
        "1% outliers",
        "5% outliers",
        "1% outliers of the targets",
        "errors that are whole numbers",
        "9 of 10 errors are 0",
    ],
)
def test_95_percent_intervals_cover_at_least_93(population: str, examples: int) -> None:
    cells = list(coverage(POPULATIONS[population], examples, SAMPLES))
    assert {cell.metric: cell.covered for cell in cells if cell.covered < LEAST} == {}
    assert len(cells) >= (2 if population.startswith("10 classes") and examples == 50 else 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("population", "examples"),
    [
        ("20 uneven classes, accuracy 0.5", 50),
        pytest.param("20 uneven classes, accuracy 0.5", 200, marks=pytest.mark.long),
        ("20 classes, accuracy 0.2", 500),
    ],
)
def test_metrics_of_many_classes_have_an_interval_only_if_it_covers(population: str, examples: int) -> None:
    cells = {cell.metric: cell.covered for cell in coverage(POPULATIONS[population], examples, SAMPLES)}
    assert {name: covered for name, covered in cells.items() if covered < LEAST} == {}
    assert cells.keys() >= {"accuracy", "top_5_accuracy"}
    assert ("macro_average_precision" in cells) == (examples == 500)


def test_the_benchmark_exits_with_1_below_93_percent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def huge(generator: np.random.Generator, examples: int) -> Measures:
        """Errors of which 30 examples rarely have the large ones, of 1,000 deviations."""
        errors = generator.normal(size=examples) * np.where(generator.random(examples) < 0.003, 1000, 1)
        measures = RegressionMeasures(Input(kind="number", mean=(0.0,), deviation=(2.0,)), examples)
        measures.update(Values(np.zeros(examples), errors))
        return measures

    monkeypatch.setattr(benchmark, "POPULATIONS", {"huge": Population(huge)})
    monkeypatch.setattr("sys.argv", ["coverage", "--samples", "20", "--examples", "30"])
    assert benchmark.main() == 1
    assert "below 93%" in capsys.readouterr().out
    monkeypatch.setattr(benchmark, "LEAST", 0.0)
    assert benchmark.main() == 0
    assert capsys.readouterr().out.endswith("all are at least 93%\n".replace("93%", "0%"))
