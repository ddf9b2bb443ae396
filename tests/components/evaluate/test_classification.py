"""The measures of a classification agree with scikit-learn, however the examples are split into batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference
from sklearn.preprocessing import label_binarize

from slipway.components.evaluate.charts import roc_curves
from slipway.components.evaluate.measures import scores
from slipway.components.evaluate.measures.base import Example
from slipway.components.evaluate.measures.classification import ClassificationMeasures, Predictions, in_top
from slipway.components.evaluate.measures.scores import AREA, interpolated


def predictions(labels: np.ndarray, probabilities: np.ndarray) -> Predictions:
    predicted = probabilities.argmax(axis=1)
    confidence = probabilities[np.arange(len(labels)), predicted].astype(np.float64)
    return Predictions(labels, probabilities.astype(np.float64), predicted, confidence)


def random_batch(seed: int, examples: int, classes: int, sharpness: float) -> Predictions:
    """Predictions that are right more often than not; float32, as a model gives them."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, examples)
    logits = generator.normal(size=(examples, classes)) * sharpness
    logits[np.arange(examples), labels] += sharpness
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return predictions(labels, (exponentials / exponentials.sum(axis=1, keepdims=True)).astype(np.float32))


def measures_of(classes: int, examples: int, worst: int = 0) -> ClassificationMeasures:
    return ClassificationMeasures([str(index) for index in range(classes)], examples, worst)


def part(batch: Predictions, chosen: np.ndarray) -> Predictions:
    return Predictions(
        batch.labels[chosen], batch.probabilities[chosen], batch.predicted[chosen], batch.confidence[chosen]
    )


def measured(batches: list[Predictions], classes: int) -> ClassificationMeasures:
    measures = measures_of(classes, sum(len(batch.labels) for batch in batches))
    for batch in batches:
        measures.update(batch)
    return measures


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("sharpness", [0.5, 3.0, 12.0])
def test_metrics_are_those_of_scikit_learn(classes: int, sharpness: float) -> None:
    batch = random_batch(seed=classes, examples=900, classes=classes, sharpness=sharpness)
    measures = measured([batch], classes)
    metrics, confusion = measures.metrics(), measures.confusion
    precision, recall, f1, support = reference.precision_recall_fscore_support(
        batch.labels, batch.predicted, labels=range(classes), zero_division=0
    )
    np.testing.assert_allclose(measures.averages.precision, precision)
    np.testing.assert_allclose(measures.averages.recall, recall)
    np.testing.assert_allclose(measures.averages.f1, f1)
    np.testing.assert_array_equal(measures.averages.support, support)
    expected = reference.confusion_matrix(batch.labels, batch.predicted, labels=range(classes))
    np.testing.assert_array_equal(confusion[:, :-1], expected)
    assert metrics["accuracy"] == pytest.approx(reference.accuracy_score(batch.labels, batch.predicted))
    clipped = np.clip(batch.probabilities, np.finfo(np.float32).eps, 1.0)
    loss = -np.log(clipped[np.arange(900), batch.labels]).mean()
    assert metrics["loss"] == pytest.approx(loss, rel=1e-12)
    if sharpness < 12:  # scikit-learn also clips at 1 - eps, and warns of rows that don't make 1
        rows = batch.probabilities / batch.probabilities.sum(axis=1, keepdims=True)
        assert metrics["loss"] == pytest.approx(reference.log_loss(batch.labels, rows, labels=range(classes)), rel=1e-5)
    five = {"k": 5, "labels": range(classes)}
    top = 1.0 if classes <= 5 else reference.top_k_accuracy_score(batch.labels, batch.probabilities, **five)
    assert in_top(batch).mean() == pytest.approx(top)
    for name, value in (("macro_precision", precision), ("macro_recall", recall), ("macro_f1", f1)):
        assert metrics[name] == pytest.approx(value.mean())
    assert metrics["examples"] == 900


