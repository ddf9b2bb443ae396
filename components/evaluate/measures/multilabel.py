"""Measures of a multilabel classification: each label on its own, and their averages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.measures.averages import ClassMeasures, CountAverages
from slipway.components.evaluate.measures.base import ONE_ERROR, SMALLEST_PROBABILITY
from slipway.components.evaluate.measures.significance import Counts, Floats

THRESHOLD = 0.5
MAX_LISTED = 12


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


class MultilabelMeasures(ClassMeasures[LabelPredictions]):
    """All metrics of one model on one split of a data set with these labels."""

    label_per_name = True
    without_interval = MappingProxyType({"loss": ONE_ERROR})

    def __init__(self, labels: Sequence[str], examples: int, worst: int = 0) -> None:
        super().__init__(labels, examples, worst)
        self._right = np.zeros(examples)
        self._counts: Counts = np.zeros((3, len(labels)), np.int64)

    def predictions(self, labels: NDArray[np.generic], values: Floats, order: Counts) -> LabelPredictions:
        return LabelPredictions(labels.astype(bool), self.ordered(values, order))

    def update(self, batch: LabelPredictions) -> None:
        labels, predicted = batch.labels, batch.predicted
        part = slice(self.examples, self.examples + len(labels))
        self.examples += len(labels)
        self._losses[part], self._right[part] = batch.losses, (labels == predicted).mean(axis=1)
        self._counts += np.stack([matrix.sum(axis=0) for matrix in (labels & predicted, predicted, labels)])
        self.scored.update(batch.probabilities, labels)

    def scores(self, batch: LabelPredictions) -> Floats:
        """Return the loss of the examples of which a label is wrong, [batch]."""
        return np.where((batch.labels == batch.predicted).all(axis=1), -np.inf, batch.losses)

    def describe(self, batch: LabelPredictions, index: int) -> tuple[str, str]:
        """Return only what differs: the labels that were not predicted, and those that are not true."""
        labels, predicted = batch.labels[index], batch.predicted[index]
        return self._listed(labels & ~predicted), self._listed(predicted & ~labels)

    def _listed(self, chosen: NDArray[np.bool_]) -> str:
        names = [self._names[index] for index in np.flatnonzero(chosen)]
        more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        return ", ".join(names[:MAX_LISTED]) + more or "none"

    @property
    def averages(self) -> CountAverages:
        return CountAverages(*self._counts)

    def values(self) -> dict[str, float | None]:
        """Return the metrics; macro averages are over the labels that have examples."""
        return {
            **self.averages.macro(),
            "micro_f1": self.averages.micro_f1,
            **self.scored.macro(),
            "loss": float(self._losses.mean()),
            "label_accuracy": float(self._right.mean()),
            "exact_match": self.hits()["exact_match"] / self.examples,
        }

    def influences(self) -> dict[str, Floats]:
        labels, predicted = self.scored.positive, self.scored.values >= THRESHOLD

        def summed(hits: Floats, predictions: Floats, support: Floats) -> Floats:
            return (labels & predicted) @ hits + predicted @ predictions + labels @ support

        return {
            **self.averages.influences(summed, self.examples),
            "micro_f1": self.averages.micro_influences(summed, self.examples),
            **self.scored.influences(),
            "loss": self._losses - self._losses.mean(),
            "label_accuracy": self._right - self._right.mean(),
        }

    def hits(self) -> dict[str, int]:
        return {"exact_match": int((self._right == 1).sum())}
