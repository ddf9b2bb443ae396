"""Histograms of a model's scores for each class or label: ROC and precision-recall curves in constant memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.measures.significance import Counts, Floats


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

    def update(self, scores: Floats, positive: NDArray[np.bool_]) -> Counts:
        """Add scores [batch, n] of which some are `positive` [batch, n]; return their bins."""
        bins = self._bins(scores)
        columns = np.broadcast_to(np.arange(bins.shape[1]), bins.shape)
        np.add.at(self.all, (columns, bins), 1)
        np.add.at(self.positive, (columns[positive], bins[positive]), 1)
        return bins

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

    def best_f1(self, index: int) -> tuple[float, float] | None:
        """Return the threshold with the highest F1 of a class, and that F1; None if it has no examples."""
        if not self.positive[index].any():
            return None
        used = np.flatnonzero(self.all[index])[::-1]
        found, predicted = np.cumsum(self.positive[index][used]), np.cumsum(self.all[index][used])
        f1 = 2 * found / (predicted + found[-1])
        best = int(f1.argmax())
        return float(self._lower_edges()[used[best]]), float(f1[best])

    def uncertainty(self, index: int) -> float:
        """Return the maximum error of a class's AUC: half the fraction of positive-negative pairs in the same bin."""
        positive = self.positive[index].astype(np.float64)
        negative = self.all[index] - positive
        pairs = positive.sum() * negative.sum()
        return float((positive * negative).sum() / pairs / 2) if pairs else 0.0

    def _lower_edges(self) -> Floats:
        edges = self.LOWEST + np.arange(self.BINS) * self.WIDTH
        return 1 / (1 + np.exp(-edges))

    def macro(self) -> dict[str, float | None]:
        """Return the means of AUC and average precision over the classes where they are defined."""
        areas = [area for area in self.areas() if area is not None]
        precisions = [precision for precision in self.average_precisions() if precision is not None]
        return {
            "macro_auc": float(np.mean(areas)) if areas else None,
            "macro_average_precision": float(np.mean(precisions)) if precisions else None,
        }


class CoarseScores:
    """Coarse histograms of the scores as additive statistics, from which the macro AUC is bootstrapped.

    The bins have equal width in log-odds from -12 to 12. They are the statistics `first` and following of `GroupSums`:
    the examples of each class by bin, then those that are positive.
    """

    HIGHEST = 12.0  # log-odds
    FINEST, COARSEST, STATISTICS = 200, 20, 2000

    def __init__(self, classes: int, first: int) -> None:
        self._classes, self._first = classes, first
        self._bins = int(np.clip(self.STATISTICS // classes, self.COARSEST, self.FINEST))
        self.statistics = 2 * classes * self._bins

    def update(self, sums: Floats, groups: Counts, fine: Counts, positive: NDArray[np.bool_]) -> None:
        """Add scores in bins `fine` [batch, classes] of `ScoreHistograms` to the `sums` of `groups` [batch]."""
        odds = ScoreHistograms.LOWEST + fine * ScoreHistograms.WIDTH
        bins = np.clip((odds / self.HIGHEST + 1) / 2 * self._bins, 0, self._bins - 1).astype(np.int64)
        columns = self._first + np.arange(self._classes) * self._bins + bins
        rows = np.broadcast_to(groups[:, None], bins.shape)
        np.add.at(sums, (rows, columns), 1)
        np.add.at(sums, (rows[positive], columns[positive] + self.statistics // 2), 1)

    def macro_auc(self, sums: Floats) -> Floats:
        """Return the mean AUC [n] over the classes with positive and negative examples, NaN if there are none."""
        counts = sums[:, self._first : self._first + self.statistics].reshape(len(sums), 2, self._classes, self._bins)
        positive, negative = counts[:, 1], counts[:, 0] - counts[:, 1]
        positives, negatives = positive.sum(axis=2), negative.sum(axis=2)
        # A negative example is ranked below all positive ones in higher bins, and half of those in its own.
        above = positives[:, :, None] - np.cumsum(positive, axis=2)
        area = ratio((negative * (above + positive / 2)).sum(axis=2), positives * negatives)
        return mean_where(area, (positives > 0) & (negatives > 0))


def ratio(numerator: Counts | Floats, denominator: Counts | Floats) -> Floats:
    """Divide element-wise; 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros(denominator.shape), where=denominator != 0)


def mean_where(values: Floats, chosen: NDArray[np.bool_]) -> Floats:
    """Return the mean of the chosen `values` [n, classes], [n]; NaN where none is chosen."""
    total, count = (values * chosen).sum(axis=1), chosen.sum(axis=1)
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count != 0)
