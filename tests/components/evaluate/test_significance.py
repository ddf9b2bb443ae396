"""Confidence intervals and paired tests agree with SciPy, and depend on nothing but the examples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap

from slipway.components.evaluate.measures.base import compare
from slipway.components.evaluate.measures.classification import ClassificationMeasures, Predictions
from slipway.components.evaluate.measures.regression import RegressionMeasures, Values
from slipway.components.evaluate.measures.significance import GroupSums, _replicates, mcnemar, wilson
from slipway.core.manifest import Input


@pytest.mark.parametrize(("successes", "examples"), [(0, 10), (10, 10), (388, 462), (1, 1)])
def test_the_wilson_interval_is_scipys(successes: int, examples: int) -> None:
    expected = binomtest(successes, examples).proportion_ci(0.95, method="wilson")
    assert wilson(successes, examples) == pytest.approx(tuple(expected))


@given(first=st.integers(0, 3000), second=st.integers(0, 3000))
def test_mcnemars_p_value_is_that_of_the_exact_binomial_test(first: int, second: int) -> None:
    differing = first + second
    expected = binomtest(min(first, second), differing, 0.5).pvalue if differing else 1.0
    assert mcnemar(first, second) == pytest.approx(expected, rel=1e-6, abs=1e-290)
    assert mcnemar(first, second) == mcnemar(second, first)


def regression_of(actual: np.ndarray, predicted: np.ndarray, batches: int = 1) -> RegressionMeasures:
    measures = RegressionMeasures(Input(kind="number", mean=(2.0,), deviation=(3.0,)), len(actual), worst=5)
    for one, other in zip(np.array_split(actual, batches), np.array_split(predicted, batches), strict=True):
        measures.update(Values(one, other))
    return measures


@pytest.mark.parametrize("examples", [300, 5000])  # one by one, and in groups
def test_a_bootstrap_interval_is_scipys(examples: int) -> None:
    generator = np.random.default_rng(0)
    actual = np.sort(generator.normal(2, 3, examples))  # sorted, as data may be: groups are random anyhow
    predicted = actual + generator.normal(0, 1, examples) * (1 + np.abs(actual))
    low, high = regression_of(actual, predicted).intervals()["mae"]
    errors = np.abs(predicted - actual)
    expected = bootstrap((errors,), np.mean, method="percentile", rng=np.random.default_rng(1)).confidence_interval
    assert (low, high) == pytest.approx(tuple(expected), rel=0.03)
    assert high - low == pytest.approx(expected.high - expected.low, rel=0.1)


def test_intervals_are_the_same_each_time_and_in_batches() -> None:
    generator = np.random.default_rng(0)
    actual, predicted = generator.normal(size=(2, 2500))
    whole, parts = regression_of(actual, predicted), regression_of(actual, predicted, batches=7)
    for name, interval in whole.intervals().items():
        assert parts.intervals()[name] == pytest.approx(interval, rel=1e-9)
    assert whole.intervals() == regression_of(actual, predicted).intervals()


def test_groups_of_examples_are_random_equal_and_the_same_for_both_models() -> None:
    sums = GroupSums(5500, statistics=2)
    groups = np.concatenate([sums.next(5000), sums.next(500)])
    assert np.bincount(groups).tolist() == [6] * 500 + [5] * 500
    assert (groups == GroupSums(5500, statistics=2).next(5500)).all()
    assert len(np.unique(groups[:1000])) < 700  # not one after the other: sorted data would look less uncertain
    assert len(GroupSums(5500, statistics=40_000).sums) == 100  # many statistics: less groups, not more memory


def test_replicates_are_metrics_of_resampled_groups() -> None:
    """Bit for bit, though empty statistics are skipped, and few replicates are computed at once."""
    sums = GroupSums(300, statistics=50)
    generator = np.random.default_rng(0)
    rows = np.where(generator.random((300, 50)) < 0.1, generator.random((300, 50)), 0.0)
    rows[:, 20:] = 0.0
    sums.add(sums.next(300), rows)
    drawn = _replicates(300) @ sums.sums
    found = sums.replicates(lambda each: {"sum": each.sum(axis=1), "last": each[:, 49], "third": each[:, 2]})
    assert (found["third"] == drawn[:, 2]).all()
    assert not found["last"].any()
    np.testing.assert_allclose(found["sum"], drawn.sum(axis=1), rtol=1e-12)


def classified(correct: np.ndarray) -> ClassificationMeasures:
    measures = ClassificationMeasures(["a", "b"], len(correct))
    labels = np.zeros(len(correct), np.int64)
    probabilities = np.where(correct[:, None], [[0.9, 0.1]], [[0.2, 0.8]])
    measures.update(Predictions(labels, probabilities, probabilities.argmax(axis=1), probabilities.max(axis=1)))
    return measures


def test_accuracies_are_compared_with_mcnemars_test_on_the_examples_that_differ() -> None:
    ours, theirs = np.ones(400, bool), np.ones(400, bool)
    ours[:10] = theirs[:10] = False  # both wrong: says nothing
    ours[10:13] = False
    theirs[13:25] = False
    found = compare("accuracy", classified(ours), classified(theirs))
    assert found.test == "McNemar's exact test"
    assert found.p_value == pytest.approx(binomtest(3, 15, 0.5).pvalue)
    assert found.counts == "only this model is right on 12 of 400 examples, only the champion on 3"


@pytest.mark.parametrize(("gain", "significant"), [(0.0, False), (0.5, True), (-0.5, True)])
def test_other_metrics_are_compared_by_paired_resampling(gain: float, significant: bool) -> None:
    """Errors of two models on the same examples go together: only their difference counts."""
    generator = np.random.default_rng(3)
    actual = generator.normal(0, 10, 400)
    error = generator.normal(0, 5, 400)
    ours = regression_of(actual, actual + error * (1 - gain / 5) + generator.normal(0, 0.1, 400))
    theirs = regression_of(actual, actual + error + generator.normal(0, 0.1, 400))
    found = compare("rmse", ours, theirs)
    assert found.test == "paired bootstrap"
    assert (found.p_value <= 0.01) == significant
    assert 0.001 <= found.p_value <= 1
    assert "1,999 replicates of 400 examples" in found.counts
    # Unpaired, the intervals overlap.
    (low, high), (champion_low, champion_high) = ours.intervals()["rmse"], theirs.intervals()["rmse"]
    assert low < champion_high
    assert champion_low < high


def test_the_p_value_of_equal_models_is_rarely_small() -> None:
    """Over many pairs of equally good models, a share of about alpha is called significant."""
    found = []
    for seed in range(60):
        generator = np.random.default_rng(seed)
        actual = generator.normal(0, 1, 150)
        models = [regression_of(actual, actual + generator.normal(0, 1, 150)) for _ in range(2)]
        found.append(compare("mse", *models).p_value)
    assert 0 < np.mean(np.array(found) <= 0.2) < 0.4
    assert np.mean(np.array(found) <= 0.05) < 0.17


def test_a_metric_that_no_sum_yields_is_not_compared() -> None:
    model = classified(np.ones(20, bool))
    assert compare("expected_calibration_error", model, model) is None
