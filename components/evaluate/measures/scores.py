"""A model's scores for each class or label: ROC and precision-recall curves, their areas, and their influences."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.measures.significance import SEED, Counts, Floats

AREA, AVERAGE_PRECISION = "macro_auc", "macro_average_precision"
# Scores kept, at 5 bytes each; of more, those of a random sample of the examples.
MAX_SCORES = 20_000_000
CURVE_POINTS = 3000  # thresholds of an average curve


@dataclass(frozen=True)
class Curve:
    """A ROC curve from (0, 0) to (1, 1): both rates and the score thresholds, [points] each."""

    false_positive_rate: Floats
    true_positive_rate: Floats
    thresholds: Floats

    def thinned(self, points: int) -> Curve:
        """Return the curve reduced to at most `points` points, including both ends."""
        keep = np.unique(np.linspace(0, len(self.thresholds) - 1, points).round().astype(int))
        return Curve(self.false_positive_rate[keep], self.true_positive_rate[keep], self.thresholds[keep])


@dataclass(frozen=True)
class Ranking:
    """The distinct scores of a class in descending order, [distinct], how many examples of either kind have each, and
    the position of each example's score among them, [examples]."""

    thresholds: Floats
    positive: Floats
    negative: Floats
    position: Counts

    def area(self) -> tuple[float, Floats]:
        """Return the AUC and the examples' influences on it, which are DeLong's structural components."""
        positives, negatives = self.positive.sum(), self.negative.sum()
        above = (np.cumsum(self.positive) - self.positive / 2) / positives  # positives above a score, half at it
        below = 1 - (np.cumsum(self.negative) - self.negative / 2) / negatives
        area = float((self.negative * above).sum() / negatives)
        return area, np.stack([(above - area) / negatives, (below - area) / positives])

    def average_precision(self) -> tuple[float, Floats]:
        """Return the average precision and the examples' influences on it."""
        positives, examples = self.positive.sum(), np.cumsum(self.positive + self.negative)
        precision = np.cumsum(self.positive) / examples
        average = float((self.positive * precision).sum() / positives)
        # An example raises the counts at all lower thresholds, if positive also those of true positives.
        gain = np.cumsum((self.positive / examples)[::-1])[::-1]
        cost = np.cumsum((self.positive * precision / examples)[::-1])[::-1]
        return average, np.stack([-cost, precision - average + gain - cost]) / positives

    def bias(self) -> float:
        """Return the jackknife's estimate of the bias of the average precision; 0 with one positive example.

        Each positive example counts in the precision at its own score, the more the fewer there are.
        """
        positives, negatives = self.positive.sum(), self.negative.sum()
        if positives < 2:
            return 0.0
        hits, every = np.cumsum(self.positive), np.cumsum(self.positive + self.negative)
        average, precision, rest = float((self.positive * hits / every).sum() / positives), hits / every, every - 1
        # Sums, over the excluded examples, of the precisions at the other positive examples.
        one_less = np.divide(1, rest, out=np.zeros(len(rest)), where=rest > 0)
        of_positives = self.positive * ((positives - hits) * precision + (hits - 1) ** 2 * one_less)
        of_negatives = self.positive * ((negatives - every + hits) * precision + (every - hits) * hits * one_less)
        total = positives + negatives
        without_one = (of_positives.sum() / (positives - 1) + of_negatives.sum() / positives) / total
        return float((total - 1) * (without_one - average))

    def best_f1(self) -> tuple[float, float]:
        """Return the threshold with the highest F1, and that F1."""
        true_positives = np.cumsum(self.positive)
        f1 = 2 * true_positives / (np.cumsum(self.positive + self.negative) + true_positives[-1])
        best = int(f1.argmax())
        return float(self.thresholds[best]), float(f1[best])


