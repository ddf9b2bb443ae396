"""The measures of a regression agree with scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn import metrics as reference

from slipway.components.evaluate.measures.regression import SAMPLE, RegressionMeasures, Values
from slipway.core.formatting import number
from slipway.core.manifest import Input

TARGET = Input(kind="number", mean=(150.0,), deviation=(77.0,))


def measured(actual: np.ndarray, predicted: np.ndarray, cuts: list[int] | None = None) -> RegressionMeasures:
    measures = RegressionMeasures(TARGET, len(actual), worst=3)
    for one, other in zip(np.split(actual, cuts or []), np.split(predicted, cuts or []), strict=True):
        measures.update(Values(one, other))
    return measures


@example(seed=132, examples=2, cuts=[], offset=1e6)  # two targets that are nearly equal
@given(
    seed=st.integers(0, 2**32 - 1),
    examples=st.integers(2, 300),
    cuts=st.lists(st.integers(1, 299), max_size=4),
    offset=st.sampled_from([0.0, 150.0, 1e6]),
)
def test_metrics_are_those_of_scikit_learn(seed: int, examples: int, cuts: list[int], offset: float) -> None:
    generator = np.random.default_rng(seed)
    actual = generator.normal(offset, 80, examples)
    predicted = actual + generator.normal(3, 20, examples)
    metrics = measured(actual, predicted, sorted({cut for cut in cuts if cut < examples})).metrics()
    assert metrics["mse"] == pytest.approx(reference.mean_squared_error(actual, predicted))
    assert metrics["rmse"] == pytest.approx(reference.root_mean_squared_error(actual, predicted))
    assert metrics["mae"] == pytest.approx(reference.mean_absolute_error(actual, predicted))
    error = 1e-14 * (offset / actual.std()) ** 2  # of a variance that is a difference of sums
    if error < 1e-3:
        assert 1 - metrics["r2"] == pytest.approx(1 - reference.r2_score(actual, predicted), rel=1e-5 + error)
    assert metrics["mean_error"] == pytest.approx((predicted - actual).mean())
    standardized = (predicted - actual) / 77
    assert metrics["loss"] == pytest.approx((standardized**2).mean())
    assert metrics["examples"] == examples


def test_equal_targets_have_no_r2() -> None:
    metrics = measured(np.full(5, 160.1), np.arange(5.0)).metrics()
    assert "r2" not in metrics
    assert np.isfinite(list(metrics.values())).all()


def test_the_intervals_contain_the_metrics() -> None:
    generator = np.random.default_rng(0)
    actual = generator.normal(150, 80, 90)
    measures = measured(actual, actual + generator.normal(0, 30, 90))
    intervals = measures.intervals()
    assert set(intervals) == {"rmse", "mae", "mse", "r2", "mean_error", "loss"}
    for name, (low, high) in intervals.items():
        assert low < measures.metrics()[name] < high


def test_the_plots_have_all_examples_or_a_random_sample() -> None:
    generator = np.random.default_rng(0)
    actual = np.arange(5000.0)
    sample = measured(actual, actual + 1, [700, 2000]).sample
    assert len(sample.actual) == SAMPLE
    assert sample.actual.mean() == pytest.approx(2500, abs=150)
    np.testing.assert_array_equal(sample.residuals, np.ones(SAMPLE))
    few = generator.normal(size=50)
    np.testing.assert_array_equal(measured(few, few, [20]).sample.actual, few)


def test_a_few_errors_that_make_most_of_the_squared_error_are_named() -> None:
    generator = np.random.default_rng(0)
    actual = generator.normal(150, 80, 500)
    predicted = actual + generator.normal(0, 1, 500)
    assert measured(actual, predicted).note("row") == ""
    predicted[7] += 200
    measures = measured(actual, predicted)
    share = (predicted[7] - actual[7]) ** 2 / ((predicted - actual) ** 2).sum()
    assert measures.note("row").startswith(f"1 of 500 test rows makes {share:.0%} of the squared error")
    assert f"half of the errors are below {number(np.median(np.abs(predicted - actual)))}." in measures.note("row")
    predicted[:6] -= 200
    assert measured(actual, predicted).note("row").startswith("4 of 500 test rows make ")
    assert measured(actual, actual).note("row") == ""


def test_the_worst_examples_have_the_largest_residuals() -> None:
    batch = Values(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.5, 0.0, 3.1, 123456.78]))
    measures = measured(batch.actual, batch.predicted)
    scores = measures.scores(batch)
    assert measures.worst.candidates(scores).tolist() == [0, 1, 3]
    assert measures.describe(batch, 1) == ("2", "0")
    assert measures.describe(batch, 3) == ("4", "123,457")
