"""What the measures of all tasks share: streaming sums, metrics with confidence intervals, and the worst examples."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.gate import Comparison, Shortfall
from slipway.components.evaluate.measures.significance import (
    Counts,
    Floats,
    NoInterval,
    check_bias,
    fraction_interval,
    mcnemar,
    mcnemar_shortfall,
    number_interval,
    paired_p_value,
    positive_interval,
    proportion_interval,
    quantile_95,
    shortfall_p_value,
    standard_error,
)  # fmt: skip
from slipway.components.evaluate.settings import KNOWN, GateSettings
from slipway.core.formatting import interval
from slipway.core.manifest import Manifest

# Machine epsilon of float32; smaller probabilities are clipped to it in a loss.
SMALLEST_PROBABILITY = float(np.finfo(np.float32).eps)
# Of metrics that a single confident error changes by more than all that is observed without it.
ONE_ERROR = "one confident error more changes it too much"
# Means over the classes that are the same in samples and population.
UNBIASED = ("macro_recall", "macro_auc")
# Of each class or label: examples that an interval and a test need, and predictions, on which a precision is based.
FEWEST_EXAMPLES, FEWEST_PREDICTIONS, FEWEST_PREDICTIONS_OF_TEST = 2, 2, 8
PREDICTION = "prediction"
P = TypeVar("P")


def chosen(predictions: P, mask: NDArray[np.bool_]) -> P:
    """Return those of a batch of predictions that a mask names, [batch]."""
    return type(predictions)(**{name: values[mask] for name, values in vars(predictions).items()})


@dataclass(frozen=True)
class Example:
    """An example of the split that the report shows because the model is far off.

    `true` and `predicted` are texts; `score` is the size of its error, as the task defines it. `image` is the
    encoded image, b"" without one; `values` are the example's other inputs as texts.
    """

    key: str
    true: str
    predicted: str
    score: float
    image: bytes = b""
    values: Mapping[str, str] = field(default_factory=dict)


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

    The result does not depend on how the examples are split into batches.

    `update` does not fill `worst`, which needs images and keys: the caller passes its candidates to `worst.add`.
    """

    # The label's type in the records; it has one element for each name if `label_per_name`.
    label, label_per_name = "int64", False
    # Why a metric has no interval, by name.
    without_interval: Mapping[str, str] = MappingProxyType({})

    # The model's, from which the second of two classes is predicted; see `slipway.serving.model.Model.best`.
    threshold: float | None = None

    def __init__(self, worst: int) -> None:
        self.worst = WorstExamples(worst)
        self.examples = 0

    @classmethod
    @abstractmethod
    def of(cls, data: Manifest, examples: int, worst: int = 0) -> Self:
        """Create the measures for a data set, a number of examples and a number of worst examples."""

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
        """Accumulate a batch; increases `examples`."""

    @abstractmethod
    def scores(self, batch: P) -> Floats:
        """Return the errors of the predictions of a batch, [batch]; -inf for those that the report never shows."""

    @abstractmethod
    def describe(self, batch: P, index: int) -> tuple[str, str]:
        """Return the true and the predicted value of an example of a batch, for people."""

    def note(self, _noun: str) -> str:
        """Return what the metrics hide, in a sentence about examples of that name; "" if there is nothing to say."""
        return ""

    @abstractmethod
    def values(self) -> Mapping[str, float | None]:
        """Return the metrics; None or NaN where undefined."""

    @abstractmethod
    def influences(self) -> Mapping[str, Floats]:
        """Return, for each metric with a confidence interval, each example's influence on it; see `significance`."""

    def classes(self, metric: str) -> tuple[Floats, Floats]:
        """Return the metric of each class of which `metric` is the mean, and its denominators, [n] each."""
        return np.array([self.metrics()[metric]]), np.array([float(self.examples)])

    def counts(self, metric: str) -> dict[str, tuple[int, str]]:  # noqa: ARG002
        """Return the least numbers on which a metric is based, by what is counted; and of which class, "" of all."""
        return {"example": (self.examples, "")}

    def check(self, metric: str, predictions: int) -> None:
        """Check that a metric is based on enough examples, and so many predictions, of each class or label.

        Raises:
            NoInterval: It is not.
        """
        for noun, (count, name) in self.counts(metric).items():
            if count < (predictions if noun == PREDICTION else FEWEST_EXAMPLES):
                number = f"there {'are' if count > 1 else 'is'} only {count}" if count else "there is no"
                raise NoInterval(f"{number} {noun}{'s' if count > 1 else ''}{f' of {name}' if name else ''}")

    def bias(self, metric: str) -> float:  # noqa: ARG002
        """Return how much higher a metric from 0 to 1 is expected to be in a sample than in its population."""
        return 0.0

    def hits(self) -> dict[str, int]:
        """Return, for each metric that is a proportion of the examples, the number of examples that count."""
        return {}

    @property
    def correct(self) -> NDArray[np.bool_] | None:
        """[examples]: which predictions are correct; None if a prediction of this task is not right or wrong."""
        return None

    def metrics(self) -> dict[str, float]:
        """Return the scalar metrics, all finite; metrics that are undefined for these examples are omitted."""
        values = {**self.values(), "examples": float(self.examples)}
        return {name: float(value) for name, value in values.items() if value is not None and np.isfinite(value)}

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Return the metrics' 95% confidence intervals: exact for proportions, else from the influences."""
        return {name: bounds for name, bounds in self._intervals.items() if not isinstance(bounds, str)}

    def without(self) -> dict[str, str]:
        """Return why the other metrics have no interval."""
        return {name: reason for name, reason in self._intervals.items() if isinstance(reason, str)}

    @property
    def _intervals(self) -> dict[str, tuple[float, float] | str]:
        hits, influences = self.hits(), self.influences()
        intervals: dict[str, tuple[float, float] | str] = {}
        for name, value in self.metrics().items():
            if name in hits:
                intervals[name] = proportion_interval(hits[name], self.examples)
            elif name in self.without_interval:
                intervals[name] = self.without_interval[name]
            elif name in influences:
                try:
                    intervals[name] = self._interval(name, value, influences[name])
                except NoInterval as reason:
                    intervals[name] = str(reason)
        return intervals

    def _interval(self, name: str, value: float, influences: Floats) -> tuple[float, float]:
        match KNOWN[name].statistic if name in KNOWN else None:
            case "fraction":
                self.check(name, FEWEST_PREDICTIONS)
                class_values, counts = self.classes(name)
                if name not in UNBIASED:
                    check_bias(counts)
                return fraction_interval(value, influences, class_values, counts, self.bias(name))
            case "mean":
                return positive_interval(value, influences, 1)
            case "mean square":
                return positive_interval(value, influences, 2)
            case "root mean square":
                low, high = positive_interval(value**2, 2 * value * influences, 2)
                return math.sqrt(low), math.sqrt(high)
            case "explained fraction":
                low, high = positive_interval(1 - value, -influences, 2, is_ratio=True)
                return 1 - high, 1 - low
        return number_interval(value, influences, 1)  # of a mean with a sign