@pytest.mark.parametrize("sharpness", [0.5, 3.0, 12.0])
def test_auc_and_average_precision_are_scikit_learns(sharpness: float) -> None:
    batch = random_batch(seed=7, examples=900, classes=5, sharpness=sharpness)
    found = measured([batch], 5).scored.each
    truth = label_binarize(batch.labels, classes=range(5))
    for index, (area, precision) in enumerate(zip(*found.values(), strict=True)):
        true, each = truth[:, index], batch.probabilities[:, index]
        assert area == pytest.approx(reference.roc_auc_score(true, each), abs=1e-12)
        assert precision == pytest.approx(reference.average_precision_score(true, each), abs=1e-12)


@pytest.mark.parametrize("examples", [30, 3000])
def test_areas_of_many_equal_scores_are_scikit_learns(examples: int) -> None:
    batch = random_batch(seed=11, examples=examples, classes=3, sharpness=1.0)
    tied = predictions(batch.labels, batch.probabilities.round(1) / 1.1)
    truth, metrics = label_binarize(tied.labels, classes=range(3)), measured([tied], 3).metrics()
    for name, score in (("auc", reference.roc_auc_score), ("average_precision", reference.average_precision_score)):
        assert metrics[f"macro_{name}"] == pytest.approx(score(truth, tied.probabilities, average="macro"), abs=1e-12)


def test_areas_of_more_scores_are_those_of_a_random_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = random_batch(seed=12, examples=4000, classes=4, sharpness=1.0)
    monkeypatch.setattr(scores, "MAX_SCORES", 4000)
    whole, parts = measured([batch], 4), measured([part(batch, each) for each in np.split(np.arange(4000), 5)], 4)
    assert whole.scored.sampled == (1000, 4000)
    assert whole.metrics() == pytest.approx(parts.metrics(), rel=1e-12)
    exact = reference.roc_auc_score(label_binarize(batch.labels, classes=range(4)), batch.probabilities)
    low, high = whole.intervals()["macro_auc"]
    assert low < exact < high
    assert high - low > 1.6 * np.diff(whole.intervals()["accuracy"])[0] / 2  # of a quarter of the examples


def test_the_precision_at_a_recall_is_the_best_from_there_on() -> None:
    precision, recall = np.array([1.0, 0.5, 0.75, 0.5]), np.array([0.25, 0.25, 0.75, 1.0])
    found = interpolated(precision, recall, np.array([0.0, 0.25, 0.3, 0.75, 1.0]))
    np.testing.assert_allclose(found, [1.0, 1.0, 0.75, 0.75, 0.5])


@pytest.mark.parametrize(
    ("shares", "threshold", "note"),
    [
        ((0.95, 0.05), None, "The model predicts 1 for 0.5% of the test rows (5.0% are 1). train.threshold=f1"),
        ((0.95, 0.05), 0.5, "The model predicts 1 for 0.5% of the test rows (5.0% are 1)."),
        ((0.05, 0.95), None, "The model predicts 0 for 0.5% of the test rows (5.0% are 0)."),
        (
            (0.7, 0.06, 0.06, 0.06, 0.06, 0.06),
            None,
            "The model predicts 1 for 0.5% of the test rows (6.0% are 1), 2 for ",
        ),
        ((0.985, 0.015), None, ""),
    ],
)
def test_classes_that_are_rarely_predicted_are_named(
    shares: tuple[float, ...], threshold: float | None, note: str
) -> None:
    """One example in 200 is predicted as each of the classes that are not the most frequent one."""
    labels = np.repeat(np.arange(len(shares)), [round(200 * share) for share in shares])
    most = int(np.argmax(shares))
    probabilities = np.eye(len(shares))[np.full(200, most)]
    for index in set(range(len(shares))) - {most}:
        probabilities[np.flatnonzero(labels == index)[0]] = np.eye(len(shares))[index]
    measures = measures_of(len(shares), 200)
    measures.threshold = threshold
    measures.update(predictions(labels, probabilities))
    found = measures.note("row")
    assert found.startswith(note) if note else found == ""
    assert ("train.threshold" in found) == ("train.threshold" in note)
    assert found.endswith(", and 2 more classes as rarely.") == (len(shares) == 6)
    right = measures_of(len(shares), 200)
    right.update(predictions(labels, np.eye(len(shares))[labels]))
    assert right.note("row") == ""


