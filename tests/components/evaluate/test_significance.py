"""Confidence intervals and paired tests agree with SciPy, and depend on nothing but the examples."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap, norm
from sklearn.metrics import average_precision_score

from slipway.components.evaluate.measures.base import comparisons
from slipway.components.evaluate.measures.classification import ClassificationMeasures, Predictions
from slipway.components.evaluate.measures.regression import RegressionMeasures, Values
from slipway.components.evaluate.measures.scores import Scores
from slipway.components.evaluate.measures.significance import mcnemar, proportion_interval
from slipway.core.manifest import Input


@pytest.mark.parametrize(("successes", "examples"), [(0, 10), (10, 10), (388, 462), (1, 1)])
def test_the_interval_of_a_proportion_is_the_exact_one_of_scipy(successes: int, examples: int) -> None:
    expected = binomtest(successes, examples).proportion_ci(0.95, method="exact")
    assert proportion_interval(successes, examples) == pytest.approx(tuple(expected))


@given(first=st.integers(0, 3000), second=st.integers(0, 3000))
def test_mcnemars_p_value_is_that_of_the_exact_binomial_test(first: int, second: int) -> None:
    """In integers, since SciPy's binomtest says 0 for some values above 1e-283."""
    differing = first + second
    ways = accumulate(range(min(first, second)), lambda term, n: term * (differing - n) // (n + 1), initial=1)
    expected = min(1.0, float(2 * Fraction(sum(ways), 2**differing)))
    assert mcnemar(first, second) == pytest.approx(expected, rel=1e-6, abs=1e-300)
    assert mcnemar(first, second) == mcnemar(second, first)


def regression_of(actual: np.ndarray, predicted: np.ndarray, batches: int = 1) -> RegressionMeasures:
    measures = RegressionMeasures(Input(kind="number", mean=(2.0,), deviation=(3.0,)), len(actual), worst=5)
    for one, other in zip(np.array_split(actual, batches), np.array_split(predicted, batches), strict=True):
        measures.update(Values(one, other))
    return measures


@pytest.mark.parametrize(("name", "width"), [("mae", 1.2), ("rmse", 3.2), ("r2", 3.9)])
def test_an_interval_has_that_of_scipys_bootstrap_in_it(name: str, width: float) -> None:
    """It is wider since it allows for larger errors than those of the sample."""
    generator = np.random.default_rng(0)
    actual = generator.normal(2, 3, 1000)
    predicted = actual + generator.normal(0, 1, 1000)
    score = {
        "mae": lambda error, _, axis: np.abs(error).mean(axis=axis),
        "rmse": lambda error, _, axis: np.sqrt((error**2).mean(axis=axis)),
        "r2": lambda error, target, axis: 1 - (error**2).mean(axis=axis) / target.var(axis=axis),
    }[name]
    found = bootstrap(
        (predicted - actual, actual), score, paired=True, vectorized=True, method="BCa", n_resamples=2000, rng=0
    )
    expected = found.confidence_interval
    low, high = regression_of(actual, predicted).intervals()[name]
    rounding = 0.05 * (expected.high - expected.low)
    assert low < expected.low + rounding
    assert high > expected.high - rounding
    assert high - low < width * (expected.high - expected.low)


def test_the_interval_of_an_auc_of_many_classes_is_around_it() -> None:
    """200 classes: 0.756 to 0.923 with a binned bootstrap."""
    generator = np.random.default_rng(0)
    labels = np.arange(10_000) % 200
    values = generator.normal(size=(10_000, 200))
    values[np.arange(10_000), labels] += 2
    values = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
    measures = ClassificationMeasures([str(index) for index in range(200)], 10_000)
    measures.update(Predictions(labels, values, values.argmax(axis=1), values.max(axis=1)))
    low, high = measures.intervals()["macro_auc"]
    area = measures.metrics()["macro_auc"]
    assert low < area < high
    assert high - low < 0.01


def test_without_an_error_the_intervals_are_those_of_the_accuracy() -> None:
    measures = classified(np.ones(360, bool), labels=np.arange(360) % 2)
    assert measures.metrics()["macro_f1"] == measures.metrics()["macro_auc"] == 1
    for name in ("accuracy", "macro_f1", "macro_recall", "macro_auc", "macro_average_precision"):
        low, high = measures.intervals()[name]
        assert high == 1
        assert 0.96 < low < 0.99


@pytest.mark.parametrize("error", [0.0, 0.3, -1e6])
def test_errors_that_are_all_the_same_give_no_interval(error: float) -> None:
    actual = np.random.default_rng(0).normal(2, 3, 200)
    measures = regression_of(actual, actual + error)
    shown = {"r2"} if error else set()  # it varies with the targets
    assert measures.intervals().keys() == shown
    assert set(measures.without()) == {"rmse", "mae", "mse", "r2", "mean_error", "loss"} - shown
    assert set(measures.without().values()) == {"all examples have the same error"}


@pytest.mark.parametrize(("each", "is_shown"), [(19, False), (25, True)])
def test_means_over_classes_of_few_examples_have_no_interval(each: int, is_shown: bool) -> None:
    labels = np.arange(20 * each) % 20
    values = np.random.default_rng(0).dirichlet(np.ones(20), len(labels))
    values[np.arange(len(labels)), labels] += 0.3
    measures = ClassificationMeasures([str(index) for index in range(20)], len(labels))
    measures.update(Predictions(labels, values, values.argmax(axis=1), values.max(axis=1)))
    means = {"macro_precision", "macro_f1", "macro_average_precision"}
    unbiased = {"accuracy", "top_5_accuracy", "macro_recall", "macro_auc"}
    assert measures.intervals().keys() == unbiased | (means if is_shown else set())
    if not is_shown:
        assert {measures.without()[name] for name in means} == {"there are too few examples of each class"}


@pytest.mark.parametrize(
    ("predicted", "reason"),
    [(0, "there is no prediction of b"), (1, "there is only 1 prediction of b"), (2, None)],
)
def test_a_precision_of_fewer_than_two_predictions_of_a_class_has_no_interval(
    predicted: int, reason: str | None
) -> None:
    labels = np.arange(300) % 2
    measures = classified((labels == 0) | (np.arange(300) < 2 * predicted), labels)
    assert measures.averages.predicted.tolist() == [300 - predicted, predicted]
    assert measures.without().get("macro_precision") == reason
    assert ("macro_precision" in measures.intervals()) == (reason is None)
    assert measures.intervals().keys() >= {"macro_recall", "macro_f1", "macro_auc"}


@pytest.mark.parametrize("predicted", [0, 7, 8])
def test_a_precision_of_fewer_than_eight_predictions_of_a_class_is_not_tested(predicted: int) -> None:
    labels = np.arange(300) % 2
    model, champion = (classified((labels == 0) | (np.arange(300) < 2 * count), labels) for count in (predicted, 100))
    for comparison in (comparisons(model, champion), comparisons(champion, model)):
        precision = comparison["macro_precision"]
        assert (precision.p_value is None) == (predicted < 8)
        assert comparison["macro_recall"].p_value is not None
        if predicted < 8:
            expected = f"are only {predicted} predictions" if predicted else "is no prediction"
            assert precision.counts == f"there {expected} of b"
            assert not precision.is_significant(1.0)


def test_one_example_of_a_class_is_not_tested() -> None:
    labels = np.r_[1, np.zeros(200, np.int64)]
    models = [classified(np.random.default_rng(seed).random(201) < 0.9, labels) for seed in (0, 1)]
    tested = comparisons(*models)
    assert {name for name, comparison in tested.items() if comparison.p_value is not None} == {"accuracy", "loss"}
    assert tested["macro_auc"].counts == "there is only 1 example of b"


@pytest.mark.slow
def test_equal_models_with_rare_predictions_are_rarely_promoted() -> None:
    """With 3% positives, 11 to 16% were significantly better by the precision, instead of 2.5%."""
    generator, better, tested = np.random.default_rng(0), 0, 0
    for _ in range(300):
        labels = (generator.random(600) < 0.03).astype(np.int64)
        models = []
        for _ in range(2):
            score = generator.normal(size=600) + 1.5 * labels
            values = 1 / (1 + np.exp(2.2 - 1.5 * score))
            measures = ClassificationMeasures(["a", "b"], 600)
            measures.update(measures.predictions(labels, np.stack([1 - values, values], axis=1), np.arange(2)))
            models.append(measures)
        comparison = comparisons(*models)["macro_precision"]
        if comparison.p_value is not None:
            tested += 1
            gain = models[0].metrics()["macro_precision"] - models[1].metrics()["macro_precision"]
            better += comparison.is_significant(0.05) and gain > 0
    assert tested > 100
    assert better / tested < 0.05


def test_the_bias_of_the_average_precision_is_that_of_the_jackknife() -> None:
    generator = np.random.default_rng(0)
    positive = generator.random(60) < 0.2
    scores = (generator.normal(size=60) + positive).round(1)  # some are equal
    scored = Scores(60, 1)
    scored.update(scores[:, None].astype(np.float32), positive[:, None])
    average = average_precision_score(positive, scores)
    others = [average_precision_score(np.delete(positive, one), np.delete(scores, one)) for one in range(60)]
    assert scored.bias("macro_average_precision") == pytest.approx(59 * (np.mean(others) - average))
    assert scored.bias("macro_auc") == 0


def test_intervals_are_the_same_each_time_and_in_batches() -> None:
    generator = np.random.default_rng(0)
    actual, predicted = generator.normal(size=(2, 2500))
    whole, parts = regression_of(actual, predicted), regression_of(actual, predicted, batches=7)
    for name, interval in whole.intervals().items():
        assert parts.intervals()[name] == pytest.approx(interval, rel=1e-9)
    assert whole.intervals() == regression_of(actual, predicted).intervals()


def classified(correct: np.ndarray, labels: np.ndarray | None = None) -> ClassificationMeasures:
    measures = ClassificationMeasures(["a", "b"], len(correct))
    labels = np.zeros(len(correct), np.int64) if labels is None else labels
    probabilities = np.where((correct == (labels == 0))[:, None], [[0.9, 0.1]], [[0.2, 0.8]])
    measures.update(Predictions(labels, probabilities, probabilities.argmax(axis=1), probabilities.max(axis=1)))
    return measures


def test_accuracies_are_compared_with_mcnemars_test_on_the_examples_that_differ() -> None:
    ours, theirs = np.ones(400, bool), np.ones(400, bool)
    ours[:10] = theirs[:10] = False  # both wrong: says nothing
    ours[10:13] = False
    theirs[13:25] = False
    found = comparisons(classified(ours), classified(theirs))["accuracy"]
    assert found.test == "McNemar's exact test"
    assert found.p_value == pytest.approx(binomtest(3, 15, 0.5).pvalue)
    assert found.counts == "only this model is right on 12 of 400 examples, only the champion on 3"


@pytest.mark.parametrize(("gain", "significant"), [(0.0, False), (0.5, True), (-0.5, True)])
def test_other_metrics_are_compared_by_a_paired_test(gain: float, significant: bool) -> None:
    """Errors of two models on the same examples go together: only their difference counts."""
    generator = np.random.default_rng(3)
    actual = generator.normal(0, 10, 400)
    error = generator.normal(0, 5, 400)
    ours = regression_of(actual, actual + error * (1 - gain / 5) + generator.normal(0, 0.1, 400))
    theirs = regression_of(actual, actual + error + generator.normal(0, 0.1, 400))
    found = comparisons(ours, theirs)["rmse"]
    assert found.test == "paired t-test"
    assert (found.p_value <= 0.01) == significant
    assert 0 <= found.p_value <= 1
    assert "400 examples" in found.counts
    # Unpaired, the intervals overlap.
    (low, high), (champion_low, champion_high) = ours.intervals()["rmse"], theirs.intervals()["rmse"]
    assert low < champion_high
    assert champion_low < high


def test_the_p_value_of_equal_models_is_rarely_small() -> None:
    """Over many pairs of equally good models, a fraction of about alpha is called significant."""
    found = []
    for seed in range(60):
        generator = np.random.default_rng(seed)
        actual = generator.normal(0, 1, 150)
        models = [regression_of(actual, actual + generator.normal(0, 1, 150)) for _ in range(2)]
        found.append(comparisons(*models)["mse"].p_value)
    assert 0 < np.mean(np.array(found) <= 0.2) < 0.4
    assert np.mean(np.array(found) <= 0.05) < 0.17


def test_aucs_are_compared_with_delongs_test() -> None:
    """As R's pROC does on two scores of the same examples: z = (A1 - A2) / sqrt(var1 + var2 - 2 cov)."""
    generator = np.random.default_rng(5)
    labels = (generator.random(400) < 0.3).astype(np.int64)
    models, parts = [], []
    for strength in (1.2, 0.9):
        scores = 1 / (1 + np.exp(-(generator.normal(size=400) + strength * labels))).astype(np.float32)
        values = np.stack([1 - scores, scores], axis=1).astype(np.float64)
        measures = ClassificationMeasures(["a", "b"], 400)
        measures.update(Predictions(labels, values, values.argmax(axis=1), values.max(axis=1)))
        models.append(measures)
        above = (scores[labels == 1][:, None] > scores[labels == 0]) + 0.5 * (
            scores[labels == 1][:, None] == scores[labels == 0]
        )
        parts.append((above.mean(), above.mean(axis=1), above.mean(axis=0)))
    gain = parts[0][0] - parts[1][0]
    deviation = np.sqrt(sum(np.var(parts[0][i] - parts[1][i], ddof=1) / len(parts[0][i]) for i in (1, 2)))
    found = comparisons(*models)["macro_auc"]
    assert found.test == "DeLong's test"
    assert found.p_value == pytest.approx(2 * norm.sf(gain / deviation), rel=0.05)


def test_a_metric_without_influences_is_not_compared() -> None:
    model = classified(np.ones(20, bool))
    assert "expected_calibration_error" not in comparisons(model, model)
