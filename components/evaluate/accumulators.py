"""Figures of a classifier, gathered batch by batch: what is kept does not grow with the number of examples.

A batch is `Predictions`; each class here takes batches in any split and order and comes to the same figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

# What float32 can tell from 0 and from 1; a probability below it counts as this much in the loss.
SMALLEST_PROBABILITY = float(np.finfo(np.float32).eps)
CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Predictions:
    """A batch of predictions on a data set of n classes.

    `labels` [batch] are the true classes' indices. `probabilities` [batch, n] are the model's, in the data set's order
    of classes; a class that the model does not know has 0. `predicted` [batch] is the most probable class's index, or n
    where that is a class that the data set does not have; `confidence` [batch] is its probability.
    """

    labels: Counts
    probabilities: Floats
    predicted: Counts
    confidence: Floats

    @property
    def correct(self) -> NDArray[np.bool_]:
        """[batch]: whether the predicted class is the true one."""
        return self.predicted == self.labels


class ConfusionMatrix:
    """How often each true class (row) was taken for each class (column); the last column is for foreign classes."""

    def __init__(self, classes: int) -> None:
        self.counts: Counts = np.zeros((classes, classes + 1), np.int64)

    def update(self, batch: Predictions) -> None:
        np.add.at(self.counts, (batch.labels, batch.predicted), 1)

    @property
    def examples(self) -> int:
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.counts) / self.examples)

    @property
    def support(self) -> Counts:
        """[n]: the examples of each class."""
        return self.counts.sum(axis=1)

    @property
    def precision(self) -> Floats:
        """[n]: the share of the predictions of a class that are right; 0 for a class that was never predicted."""
        return _ratio(np.diagonal(self.counts), self.counts.sum(axis=0)[:-1])

    @property
    def recall(self) -> Floats:
        """[n]: the share of a class's examples that were found; 0 for a class without examples."""
        return _ratio(np.diagonal(self.counts), self.support)

    @property
    def f1(self) -> Floats:
        """[n]: the harmonic mean of precision and recall; 0 where both are."""
        predicted = self.counts.sum(axis=0)[:-1]
        return _ratio(2 * np.diagonal(self.counts), predicted + self.support)

    def macro(self, figure: Floats) -> float:
        """The plain average of a figure [n] over the classes that have examples."""
        return float(figure[self.support > 0].mean())


class MeanLoss:
    """The mean cross-entropy in nats, of probabilities no smaller than `SMALLEST_PROBABILITY`."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._examples = 0

    def update(self, batch: Predictions) -> None:
        true = batch.probabilities[np.arange(len(batch.labels)), batch.labels]
        self._sum -= float(np.log(np.clip(true, SMALLEST_PROBABILITY, 1.0)).sum())
        self._examples += len(true)

    @property
    def mean(self) -> float:
        return self._sum / self._examples


@dataclass(frozen=True)
class Curve:
    """A ROC curve from (0, 0) to (1, 1): rates [points], and the score from which on an example counts as found."""

    false_positive_rate: Floats
    true_positive_rate: Floats
    thresholds: Floats

    @property
    def area(self) -> float:
        return float(np.trapezoid(self.true_positive_rate, self.false_positive_rate))

    def thinned(self, points: int) -> Curve:
        """The same curve drawn through at most `points` of its points, its ends among them."""
        keep = np.unique(np.linspace(0, len(self.thresholds) - 1, points).round().astype(int))
        return Curve(self.false_positive_rate[keep], self.true_positive_rate[keep], self.thresholds[keep])


class ScoreHistograms:
    """Each class's scores against the rest, in bins, from which its ROC curve and the area under it (AUC) follow.

    A score p falls into one of `BINS` bins equally wide in the log-odds ln(p / (1 - p)), so that scores near 0 and 1,
    where a trained classifier has nearly all of its own, are told apart as well as those in between: two scores are
    seen as different where their odds differ by more than 3%. The bins reach from 5e-32 to the largest float32 below 1.
    Scores in one bin count as equal, which puts an AUC off by no more than `uncertainty`.
    """

    BINS = 3000
    LOWEST, HIGHEST = -72.0, 18.0  # log-odds
    WIDTH = (HIGHEST - LOWEST) / BINS

    def __init__(self, classes: int) -> None:
        self.all: Counts = np.zeros((classes, self.BINS), np.int64)
        self.positive: Counts = np.zeros((classes, self.BINS), np.int64)

    def update(self, batch: Predictions) -> None:
        bins = self._bins(batch.probabilities)
        columns = np.broadcast_to(np.arange(bins.shape[1]), bins.shape)
        np.add.at(self.all, (columns, bins), 1)
        np.add.at(self.positive, (batch.labels, bins[np.arange(len(bins)), batch.labels]), 1)

    def _bins(self, scores: Floats) -> Counts:
        inside = np.clip(scores, 1e-32, 1 - 1e-9)
        odds = np.log(inside) - np.log1p(-inside)
        bins = np.floor((odds - self.LOWEST) / self.WIDTH).astype(np.int64)
        return np.clip(bins, 0, self.BINS - 1)

    def curve(self, index: int) -> Curve | None:
        """The ROC curve of one class against the rest; None where there are no examples of it, or of no other."""
        positive = self.positive[index]
        negative = self.all[index] - positive
        if not positive.any() or not negative.any():
            return None
        used = np.flatnonzero(self.all[index])[::-1]
        return Curve(
            np.concatenate([[0.0], np.cumsum(negative[used]) / negative.sum()]),
            np.concatenate([[0.0], np.cumsum(positive[used]) / positive.sum()]),
            np.concatenate([[1.0], self._lower_edges()[used]]),
        )

    def average_curve(self) -> Curve | None:
        """The mean over the classes of both rates at each threshold; None where no class has a curve."""
        positive, negative = self.positive, self.all - self.positive
        usable = positive.any(axis=1) & negative.any(axis=1)
        if not usable.any():
            return None
        used = np.flatnonzero(self.all[usable].any(axis=0))[::-1]

        def rate(counts: Counts) -> Floats:
            summed = np.cumsum(counts[usable][:, used], axis=1) / counts[usable].sum(axis=1, keepdims=True)
            return np.concatenate([[0.0], summed.mean(axis=0)])

        return Curve(rate(negative), rate(positive), np.concatenate([[1.0], self._lower_edges()[used]]))

    def areas(self) -> list[float | None]:
        """[n]: the area under each class's ROC curve; None as in `curve`."""
        curves = (self.curve(index) for index in range(len(self.all)))
        return [None if curve is None else curve.area for curve in curves]

    def uncertainty(self, index: int) -> float:
        """By how much a class's AUC may be off: half of the pairs of an example of it and one of another in one bin."""
        positive = self.positive[index].astype(np.float64)
        negative = self.all[index] - positive
        pairs = positive.sum() * negative.sum()
        return float((positive * negative).sum() / pairs / 2) if pairs else 0.0

    def _lower_edges(self) -> Floats:
        edges = self.LOWEST + np.arange(self.BINS) * self.WIDTH
        return 1 / (1 + np.exp(-edges))