def test_of_equal_probabilities_the_first_classes_are_the_top() -> None:
    batch = predictions(np.arange(20), np.full((20, 20), 0.05))
    assert np.flatnonzero(in_top(batch)).tolist() == [0, 1, 2, 3, 4]
    assert measured([batch], 20).metrics()["top_5_accuracy"] == 0.25
    six, five = (predictions(np.arange(n), np.full((n, n), 1 / n)) for n in (6, 5))
    assert measured([six], 6).metrics()["top_5_accuracy"] == pytest.approx(5 / 6)
    assert "top_5_accuracy" not in measured([five], 5).metrics()


def test_auc_tells_scores_near_one_apart() -> None:
    odds = np.linspace(8, 14, 200)
    scores = 1 / (1 + np.exp(-odds))
    labels = (np.arange(200) >= 100).astype(np.int64)
    batch = Predictions(labels, np.stack([1 - scores, scores], axis=1), np.ones(200, np.int64), scores)
    assert measured([batch], 2).scored.each[AREA][1] == pytest.approx(1.0, abs=1e-3)


def test_the_roc_curve_runs_from_corner_to_corner_with_finite_thresholds() -> None:
    scores = measured([random_batch(3, 400, 4, 2.0)], 4).scored
    for curve in (scores.curve(0), scores.average_curve(), scores.average_curve().thinned(20)):
        for rate in (curve.false_positive_rate, curve.true_positive_rate):
            assert rate[0] == 0
            assert rate[-1] == pytest.approx(1)
            assert (np.diff(rate) >= -1e-12).all()
        assert np.isfinite(curve.thresholds).all()
        assert (np.diff(curve.thresholds) < 0).all()
    assert len(scores.average_curve().thinned(20).thresholds) == 20


def test_the_threshold_of_a_point_gives_its_rates() -> None:
    batch = random_batch(3, 400, 4, 2.0)
    curve = measured([batch], 4).scored.curve(2)
    middle = len(curve.thresholds) // 2
    found = batch.probabilities[:, 2] >= curve.thresholds[middle]
    assert curve.true_positive_rate[middle] == pytest.approx(found[batch.labels == 2].mean())
    assert curve.false_positive_rate[middle] == pytest.approx(found[batch.labels != 2].mean())


def test_a_class_without_examples_is_excluded_from_the_averages() -> None:
    batch = random_batch(seed=5, examples=300, classes=4, sharpness=2.0)
    chosen = part(batch, np.flatnonzero(batch.labels != 3))
    measures = measured([chosen], 4)
    present = reference.f1_score(chosen.labels, chosen.predicted, labels=[0, 1, 2], average="macro")
    assert measures.metrics()["macro_f1"] == pytest.approx(present)
    assert np.isnan(measures.scored.each[AREA][3])
    assert all(np.isfinite(value) for value in measures.metrics().values())


def test_the_legend_of_the_curves_names_the_class_with_the_smallest_area() -> None:
    batch = random_batch(seed=5, examples=300, classes=4, sharpness=2.0)
    scores = measured([batch], 4).scored
    areas = reference.roc_auc_score(batch.labels, batch.probabilities, multi_class="ovr", average=None)
    names = [f"{index}, a class with a long name, {index}" for index in range(4)]
    weakest = int(np.argmin(areas))
    assert f">lowest: {weakest}, a c…name, {weakest}</text>" in roc_curves(scores, names)
    many = measured([random_batch(5, 300, 21, 2.0)], 21).scored
    assert "lowest" not in roc_curves(many, [str(index) for index in range(21)])


def test_one_class_alone_has_no_roc_curve() -> None:
    batch = random_batch(seed=5, examples=50, classes=3, sharpness=2.0)
    measures = measured([part(batch, np.flatnonzero(batch.labels == 1))], 3)
    assert measures.scored.average_curve() is None
    assert "macro_auc" not in measures.metrics()