class Scores:
    """The scores of a split's examples for each class or label, one against the rest.

    Areas and influences are exact for at most `MAX_SCORES` scores; of more, a random sample of the examples is kept,
    the same for all models.
    """

    def __init__(self, examples: int, classes: int) -> None:
        size = min(examples, max(1, MAX_SCORES // classes))
        self.values = np.zeros((size, classes), np.float32)
        self.positive = np.zeros((size, classes), bool)
        self._kept = np.zeros(examples, bool)
        self._kept[np.random.default_rng(SEED).permutation(examples)[:size]] = True
        self._seen, self._size = 0, 0

    def update(self, scores: Floats, positive: NDArray[np.bool_]) -> None:
        """Add scores [batch, n] of which some are `positive` [batch, n]."""
        kept = self._kept[self._seen : self._seen + len(scores)]
        self._seen += len(scores)
        end = self._size + int(kept.sum())
        self.values[self._size : end], self.positive[self._size : end] = scores[kept], positive[kept]
        self._size = end

    @property
    def sampled(self) -> tuple[int, int]:
        """The number of examples whose scores are kept, and of all examples."""
        return len(self.values), len(self._kept)

    @functools.cached_property
    def support(self) -> Counts:
        """[n]: number of positive examples of each class."""
        support: Counts = self.positive.sum(axis=0)
        return support

    def ranking(self, index: int) -> Ranking:
        """Return a class's scores in descending order."""
        thresholds, position = np.unique(-self.values[:, index], return_inverse=True)
        every = np.bincount(position, minlength=len(thresholds)).astype(np.float64)
        positives = np.bincount(position, self.positive[:, index], len(thresholds)).astype(np.float64)
        return Ranking(-thresholds.astype(np.float64), positives, every - positives, position)

    @functools.cached_property
    def _measured(self) -> tuple[dict[str, Floats], dict[str, Floats], float]:
        """The metrics of each class, the examples' influences on their means, and the bias of the mean average
        precision; see `each`, `influences` and `bias`."""
        examples, classes = self.values.shape
        values = {name: np.full(classes, np.nan) for name in (AREA, AVERAGE_PRECISION)}
        influences = {name: np.zeros(examples) for name in values}
        biases = []
        for index in np.flatnonzero(self.support).tolist():
            ranking, kind = self.ranking(index), self.positive[:, index].astype(int)
            biases.append(ranking.bias())
            metrics = {AVERAGE_PRECISION: ranking.average_precision()}
            if self.support[index] < examples:
                metrics[AREA] = ranking.area()
            for name, (value, influence) in metrics.items():
                values[name][index] = value
                influences[name] += examples * influence[kind, ranking.position]
        for name, class_values in values.items():
            influences[name] /= max(1, np.isfinite(class_values).sum())
        return values, influences, sum(biases) / max(1, len(biases))

    @property
    def each(self) -> dict[str, Floats]:
        """The metrics of each class whose means are `macro`, [n] each; NaN where undefined.

        A class without examples has neither, one without other examples no AUC.
        """
        return self._measured[0]

    def classes(self, metric: str) -> tuple[Floats, Floats]:
        """Return the metric of each class, and the class's examples: for an AUC, those of the rarer kind."""
        rarer = np.minimum(self.support, len(self.values) - self.support)
        return self.each[metric], (rarer if metric == AREA else self.support).astype(np.float64)

    def bias(self, metric: str) -> float:
        """Return the jackknife's estimate of the bias of a metric: that of the mean average precision, else 0."""
        return self._measured[2] if metric == AVERAGE_PRECISION else 0.0

    def macro(self) -> dict[str, float | None]:
        """Return the means of AUC and average precision over the classes where they are defined."""
        known = {name: class_values[np.isfinite(class_values)] for name, class_values in self.each.items()}
        return {name: float(class_values.mean()) if len(class_values) else None for name, class_values in known.items()}

    def influences(self) -> dict[str, Floats]:
        """Return each example's influence on the metrics of `macro`, [examples kept]."""
        return self._measured[1]

    def curve(self, index: int) -> Curve | None:
        """Return a class's one-vs-rest ROC curve; None if it has no positive or no negative examples."""
        return self._mean_curve(slice(index, index + 1))

    def average_curve(self) -> Curve | None:
        """Return the mean of both rates over the classes at each threshold; None if no class has a curve."""
        return self._mean_curve(slice(None))

    def _mean_curve(self, classes: slice) -> Curve | None:
        usable = np.flatnonzero((self.support > 0) & (self.support < len(self.values)))
        usable = np.intersect1d(usable, np.arange(len(self.support))[classes])
        if not len(usable):
            return None
        thresholds = np.unique(self.values[:, usable])[::-1]
        if len(usable) > 1:
            thresholds = thresholds[np.unique(np.linspace(0, len(thresholds) - 1, CURVE_POINTS).astype(int))]
        rates = np.zeros((2, len(thresholds)))
        for index in usable:
            for positive in (False, True):
                scores = np.sort(self.values[self.positive[:, index] == positive, index])
                rates[int(positive)] += 1 - np.searchsorted(scores, thresholds) / len(scores)
        rates = np.hstack([np.zeros((2, 1)), rates / len(usable)])
        return Curve(rates[0], rates[1], np.concatenate([[max(1.0, float(thresholds[0]) + 1e-6)], thresholds]))

    def precision_at(self, index: int, recalls: Floats) -> Floats | None:
        """Return the interpolated precision of a class at each of `recalls`; None if it has no examples."""
        if not self.support[index]:
            return None
        ranking = self.ranking(index)
        true_positives = np.cumsum(ranking.positive)
        return interpolated(
            true_positives / np.cumsum(ranking.positive + ranking.negative),
            true_positives / true_positives[-1],
            recalls,
        )

    def best_f1(self, index: int) -> tuple[float, float] | None:
        """Return the threshold with the highest F1 of a class, and that F1; None if it has no examples."""
        return self.ranking(index).best_f1() if self.support[index] else None


def interpolated(precision: Floats, recall: Floats, recalls: Floats) -> Floats:
    """Return the highest precision at each of `recalls` or above, on a curve in order of decreasing threshold."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return best[np.minimum(np.searchsorted(recall, recalls - 1e-12), len(best) - 1)]


def ratio(numerator: Counts | Floats, denominator: Counts | Floats) -> Floats:
    """Divide element-wise; 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros(denominator.shape), where=denominator != 0)