class Calibration:
    """Whether a confidence of 80% is right 80% of the time: bins equally wide in the confidence."""

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
        """[bins]: the share of right predictions; 0 in an empty bin."""
        return _ratio(self.correct, self.examples)

    @property
    def confidence(self) -> Floats:
        """[bins]: the mean confidence; 0 in an empty bin."""
        return _ratio(self._confidence, self.examples)

    @property
    def expected_error(self) -> float:
        """The expected calibration error: the mean distance of accuracy and confidence, by a bin's examples."""
        distance = np.abs(self.correct - self._confidence)
        return float(distance.sum() / self.examples.sum())


@dataclass(frozen=True)
class WrongExample:
    """A wrong prediction: the example's key and encoded image, the classes' indices, and how sure the model was.

    `predicted` is the number of classes where that is a class that the data set does not have.
    """

    key: str
    image: bytes
    label: int
    predicted: int
    confidence: float

    @property
    def rank(self) -> tuple[float, str]:
        """Orders by confidence, the surest first; the key settles ties, so that the order of batches does not."""
        return (-self.confidence, self.key)


class WorstExamples:
    """The `limit` wrong predictions of the highest confidence."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.examples: list[WrongExample] = []

    def candidates(self, batch: Predictions) -> Counts:
        """The indices in a batch of the wrong predictions that are sure enough to get in."""
        if not self._limit:
            return np.zeros(0, np.int64)
        wrong = np.flatnonzero(~batch.correct)
        if len(self.examples) == self._limit:
            wrong = wrong[batch.confidence[wrong] >= self.examples[-1].confidence]
        # Ties at the end are settled by key, so all that share the last place's confidence are candidates.
        if len(wrong) > self._limit:
            sure = np.sort(batch.confidence[wrong])[-self._limit]
            wrong = wrong[batch.confidence[wrong] >= sure]
        return wrong

    def add(self, examples: list[WrongExample]) -> None:
        """Take these in, and keep the surest."""
        self.examples = sorted([*self.examples, *examples], key=lambda example: example.rank)[: self._limit]


class Measures:
    """All figures of one model on one split of n classes; the worst examples are added to `worst` apart.

    Only they need their images, so who has the images asks `worst` for its candidates.
    """

    def __init__(self, classes: int, worst: int = 0) -> None:
        self.confusion = ConfusionMatrix(classes)
        self.scores = ScoreHistograms(classes)
        self.calibration = Calibration()
        self.worst = WorstExamples(worst)
        self.loss = MeanLoss()

    def update(self, batch: Predictions) -> None:
        """Take in a batch."""
        self.confusion.update(batch)
        self.scores.update(batch)
        self.calibration.update(batch)
        self.loss.update(batch)

    def metrics(self) -> dict[str, float]:
        """The figures that are single numbers, all finite; `macro_auc` is left out where no class has a ROC curve."""
        confusion = self.confusion
        areas = [area for area in self.scores.areas() if area is not None]
        figures: dict[str, Any] = {
            "accuracy": confusion.accuracy,
            "loss": self.loss.mean,
            "macro_precision": confusion.macro(confusion.precision),
            "macro_recall": confusion.macro(confusion.recall),
            "macro_f1": confusion.macro(confusion.f1),
            "macro_auc": float(np.mean(areas)) if areas else None,
            "expected_calibration_error": self.calibration.expected_error,
            "examples": float(confusion.examples),
        }
        return {name: value for name, value in figures.items() if value is not None}


def _ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> Floats:
    """Element by element; 0 where the denominator is."""
    return np.divide(numerator, denominator, out=np.zeros(len(denominator)), where=denominator != 0)