def comparisons(model: Measures[P], champion: Measures[P]) -> dict[str, Comparison]:
    """Test whether metrics differ between two models that predicted the same examples.

    McNemar's exact test for the accuracy of predictions that are correct or not, else a t-test of the differences of
    the influences, which is DeLong's test of an AUC; no test of too few examples or predictions of
    a class. Metrics that one of them does not have, or that have no influences, are omitted.
    """
    results = {}
    if (only := _only_right(model, champion)) is not None:
        only_model, only_champion = only
        counts = (
            f"only this model is right on {only_model:,} of {model.examples:,} examples, "
            f"only the champion on {only_champion:,}"
        )
        results["accuracy"] = Comparison("McNemar's exact test", mcnemar(only_model, only_champion), counts)
    observed, beaten = model.metrics(), champion.metrics()
    ours_found, theirs_found = model.influences(), champion.influences()
    for metric in ours_found.keys() & theirs_found.keys() & observed.keys() & beaten.keys():
        gain, influences = observed[metric] - beaten[metric], ours_found[metric] - theirs_found[metric]
        test = "DeLong's test" if metric == "macro_auc" else "paired t-test"
        try:
            for models in (model, champion):
                models.check(metric, FEWEST_PREDICTIONS_OF_TEST)
        except NoInterval as reason:
            results[metric] = Comparison(test, None, str(reason))
            continue
        error, freedom = standard_error(influences)
        half = quantile_95(freedom) * error
        counts = f"{len(influences):,} examples, 95% interval of the difference {interval(gain - half, gain + half)}"
        results[metric] = Comparison(test, paired_p_value(gain, influences), counts)
    return results


def _only_right(model: Measures[P], champion: Measures[P]) -> tuple[int, int] | None:
    """Return the numbers of examples on which only the model, and only the champion, is right; None if none can be."""
    if model.correct is None or champion.correct is None:
        return None
    return int((model.correct & ~champion.correct).sum()), int((champion.correct & ~model.correct).sum())


def shortfall(model: Measures[P], champion: Measures[P], gate: GateSettings) -> Shortfall:
    """Test whether a model improves the gate's metric of the same examples by less than its `slice_margin`."""
    metric, margin, only = gate.name, gate.slice_margin or 0.0, _only_right(model, champion)
    if metric == "accuracy" and only is not None and model.examples:
        return Shortfall(*mcnemar_shortfall(*only, model.examples, margin))
    model_influences, champion_influences = (
        measures.influences().get(metric) if measures.examples else None for measures in (model, champion)
    )
    try:
        if (
            model_influences is None
            or champion_influences is None
            or not {metric} <= model.metrics().keys() & champion.metrics().keys()
        ):
            raise NoInterval(f"the {gate.label} is undefined there, or has no test")
        for models in (model, champion):
            models.check(metric, FEWEST_PREDICTIONS_OF_TEST)
    except NoInterval as reason:
        return Shortfall(None, 0.0, str(reason))
    sign = -1 if gate.minimized else 1
    gain, influences = (
        sign * (model.metrics()[metric] - champion.metrics()[metric]),
        sign * (model_influences - champion_influences),
    )
    return Shortfall(shortfall_p_value(gain, influences, margin), standard_error(influences)[0])
