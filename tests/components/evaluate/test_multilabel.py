"""The measures of a multilabel classification agree with scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn import metrics as reference

from slipway.components.evaluate.measures.multilabel import LabelPredictions, MultilabelMeasures

NAMES = ["sky", "water", "tree", "person"]


def random_batch(seed: int, examples: int, labels: int = 4) -> LabelPredictions:
    generator = np.random.default_rng(seed)
    present = generator.random((examples, labels)) < np.linspace(0.15, 0.6, labels)
    odds = generator.normal(size=(examples, labels)) * 1.5 + 2 * present - 1
    return LabelPredictions(present, (1 / (1 + np.exp(-odds))).astype(np.float32).astype(np.float64))


def measured(batch: LabelPredictions, cuts: list[int] | None = None, worst: int = 0) -> MultilabelMeasures:
    measures = MultilabelMeasures(NAMES[: batch.labels.shape[1]], len(batch.labels), worst)
    for index in np.split(np.arange(len(batch.labels)), cuts or []):
        measures.update(LabelPredictions(batch.labels[index], batch.probabilities[index]))
    return measures


@example(seed=260780, examples=2, cuts=[])  # one label only
@example(seed=2, examples=8, cuts=[])  # few scores
@given(seed=st.integers(0, 2**32 - 1), examples=st.integers(1, 200), cuts=st.lists(st.integers(1, 199), max_size=4))
def test_metrics_are_those_of_scikit_learn(seed: int, examples: int, cuts: list[int]) -> None:
    batch = random_batch(seed, examples)
    measures = measured(batch, sorted({cut for cut in cuts if cut < examples}))
    metrics = measures.metrics()
    has, predicted = batch.labels.any(axis=0), batch.probabilities >= 0.5
    if has.any():
        for name in ("f1", "precision", "recall"):
            score = getattr(reference, f"{name}_score")  # of each label: several would be classes if there is only one
            each = [
                score(batch.labels[:, index], predicted[:, index], zero_division=0) for index in np.flatnonzero(has)
            ]
            assert metrics[f"macro_{name}"] == pytest.approx(np.mean(each))
        assert metrics["micro_f1"] == pytest.approx(reference.f1_score(batch.labels, predicted, average="micro"))
    both = has & ~batch.labels.all(axis=0)
    if both.any():
        area = reference.roc_auc_score(batch.labels[:, both], batch.probabilities[:, both], average="macro")
        assert metrics["macro_auc"] == pytest.approx(area, abs=1e-12)
    assert metrics["exact_match"] == pytest.approx(reference.accuracy_score(batch.labels, predicted))
    assert metrics["label_accuracy"] == pytest.approx(1 - reference.hamming_loss(batch.labels, predicted))
    losses = [
        reference.log_loss(batch.labels[:, index], batch.probabilities[:, index], labels=[False, True])
        for index in range(4)
    ]
    assert metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-6)


def test_per_label_auc_and_average_precision_are_those_of_scikit_learn() -> None:
    batch = random_batch(1, 800)
    scored = measured(batch).scored
    for index, (area, precision) in enumerate(zip(*scored.each.values(), strict=True)):
        truth, scores = batch.labels[:, index], batch.probabilities[:, index]
        assert area == pytest.approx(reference.roc_auc_score(truth, scores), abs=1e-12)
        assert precision == pytest.approx(reference.average_precision_score(truth, scores), abs=1e-12)


def test_the_best_threshold_has_the_highest_f1() -> None:
    batch = random_batch(2, 800)
    scored = measured(batch).scored
    for index in range(4):
        threshold, best = scored.best_f1(index)
        truth, scores = batch.labels[:, index], batch.probabilities[:, index]
        every = [reference.f1_score(truth, scores >= cut) for cut in np.linspace(0.02, 0.98, 49)]
        assert best >= max(every)
        assert reference.f1_score(truth, scores >= threshold) == pytest.approx(best)


def test_intervals_contain_the_metrics_and_shrink_with_the_examples() -> None:
    few, many = measured(random_batch(3, 100)), measured(random_batch(3, 3000))
    narrow, wide = many.intervals(), few.intervals()
    assert set(narrow) >= {"macro_f1", "micro_f1", "macro_auc", "label_accuracy", "exact_match"}
    for name in ("macro_f1", "micro_f1", "macro_auc", "label_accuracy", "exact_match"):
        low, high = narrow[name]
        assert low < many.metrics()[name] < high
        assert high - low < (wide[name][1] - wide[name][0]) / 3


def test_a_label_without_examples_is_excluded_from_the_averages() -> None:
    batch = random_batch(4, 60)
    labels = batch.labels.copy()
    labels[:, 2] = False
    measures = measured(LabelPredictions(labels, batch.probabilities))
    others = [0, 1, 3]
    predicted = batch.probabilities >= 0.5
    expected = reference.f1_score(labels[:, others], predicted[:, others], average="macro")
    assert measures.metrics()["macro_f1"] == pytest.approx(expected)
    assert measures.scored.best_f1(2) is None
    nothing = measured(LabelPredictions(np.zeros((5, 4), bool), np.full((5, 4), 0.1)))
    assert set(nothing.metrics()) == {"loss", "label_accuracy", "exact_match", "examples"}


def test_labels_of_a_champion_in_another_order_are_matched_and_unknown_ones_are_not_predicted() -> None:
    measures = MultilabelMeasures(NAMES, 2)
    values = np.array([[0.9, 0.1, 0.8], [0.2, 0.7, 0.6]])
    order = np.array([2, 0, 4])  # tree, sky and one that the data set does not have
    batch = measures.predictions(np.array([[0, 0, 1, 0], [1, 1, 0, 0]]), values, order)
    np.testing.assert_allclose(batch.probabilities, [[0.1, 0, 0.9, 0], [0.7, 0, 0.2, 0]])
    assert measures.describe(batch, 1) == ("water", "none")
    assert measures.scores(batch)[0] == -np.inf
    assert measures.scores(batch)[1] > 0


def test_of_many_labels_only_what_differs_is_listed() -> None:
    measures = MultilabelMeasures([f"label {index}" for index in range(80)], 1)
    labels = np.arange(80)[None] < 40
    probabilities = np.where(labels, 0.9, 0.1)
    probabilities[0, 3], probabilities[0, 60:75] = 0.2, 0.7
    missing, wrong = measures.describe(LabelPredictions(labels, probabilities), 0)
    assert missing == "label 3"
    assert wrong == ", ".join(f"label {index}" for index in range(60, 72)) + " and 3 more"
