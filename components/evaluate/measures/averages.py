"""Measures of a task with classes or labels: precision, recall and F1 of each from counts, and their averages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from slipway.components.evaluate.measures.base import PREDICTION, Measures, P
from slipway.components.evaluate.measures.scores import AREA, Scores, ratio
from slipway.components.evaluate.measures.significance import Counts, Floats
from slipway.core.manifest import Manifest

# From a weight of each class to the sum over an example's hits, predictions and labels, [examples].
Summed = Callable[[Floats, Floats, Floats], Floats]


@dataclass(frozen=True)
class CountAverages:
    """True positives, predictions and examples of each class or label, [n] each."""

    hits: Counts
    predicted: Counts
    support: Counts

    @property
    def precision(self) -> Floats:
        """[n]: fraction of the predictions of a class that are correct; 0 for a class that was never predicted."""
        return ratio(self.hits, self.predicted)

    @property
    def recall(self) -> Floats:
        """[n]: fraction of a class's examples that are predicted as it; 0 for a class without examples."""
        return ratio(self.hits, self.support)

    @property
    def f1(self) -> Floats:
        """[n]: harmonic mean of precision and recall; 0 where both are 0."""
        return ratio(2 * self.hits, self.predicted + self.support)

    @property
    def micro_f1(self) -> float | None:
        """F1 of all classes together; None without labels and predictions."""
        total = int(self.predicted.sum() + self.support.sum())
        return 2 * int(self.hits.sum()) / total if total else None

    @property
    def each(self) -> dict[str, Floats]:
        """The metrics of each class whose means are `macro`, [n] each."""
        return {"macro_precision": self.precision, "macro_recall": self.recall, "macro_f1": self.f1}

    @property
    def denominators(self) -> dict[str, Floats]:
        """The numbers by which the metrics of `each` are divided, [n] each."""
        counts = {
            "macro_precision": self.predicted,
            "macro_recall": self.support,
            "macro_f1": (self.predicted + self.support) / 2,
        }
        return {name: denominator.astype(np.float64) for name, denominator in counts.items()}

    def macro(self) -> dict[str, float | None]:
        """Return the means over the classes that have examples; None if none has any."""
        present = self.support > 0
        return {name: float(values[present].mean()) if present.any() else None for name, values in self.each.items()}

    def influences(self, summed: Summed, examples: int) -> dict[str, Floats]:
        """Return each example's influence on the metrics of `macro`, [examples]."""
        present, none = self.support > 0, np.zeros(len(self.support))
        if not present.any():
            return {}
        scale = examples * present / present.sum()
        predicted, support = (ratio(scale, counts.astype(np.float64)) for counts in (self.predicted, self.support))
        both = ratio(scale, (self.predicted + self.support).astype(np.float64))
        return {
            "macro_precision": summed(predicted, -self.precision * predicted, none),
            "macro_recall": summed(support, none, -self.recall * support),
            "macro_f1": summed(2 * both, -self.f1 * both, -self.f1 * both),
        }

    def micro_influences(self, summed: Summed, examples: int) -> Floats:
        """Return each example's influence on the micro F1, [examples]."""
        total, ones = max(1, int(self.predicted.sum() + self.support.sum())), np.ones(len(self.support))
        weight = examples / total * ones
        return summed(2 * weight, -(self.micro_f1 or 0) * weight, -(self.micro_f1 or 0) * weight)


class ClassMeasures(Measures[P]):
    """Measures of a task with classes or labels, of which it keeps the scores, and the examples' losses."""

    def __init__(self, names: Sequence[str], examples: int, worst: int = 0) -> None:
        super().__init__(worst)
        self._names = list(names)
        self.scored = Scores(examples, len(names))
        self._losses = np.zeros(examples)

    @classmethod
    def of(cls, data: Manifest, examples: int, worst: int = 0) -> Self:
        return cls(data.classes, examples, worst)

    @property
    @abstractmethod
    def averages(self) -> CountAverages:
        """Precision, recall and F1 of each class or label, and their averages."""

    def ordered(self, values: Floats, order: Counts) -> Floats:
        """Return the model's values in the data set's order, [batch, n]; 0 for those that the model does not have."""
        known = order < len(self._names)
        ordered = np.zeros((len(values), len(self._names)))
        ordered[:, order[known]] = values[:, known]
        return ordered

    def classes(self, metric: str) -> tuple[Floats, Floats]:
        averages = self.averages
        if metric in averages.each:
            return averages.each[metric], averages.denominators[metric]
        return self.scored.classes(metric) if metric in self.scored.each else super().classes(metric)

    def counts(self, metric: str) -> dict[str, tuple[int, str]]:
        averages, counted = self.averages, dict[str, Floats | Counts]()
        if metric in averages.each | self.scored.each:
            counted["example"] = averages.support
        if metric == AREA:
            counted["negative example"] = self.examples - averages.support
        if metric == "macro_precision":
            counted[PREDICTION] = averages.predicted
        least = {noun: (int(numbers.min()), self._names[int(numbers.argmin())]) for noun, numbers in counted.items()}
        return least or super().counts(metric)

    def bias(self, metric: str) -> float:
        return self.scored.bias(metric)