def test_a_class_of_another_data_set_counts_as_wrong() -> None:
    batch = Predictions(
        labels=np.array([0, 1, 1]),
        probabilities=np.array([[0.9, 0.1], [0.1, 0.2], [0.2, 0.8]]),
        predicted=np.array([0, 2, 1]),
        confidence=np.array([0.9, 0.7, 0.8]),
    )
    measures = measured([batch], 2)
    assert measures.metrics()["accuracy"] == pytest.approx(2 / 3)
    assert measures.confusion.tolist() == [[1, 0, 0], [0, 1, 1]]
    assert measures.averages.recall.tolist() == [1.0, 0.5]
    assert measures.averages.precision.tolist() == [1.0, 1.0]


def test_a_probability_of_zero_gives_a_finite_loss() -> None:
    batch = predictions(np.array([1]), np.array([[1.0, 0.0]], np.float32))
    assert measured([batch], 2).metrics()["loss"] == pytest.approx(-np.log(np.finfo(np.float32).eps))


def test_calibration_of_known_bins() -> None:
    confidence = np.array([0.95, 0.95, 0.95, 0.95, 0.55, 0.55, 1.0])
    right = np.array([1, 1, 1, 0, 1, 0, 1], bool)
    labels = np.where(right, 0, 1)
    batch = Predictions(labels, np.zeros((7, 2)), np.zeros(7, np.int64), confidence)
    calibration = measured([batch], 2).calibration
    assert calibration.examples[-1] == 5
    each = calibration.merged(1)
    assert (each.starts.tolist(), each.ends.tolist()) == ([8, 14], [9, 15])
    assert each.accuracy == pytest.approx([0.5, 4 / 5])
    assert each.confidence == pytest.approx([0.55, (4 * 0.95 + 1) / 5])
    for fewest in (3, 7, 100):
        merged = calibration.merged(fewest)
        assert (merged.starts.tolist(), merged.ends.tolist()) == ([8], [15])
        assert merged.accuracy == pytest.approx([5 / 7])
    expected = 5 / 7 * abs(4 / 5 - (4 * 0.95 + 1) / 5) + 2 / 7 * abs(0.5 - 0.55)
    assert calibration.expected_error == pytest.approx(expected)


def feed_worst(measures: ClassificationMeasures, batch: Predictions, first: int) -> None:
    scores = measures.scores(batch)
    chosen = measures.worst.candidates(scores).tolist()
    measures.worst.add([Example(f"{first + i:05d}", *measures.describe(batch, i), float(scores[i])) for i in chosen])


@given(
    seed=st.integers(0, 2**32 - 1),
    examples=st.integers(1, 120),
    cuts=st.lists(st.integers(1, 119), max_size=6),
    coarse=st.booleans(),
    limit=st.integers(0, 9),
)
def test_any_split_into_batches_gives_the_same(
    seed: int, examples: int, cuts: list[int], coarse: bool, limit: int
) -> None:
    batch = random_batch(seed, examples, 4, 1.5)
    if coarse:  # many equal confidences, so that ties decide
        batch = Predictions(batch.labels, batch.probabilities, batch.predicted, batch.confidence.round(1))
    whole, split = measures_of(4, examples, limit), measures_of(4, examples, limit)
    whole.update(batch)
    feed_worst(whole, batch, 0)
    start = 0
    for end in [*sorted({cut for cut in cuts if cut < examples}), examples]:
        piece = part(batch, np.arange(start, end))
        split.update(piece)
        feed_worst(split, piece, start)
        start = end
    assert split.metrics() == pytest.approx(whole.metrics(), rel=1e-12)
    np.testing.assert_array_equal(split.confusion, whole.confusion)
    np.testing.assert_array_equal(split.scored.positive, whole.scored.positive)
    np.testing.assert_array_equal(split.scored.values, whole.scored.values)
    np.testing.assert_array_equal(split.calibration.correct, whole.calibration.correct)
    for name, interval in whole.intervals().items():
        assert split.intervals()[name] == pytest.approx(interval, rel=1e-9)
    np.testing.assert_array_equal(split.correct, batch.correct)
    wrong = np.flatnonzero(~batch.correct)
    order = sorted(wrong, key=lambda index: (-batch.confidence[index], index))[:limit]
    assert [int(example.key) for example in split.worst.examples] == order
    assert split.worst.examples == whole.worst.examples
