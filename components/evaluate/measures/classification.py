"""Measures of a classification: confusion matrix, curves, calibration and the most confident errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.measures.base import SMALLEST_PROBABILITY, Measures
from slipway.components.evaluate.measures.scores import CoarseScores, ScoreHistograms, mean_where, ratio
from slipway.components.evaluate.measures.significance import Counts, Figures, Floats

CALIBRATION_BINS = 15
TOP = 5  # k of top-k accuracy, which data sets of more classes have
FOREIGN = "(a class of another data set)"


@dataclass(frozen=True)
class Predictions:
    """A batch of predictions on a data set of n classes.

    `labels` [batch] are the indices of the true classes. `probabilities` [batch, n] are in the data set's order of
    classes, 0 for classes that the model does not have. `predicted` [batch] is the index of the most probable class, or
    n if the data set does not have that class; `confidence` [batch] is its probability.
    """

    labels: Counts
    probabilities: Floats
    predicted: Counts
    confidence: Floats

    @property
    def correct(self) -> NDArray[np.bool_]:
        """[batch]: whether the prediction is correct."""
        return self.predicted == self.labels


class ConfusionMatrix:
    """Confusion matrix: true classes in rows, predicted in columns; the last column is for foreign classes."""

    def __init__(self, classes: int) -> None:
        self.counts: Counts = np.zeros((classes, classes + 1), np.int64)

    def update(self, batch: Predictions) -> None:
        np.add.at(self.counts, (batch.labels, batch.predicted), 1)

    @property
    def examples(self) -> int:
        return int(self.counts.sum())

    @property
    def correct(self) -> int:
        return int(np.trace(self.counts))

    @property
    def accuracy(self) -> float:
        return self.correct / self.examples

    @property
    def support(self) -> Counts:
        """[n]: number of examples of each class."""
        return self.counts.sum(axis=1)

    @property
    def precision(self) -> Floats:
        """[n]: fraction of the predictions of a class that are correct; 0 for a class that was never predicted."""
        return ratio(np.diagonal(self.counts), self.counts.sum(axis=0)[:-1])

    @property
    def recall(self) -> Floats:
        """[n]: fraction of a class's examples that are predicted as it; 0 for a class without examples."""
        return ratio(np.diagonal(self.counts), self.support)

    @property
    def f1(self) -> Floats:
        """[n]: harmonic mean of precision and recall; 0 where both are 0."""
        predicted = self.counts.sum(axis=0)[:-1]
        return ratio(2 * np.diagonal(self.counts), predicted + self.support)


def in_top(batch: Predictions) -> NDArray[np.bool_]:
    """Return whether the true class is among the `TOP` most probable ones, [batch]."""
    true = np.take_along_axis(batch.probabilities, batch.labels[:, None], axis=1)
    # Ties go to the lower index, as in argmax.
    earlier = np.arange(batch.probabilities.shape[1]) < batch.labels[:, None]
    ahead = (batch.probabilities > true) | ((batch.probabilities == true) & earlier)
    return ahead.sum(axis=1) < TOP


class Calibration:
    """Calibration (reliability) of the predictions, in bins of equal width in confidence."""

    def __init__(self, bins: int = CALIBRATION_BINS) -> None:
        self.examples: Counts = np.zeros(bins, np.int64)
        self.correct: Counts = np.zeros(bins, np.int64)
        self._confidence: Floats = np.zeros(bins)

    def update(self, batch: Predictions) -> None:
        bins = len(self.examples)
        index = np.clip(np.ceil(batch.confidence * bins).astype(np.int64) - 1, 0, bins - 1)
        np.add.at(self.examples, index, 1)
        np.add.at(self.correct, index, batch.correct)
        np.add.at(self._confidence, index, batch.confidence)

    @property
    def accuracy(self) -> Floats:
        """[bins]: accuracy; 0 in an empty bin."""
        return ratio(self.correct, self.examples)

    @property
    def confidence(self) -> Floats:
        """[bins]: mean confidence; 0 in an empty bin."""
        return ratio(self._confidence, self.examples)

    @property
    def expected_error(self) -> float:
        """Expected calibration error (ECE): mean gap between accuracy and confidence, weighted by bin size."""
        distance = np.abs(self.correct - self._confidence)
        return float(distance.sum() / self.examples.sum())


