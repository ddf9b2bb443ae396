"""Streaming classification metrics: memory does not grow with the number of examples.

A batch is a `Predictions`. The result does not depend on how examples are split into batches, nor on their order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

# Machine epsilon of float32; smaller probabilities are clipped to it in the loss.
SMALLEST_PROBABILITY = float(np.finfo(np.float32).eps)
CALIBRATION_BINS = 15
# k of top-k accuracy, computed for data sets of at least CLASSES_FOR_TOP classes.
TOP = 5
CLASSES_FOR_TOP = 20
NORMAL_95 = 1.959963984540054  # the standard normal distribution's 97.5% quantile


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


def wilson(successes: int, examples: int) -> tuple[float, float]:
    """Return the 95% confidence interval (Wilson score) of a proportion; `examples` is at least 1."""
    share, z2 = successes / examples, NORMAL_95**2
    centre = (share + z2 / (2 * examples)) / (1 + z2 / examples)
    half = NORMAL_95 / (1 + z2 / examples) * math.sqrt(share * (1 - share) / examples + z2 / (4 * examples**2))
    return max(0.0, centre - half), min(1.0, centre + half)


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
        return _ratio(np.diagonal(self.counts), self.counts.sum(axis=0)[:-1])

    @property
    def recall(self) -> Floats:
        """[n]: fraction of a class's examples that are predicted as it; 0 for a class without examples."""
        return _ratio(np.diagonal(self.counts), self.support)

    @property
    def f1(self) -> Floats:
        """[n]: harmonic mean of precision and recall; 0 where both are 0."""
        predicted = self.counts.sum(axis=0)[:-1]
        return _ratio(2 * np.diagonal(self.counts), predicted + self.support)

    def macro(self, figure: Floats) -> float:
        """Unweighted mean of a per-class metric [n] over the classes that have examples."""
        return float(figure[self.support > 0].mean())


def top_hits(batch: Predictions) -> int:
    """Return the number of examples whose true class is among the `TOP` most probable ones."""
    true = np.take_along_axis(batch.probabilities, batch.labels[:, None], axis=1)
    # Ties go to the lower index, as in argmax.
    earlier = np.arange(batch.probabilities.shape[1]) < batch.labels[:, None]
    ahead = (batch.probabilities > true) | ((batch.probabilities == true) & earlier)
    return int((ahead.sum(axis=1) < TOP).sum())


@dataclass(frozen=True)
class PrecisionRecall:
    """A precision-recall curve in order of decreasing threshold; both arrays are [points]."""

    precision: Floats
    recall: Floats

    @property
    def average_precision(self) -> float:
        """Average precision: precisions weighted by the increase in recall, as scikit-learn defines it."""
        return float((np.diff(self.recall, prepend=0.0) * self.precision).sum())

    def at(self, recalls: Floats) -> Floats:
        """Return the interpolated precision at each of `recalls`: the highest at that recall or above."""
        best = np.maximum.accumulate(self.precision[::-1])[::-1]
        return best[np.minimum(np.searchsorted(self.recall, recalls - 1e-12), len(best) - 1)]


@dataclass(frozen=True)
class Curve:
    """A ROC curve from (0, 0) to (1, 1): both rates and the score thresholds, [points] each."""

    false_positive_rate: Floats
    true_positive_rate: Floats
    thresholds: Floats

    @property
    def area(self) -> float:
        return float(np.trapezoid(self.true_positive_rate, self.false_positive_rate))

    def thinned(self, points: int) -> Curve:
        """Return the curve reduced to at most `points` points, including both ends."""
        keep = np.unique(np.linspace(0, len(self.thresholds) - 1, points).round().astype(int))
        return Curve(self.false_positive_rate[keep], self.true_positive_rate[keep], self.thresholds[keep])


