"""What the measures of all tasks share: streaming sums, metrics with confidence intervals, and the worst examples."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.gate import REPLICATES, Comparison
from slipway.components.evaluate.measures.significance import (
    Counts,
    Figures,
    Floats,
    GroupSums,
    bootstrap_p_value,
    mcnemar,
    percentile_interval,
    wilson,
)  # fmt: skip

# Machine epsilon of float32; smaller probabilities are clipped to it in a loss.
SMALLEST_PROBABILITY = float(np.finfo(np.float32).eps)
P = TypeVar("P")


@dataclass(frozen=True)
class Example:
    """An example of the split that the report shows because the model is far off.

    `true` and `predicted` are texts; `score` says how far off the model is, as the task defines it. `image` is the
    encoded image, b"" without one; `values` are the example's other inputs as texts.
    """

    key: str
    true: str
    predicted: str
    score: float
    image: bytes = b""
    values: Mapping[str, str] | None = None


class WorstExamples:
    """The `limit` examples with the highest scores."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.examples: list[Example] = []

    def candidates(self, scores: Floats) -> Counts:
        """Return the indices in a batch of the scores [batch] high enough to be kept; -inf never is."""
        if not self._limit:
            return np.zeros(0, np.int64)
        chosen = np.flatnonzero(scores > -np.inf)
        if len(self.examples) == self._limit:
            chosen = chosen[scores[chosen] >= self.examples[-1].score]
        # Ties for the last slot are broken by key, so every example with that score is a candidate.
        if len(chosen) > self._limit:
            chosen = chosen[scores[chosen] >= np.sort(scores[chosen])[-self._limit]]
        return chosen

    def add(self, examples: list[Example]) -> None:
        """Add examples; keep those with the highest scores. Ties are broken by key, not by the order of batches."""
        everything = [*self.examples, *examples]
        self.examples = sorted(everything, key=lambda example: (-example.score, example.key))[: self._limit]


class Measures(ABC, Generic[P]):
    """All metrics of one model on one split of a data set; a batch of predictions is a `P`.

    Metrics are functions of sums of statistics over the examples (`figures`), so that memory does not grow with the
    number of examples, beyond a few bytes for each: see `GroupSums` and the subclasses. The result does not depend on
    how the examples are split into batches.

    `update` does not fill `worst`, which needs images and keys: the caller passes its candidates to `worst.add`.
    """

    def __init__(self, examples: int, statistics: int, worst: int) -> None:
        self.sums = GroupSums(examples, statistics)
        self.worst = WorstExamples(worst)
        self.examples = 0

    @abstractmethod
    def predictions(self, labels: NDArray[np.generic], values: Floats, order: Counts) -> P:
        """Return a batch of predictions.

        Args:
            labels: The records' labels, as the manifest's task defines them.
            values: What the model returns for the task, [batch, model's outputs] or [batch].
            order: The index in the data set of each of the model's classes or labels; their number for others.
        """

    @abstractmethod
    def update(self, batch: P) -> None:
        """Accumulate a batch; increases `examples` and `sums`."""

    @abstractmethod
    def scores(self, batch: P) -> Floats:
        """Return how far off the predictions of a batch are, [batch]; -inf for those that the report never shows."""

    @abstractmethod
    def describe(self, batch: P, index: int) -> tuple[str, str]:
        """Return the true and the predicted value of an example of a batch, for people."""

    @abstractmethod
    def figures(self, sums: Floats) -> Figures:
        """Return the metrics [n] that follow from sums of statistics [n, statistics]; NaN where undefined."""

    def hits(self) -> dict[str, int]:
        """Return, for each metric that is a proportion of the examples, the number of examples that count."""
        return {}

    def other_metrics(self) -> dict[str, float | None]:
        """Return metrics that do not follow from `sums`; None where undefined."""
        return {}

    @property
    def correct(self) -> NDArray[np.bool_] | None:
        """[examples]: which predictions are correct; None if a prediction of this task is not right or wrong."""
        return None

    def metrics(self) -> dict[str, float]:
        """Return the scalar metrics, all finite; metrics that are undefined for these examples are omitted."""
        summed = {name: float(values[0]) for name, values in self.figures(self.sums.total[np.newaxis]).items()}
        found = {**summed, **self.other_metrics(), "examples": float(self.examples)}
        return {name: value for name, value in found.items() if value is not None and np.isfinite(value)}

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Return the metrics' 95% confidence intervals: Wilson score for proportions, else bootstrap."""
        hits, intervals = self.hits(), {}
        for name, value in self.metrics().items():
            if name in hits:
                intervals[name] = wilson(hits[name], self.examples)
            elif name in self.replicates and (found := percentile_interval(self.replicates[name])):
                intervals[name] = min(found[0], value), max(found[1], value)
        return intervals

    @functools.cached_property
    def replicates(self) -> Figures:
        """The metrics in each bootstrap replicate, [REPLICATES]; paired with those of another model."""
        return self.sums.replicates(self.figures)


def compare(metric: str, model: Measures[P], champion: Measures[P]) -> Comparison | None:
    """Test whether `metric` differs between two models that predicted the same examples.

    McNemar's exact test for the accuracy of predictions that are correct or not, else the paired bootstrap.

    Returns:
        None if the metric is undefined for one of them, or is not a function of sums over the examples.
    """
    if metric == "accuracy" and model.correct is not None and champion.correct is not None:
        ours = int((model.correct & ~champion.correct).sum())
        theirs = int((champion.correct & ~model.correct).sum())
        counts = f"only this model is right on {ours:,} of {model.examples:,} examples, only the champion on {theirs:,}"
        return Comparison("McNemar's exact test", mcnemar(ours, theirs), counts)
    observed, beaten = model.metrics(), champion.metrics()
    if metric not in observed or metric not in beaten or metric not in model.replicates:
        return None
    gains = model.replicates[metric] - champion.replicates[metric]
    if (interval := percentile_interval(gains)) is None:
        return None
    counts = (
        f"{REPLICATES:,} replicates of {model.examples:,} examples, "
        f"95% interval of the difference {interval[0]:.4g} to {interval[1]:.4g}"
    )
    return Comparison("paired bootstrap", bootstrap_p_value(gains, observed[metric] - beaten[metric]), counts)