class ClassificationMeasures(Measures[Predictions]):
    """All metrics of one model on one split of a data set with these classes.

    Keeps one byte per example: whether its prediction is correct.
    """

    def __init__(self, classes: Sequence[str], examples: int, worst: int = 0) -> None:
        self._names = [*classes, FOREIGN]
        n = len(classes)
        # Statistics of an example: correct, in the top classes, loss; true positives, predictions and examples of each
        # class; histograms of the scores.
        self._coarse = CoarseScores(n, first=3 + 3 * n)
        super().__init__(examples, 3 + 3 * n + self._coarse.statistics, worst)
        self.confusion = ConfusionMatrix(n)
        self.histograms = ScoreHistograms(n)
        self.calibration = Calibration()
        self._correct = np.zeros(examples, bool)

    def predictions(self, labels: NDArray[np.generic], values: Floats, order: Counts) -> Predictions:
        classes = len(self._names) - 1
        known = order < classes
        ordered = np.zeros((len(labels), classes))
        ordered[:, order[known]] = values[:, known]
        best = values.argmax(axis=1)
        return Predictions(labels.astype(np.int64), ordered, order[best], values[np.arange(len(best)), best])

    def update(self, batch: Predictions) -> None:
        size, classes = batch.probabilities.shape
        groups, sums = self.sums.next(size), self.sums.sums
        self._correct[self.examples : self.examples + size] = batch.correct
        self.examples += size
        self.confusion.update(batch)
        self.calibration.update(batch)
        positive = batch.labels[:, None] == np.arange(classes)
        self._coarse.update(sums, groups, self.histograms.update(batch.probabilities, positive), positive)
        true = batch.probabilities[np.arange(size), batch.labels]
        losses = -np.log(np.clip(true, SMALLEST_PROBABILITY, 1.0))
        self.sums.add(groups, np.stack([batch.correct, in_top(batch), losses], axis=1))
        np.add.at(sums, (groups, 3 + batch.labels), batch.correct)
        known = batch.predicted < classes
        np.add.at(sums, (groups[known], 3 + classes + batch.predicted[known]), 1)
        np.add.at(sums, (groups, 3 + 2 * classes + batch.labels), 1)

    def scores(self, batch: Predictions) -> Floats:
        """Return the confidence of the wrong predictions, [batch]."""
        return np.where(batch.correct, -np.inf, batch.confidence)

    def describe(self, batch: Predictions, index: int) -> tuple[str, str]:
        return self._names[int(batch.labels[index])], self._names[int(batch.predicted[index])]

    def figures(self, sums: Floats) -> Figures:
        """Return the metrics [n]; macro averages are over the classes that have examples.

        The loss is the mean cross-entropy in nats; probabilities are clipped to at least `SMALLEST_PROBABILITY`.
        """
        classes = len(self._names) - 1
        correct, top, loss = sums[:, 0], sums[:, 1], sums[:, 2]
        hits, predicted, support = (
            sums[:, 3 + part * classes : 3 + (part + 1) * classes] for part in range(3)
        )  # fmt: skip
        examples, present = support.sum(axis=1), support > 0
        return {
            "accuracy": correct / examples,
            **({"top_5_accuracy": top / examples} if classes > TOP else {}),
            "loss": loss / examples,
            "macro_precision": mean_where(ratio(hits, predicted), present),
            "macro_recall": mean_where(ratio(hits, support), present),
            "macro_f1": mean_where(ratio(2 * hits, predicted + support), present),
            "macro_auc": self._coarse.macro_auc(sums),
        }

    def other_metrics(self) -> dict[str, float | None]:
        return {**self.histograms.macro(), "expected_calibration_error": self.calibration.expected_error}

    def hits(self) -> dict[str, int]:
        correct, top = self.sums.total[:2].round().astype(int).tolist()
        return {"accuracy": correct, "top_5_accuracy": top}

    @property
    def correct(self) -> NDArray[np.bool_]:
        return self._correct
