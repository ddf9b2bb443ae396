"""Figures of a classifier, gathered batch by batch: what is kept does not grow with the number of examples.

A batch is `Predictions`; each class here takes batches in any split and order and comes to the same figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

# What float32 can tell from 0 and from 1; a probability below it counts as this much in the loss.
SMALLEST_PROBABILITY = float(np.finfo(np.float32).eps)
CALIBRATION_BINS = 15
# With many classes, also whether the true one is among this many of the most probable.
TOP = 5
CLASSES_FOR_TOP = 20
NORMAL_95 = 1.959963984540054  # the standard normal distribution's 97.5% quantile


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


def wilson(successes: int, examples: int) -> tuple[float, float]:
    """The 95% confidence interval (Wilson score) of a share of at least one example."""
    share, z2 = successes / examples, NORMAL_95**2
    centre = (share + z2 / (2 * examples)) / (1 + z2 / examples)
    half = NORMAL_95 / (1 + z2 / examples) * math.sqrt(share * (1 - share) / examples + z2 / (4 * examples**2))
    return max(0.0, centre - half), min(1.0, centre + half)


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
    def correct(self) -> int:
        return int(np.trace(self.counts))

    @property
    def accuracy(self) -> float:
        return self.correct / self.examples

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


class TopAccuracy:
    """How many examples have their true class among the `TOP` most probable of the data set's classes."""

    def __init__(self) -> None:
        self.correct = self.examples = 0

    def update(self, batch: Predictions) -> None:
        true = np.take_along_axis(batch.probabilities, batch.labels[:, None], axis=1)
        # Of equal probabilities the first counts as the larger, as in argmax.
        earlier = np.arange(batch.probabilities.shape[1]) < batch.labels[:, None]
        ahead = (batch.probabilities > true) | ((batch.probabilities == true) & earlier)
        self.correct += int((ahead.sum(axis=1) < TOP).sum())
        self.examples += len(batch.labels)


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
class PrecisionRecall:
    """A precision-recall curve, from the highest threshold down: [points] each."""

    precision: Floats
    recall: Floats

    @property
    def average_precision(self) -> float:
        """The mean of the precisions, each weighted by the recall gained at it; scikit-learn's definition."""
        return float((np.diff(self.recall, prepend=0.0) * self.precision).sum())

    def at(self, recalls: Floats) -> Floats:
        """The best precision at each of these recalls or above."""
        best = np.maximum.accumulate(self.precision[::-1])[::-1]
        return best[np.minimum(np.searchsorted(self.recall, recalls - 1e-12), len(best) - 1)]


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

    def precision_recall(self, index: int) -> PrecisionRecall | None:
        """The precision-recall curve of one class against the rest; None where there are no examples of it."""
        if not self.positive[index].any():
            return None
        used = np.flatnonzero(self.all[index])[::-1]
        found = np.cumsum(self.positive[index][used])
        return PrecisionRecall(found / np.cumsum(self.all[index][used]), found / found[-1])

    def average_precisions(self) -> list[float | None]:
        """[n]: each class's average precision; None as in `precision_recall`."""
        curves = (self.precision_recall(index) for index in range(len(self.all)))
        return [None if curve is None else curve.average_precision for curve in curves]

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
        self.top = TopAccuracy() if classes >= CLASSES_FOR_TOP else None

    def update(self, batch: Predictions) -> None:
        """Take in a batch."""
        self.confusion.update(batch)
        self.scores.update(batch)
        self.calibration.update(batch)
        self.loss.update(batch)
        if self.top:
            self.top.update(batch)

    def metrics(self) -> dict[str, float]:
        """The figures that are single numbers, all finite; one that is not defined for the examples is omitted."""
        confusion = self.confusion
        areas = [area for area in self.scores.areas() if area is not None]
        precisions = [precision for precision in self.scores.average_precisions() if precision is not None]
        figures: dict[str, Any] = {
            "accuracy": confusion.accuracy,
            "top_5_accuracy": self.top.correct / self.top.examples if self.top else None,
            "loss": self.loss.mean,
            "macro_precision": confusion.macro(confusion.precision),
            "macro_recall": confusion.macro(confusion.recall),
            "macro_f1": confusion.macro(confusion.f1),
            "macro_auc": float(np.mean(areas)) if areas else None,
            "macro_average_precision": float(np.mean(precisions)) if precisions else None,
            "expected_calibration_error": self.calibration.expected_error,
            "examples": float(confusion.examples),
        }
        return {name: value for name, value in figures.items() if value is not None}


def _ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> Floats:
    """Element by element; 0 where the denominator is."""
    return np.divide(numerator, denominator, out=np.zeros(len(denominator)), where=denominator != 0)
