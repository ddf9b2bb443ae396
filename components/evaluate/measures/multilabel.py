"""Measures of a multilabel classification: each label on its own, and their averages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.measures.base import SMALLEST_PROBABILITY, Measures
from slipway.components.evaluate.measures.scores import CoarseScores, ScoreHistograms, mean_where, ratio
from slipway.components.evaluate.measures.significance import Counts, Figures, Floats

THRESHOLD = 0.5
NO_LABEL = "no label"


@dataclass(frozen=True)
class LabelPredictions:
    """A batch of labels, bool [batch, n], and their predicted probabilities, [batch, n], in the data set's order."""

    labels: NDArray[np.bool_]
    probabilities: Floats

    @property
    def predicted(self) -> NDArray[np.bool_]:
        """[batch, n]: the labels whose probability is at least the threshold."""
        return self.probabilities >= THRESHOLD

    @property
    def losses(self) -> Floats:
        """[batch]: the cross-entropy in nats, averaged over the labels; probabilities are clipped as in a loss."""
        inside = np.clip(self.probabilities, SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY)
        return -np.log(np.where(self.labels, inside, 1 - inside)).mean(axis=1)


class MultilabelMeasures(Measures[LabelPredictions]):
    """All metrics of one model on one split of a data set with these labels."""

    def __init__(self, labels: Sequence[str], examples: int, worst: int = 0) -> None:
        self._names = list(labels)
        n = len(labels)
        # Statistics of an example: 1, loss, correct labels, all labels correct; true positives, predictions and
        # examples of each label; histograms of the scores.
        self._coarse = CoarseScores(n, first=4 + 3 * n)
        super().__init__(examples, 4 + 3 * n + self._coarse.statistics, worst)
        self.histograms = ScoreHistograms(n)

    def predictions(self, labels: NDArray[np.generic], values: Floats, order: Counts) -> LabelPredictions:
        known = order < len(self._names)
        ordered = np.zeros(labels.shape)
        ordered[:, order[known]] = values[:, known]
        return LabelPredictions(labels.astype(bool), ordered)

    def update(self, batch: LabelPredictions) -> None:
        labels, predicted = batch.labels, batch.predicted
        size, right = len(labels), labels == predicted
        groups, sums = self.sums.next(size), self.sums.sums
        self.examples += size
        fixed = np.stack([np.ones(size), batch.losses, right.sum(axis=1), right.all(axis=1)], axis=1)
        rows = np.hstack([fixed, labels & predicted, predicted, labels])
        self.sums.add(groups, rows)
        self._coarse.update(sums, groups, self.histograms.update(batch.probabilities, labels), labels)

    def scores(self, batch: LabelPredictions) -> Floats:
        """Return the loss of the examples of which a label is wrong, [batch]."""
        return np.where((batch.labels == batch.predicted).all(axis=1), -np.inf, batch.losses)

    def describe(self, batch: LabelPredictions, index: int) -> tuple[str, str]:
        return self._listed(batch.labels[index]), self._listed(batch.predicted[index])

    def _listed(self, chosen: NDArray[np.bool_]) -> str:
        return ", ".join(self._names[index] for index in np.flatnonzero(chosen)) or NO_LABEL

    def counts(self, sums: Floats) -> tuple[Floats, Floats, Floats]:
        """Return true positives, predictions and examples of each label, [n, labels] each."""
        n = len(self._names)
        hits, predicted, support = (sums[:, 4 + part * n : 4 + (part + 1) * n] for part in range(3))
        return hits, predicted, support

    def figures(self, sums: Floats) -> Figures:
        """Return the metrics [n]; macro averages are over the labels that have examples."""
        hits, predicted, support = self.counts(sums)
        examples, labels = sums[:, 0], len(self._names)
        everything = (2 * hits.sum(axis=1), predicted.sum(axis=1) + support.sum(axis=1))
        return {
            "macro_f1": mean_where(ratio(2 * hits, predicted + support), support > 0),
            "micro_f1": np.divide(*everything, out=np.full(len(sums), np.nan), where=everything[1] > 0),
            "macro_auc": self._coarse.macro_auc(sums),
            "loss": sums[:, 1] / examples,
            "macro_precision": mean_where(ratio(hits, predicted), support > 0),
            "macro_recall": mean_where(ratio(hits, support), support > 0),
            "label_accuracy": sums[:, 2] / examples / labels,
            "exact_match": sums[:, 3] / examples,
        }

    def other_metrics(self) -> dict[str, float | None]:
        return dict(self.histograms.macro())

    def hits(self) -> dict[str, int]:
        return {"exact_match": round(float(self.sums.total[3]))}