class ScoreHistograms:
    """One-vs-rest score histograms of each class, from which ROC curves, AUC and average precision are computed.

    A score p falls into one of `BINS` bins of equal width in the log-odds ln(p / (1 - p)). That keeps the resolution
    near 0 and 1, where most scores of a trained classifier are: scores whose odds differ by more than 3% fall into
    different bins. The bins range from 5e-32 to the largest float32 below 1. Scores in the same bin count as equal,
    which changes an AUC by at most `uncertainty`.
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
        """Return a class's one-vs-rest ROC curve; None if it has no positive or no negative examples."""
        return self._mean_curve(slice(index, index + 1))

    def average_curve(self) -> Curve | None:
        """Return the mean of both rates over the classes at each threshold; None if no class has a curve."""
        return self._mean_curve(slice(None))

    def _mean_curve(self, classes: slice) -> Curve | None:
        positive, negative = self.positive[classes], self.all[classes] - self.positive[classes]
        usable = positive.any(axis=1) & negative.any(axis=1)
        if not usable.any():
            return None
        used = np.flatnonzero(self.all[classes][usable].any(axis=0))[::-1]

        def rate(counts: Counts) -> Floats:
            summed = np.cumsum(counts[usable][:, used], axis=1) / counts[usable].sum(axis=1, keepdims=True)
            return np.concatenate([[0.0], summed.mean(axis=0)])

        return Curve(rate(negative), rate(positive), np.concatenate([[1.0], self._lower_edges()[used]]))

    def areas(self) -> list[float | None]:
        """[n]: AUC of each class; None as in `curve`."""
        return [None if curve is None else curve.area for curve in map(self.curve, range(len(self.all)))]

    def precision_recall(self, index: int) -> PrecisionRecall | None:
        """Return a class's one-vs-rest precision-recall curve; None if it has no examples."""
        if not self.positive[index].any():
            return None
        used = np.flatnonzero(self.all[index])[::-1]
        found = np.cumsum(self.positive[index][used])
        return PrecisionRecall(found / np.cumsum(self.all[index][used]), found / found[-1])

    def average_precisions(self) -> list[float | None]:
        """[n]: average precision of each class; None as in `precision_recall`."""
        curves = map(self.precision_recall, range(len(self.all)))
        return [None if curve is None else curve.average_precision for curve in curves]

    def uncertainty(self, index: int) -> float:
        """Return the maximum error of a class's AUC: half the fraction of positive-negative pairs in the same bin."""
        positive = self.positive[index].astype(np.float64)
        negative = self.all[index] - positive
        pairs = positive.sum() * negative.sum()
        return float((positive * negative).sum() / pairs / 2) if pairs else 0.0

    def _lower_edges(self) -> Floats:
        edges = self.LOWEST + np.arange(self.BINS) * self.WIDTH
        return 1 / (1 + np.exp(-edges))


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
        return _ratio(self.correct, self.examples)

    @property
    def confidence(self) -> Floats:
        """[bins]: mean confidence; 0 in an empty bin."""
        return _ratio(self._confidence, self.examples)

    @property
    def expected_error(self) -> float:
        """Expected calibration error (ECE): mean gap between accuracy and confidence, weighted by bin size."""
        distance = np.abs(self.correct - self._confidence)
        return float(distance.sum() / self.examples.sum())


@dataclass(frozen=True)
class WrongExample:
    """A misclassified example: key, encoded image, class indices and the confidence of the prediction.

    `predicted` equals the number of classes if the data set does not have the predicted class.
    """

    key: str
    image: bytes
    label: int
    predicted: int
    confidence: float


class WorstExamples:
    """The `limit` misclassified examples with the highest confidence."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.examples: list[WrongExample] = []

    def candidates(self, batch: Predictions) -> Counts:
        """Return the indices in a batch of the wrong predictions confident enough to be kept."""
        if not self._limit:
            return np.zeros(0, np.int64)
        wrong = np.flatnonzero(~batch.correct)
        if len(self.examples) == self._limit:
            wrong = wrong[batch.confidence[wrong] >= self.examples[-1].confidence]
        # Ties for the last slot are broken by key, so every example with that confidence is a candidate.
        if len(wrong) > self._limit:
            sure = np.sort(batch.confidence[wrong])[-self._limit]
            wrong = wrong[batch.confidence[wrong] >= sure]
        return wrong

    def add(self, examples: list[WrongExample]) -> None:
        """Add examples; keep the most confident ones. Ties are broken by key: the order of batches does not matter."""
        everything = [*self.examples, *examples]
        self.examples = sorted(everything, key=lambda example: (-example.confidence, example.key))[: self._limit]


class Measures:
    """All metrics of one model on one split of n classes.

    `update` does not fill `worst`, which needs images: the caller passes its candidates to `worst.add`.
    `top_hits` is the sum of `top_hits`, None for data sets of few classes.
    """

    def __init__(self, classes: int, worst: int = 0) -> None:
        self.confusion = ConfusionMatrix(classes)
        self.scores = ScoreHistograms(classes)
        self.calibration = Calibration()
        self.worst = WorstExamples(worst)
        self.top_hits = 0 if classes >= CLASSES_FOR_TOP else None
        self._loss = 0.0

    def update(self, batch: Predictions) -> None:
        """Accumulate a batch."""
        self.confusion.update(batch)
        self.scores.update(batch)
        self.calibration.update(batch)
        true = batch.probabilities[np.arange(len(batch.labels)), batch.labels]
        self._loss -= float(np.log(np.clip(true, SMALLEST_PROBABILITY, 1.0)).sum())
        if self.top_hits is not None:
            self.top_hits += top_hits(batch)

    def metrics(self) -> dict[str, float]:
        """Return the scalar metrics, all finite; metrics that are undefined for these examples are omitted.

        The loss is the mean cross-entropy in nats; probabilities are clipped to at least `SMALLEST_PROBABILITY`.
        """
        confusion = self.confusion
        areas = [area for area in self.scores.areas() if area is not None]
        precisions = [precision for precision in self.scores.average_precisions() if precision is not None]
        figures = {
            "accuracy": confusion.accuracy,
            "top_5_accuracy": None if self.top_hits is None else self.top_hits / confusion.examples,
            "loss": self._loss / confusion.examples,
            "macro_precision": confusion.macro(confusion.precision),
            "macro_recall": confusion.macro(confusion.recall),
            "macro_f1": confusion.macro(confusion.f1),
            "macro_auc": float(np.mean(areas)) if areas else None,
            "macro_average_precision": float(np.mean(precisions)) if precisions else None,
            "expected_calibration_error": self.calibration.expected_error,
            "examples": float(confusion.examples),
        }
        return {name: value for name, value in figures.items() if value is not None}


def _ratio(numerator: Counts | Floats, denominator: Counts) -> Floats:
    """Divide element-wise; 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros(len(denominator)), where=denominator != 0)
