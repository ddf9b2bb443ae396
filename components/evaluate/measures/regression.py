"""Measures of a regression: squared and absolute errors, R², a sample for the plots, and the largest residuals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.measures.base import Measures
from slipway.components.evaluate.measures.significance import SEED, Counts, Floats
from slipway.components.prepare_data.validation.outliers import outliers
from slipway.core.formatting import brief, number
from slipway.core.manifest import Input, Manifest

SAMPLE = 2000  # examples in the plots


@dataclass(frozen=True)
class Values:
    """A batch of targets and predictions, [batch] each, in the target's unit."""

    actual: Floats
    predicted: Floats

    @property
    def residuals(self) -> Floats:
        """[batch]: predicted minus actual."""
        return self.predicted - self.actual


class RegressionMeasures(Measures[Values]):
    """All metrics of one model on one split, whose target has these statistics in the training split.

    Keeps the targets and predictions of all examples.
    """

    label = "float32"

    def __init__(self, target: Input, examples: int, worst: int = 0) -> None:
        super().__init__(worst)
        self._mean, self._deviation = (target.mean or (0.0,))[0], (target.deviation or (1.0,))[0]
        self._logarithmic = target.logarithmic
        self._values = Values(*np.zeros((2, examples)))

    @classmethod
    def of(cls, data: Manifest, examples: int, worst: int = 0) -> Self:
        return cls(data.target or Input(kind="number"), examples, worst)

    def predictions(self, labels: NDArray[np.generic], values: Floats, _order: Counts) -> Values:
        return Values(labels.astype(np.float64), values)

    def update(self, batch: Values) -> None:
        part = slice(self.examples, self.examples + len(batch.actual))
        self.examples += len(batch.actual)
        self._values.actual[part], self._values.predicted[part] = batch.actual, batch.predicted

    @property
    def sample(self) -> Values:
        """A random sample of the examples, all if they are at most `SAMPLE`, in the split's order."""
        chosen = np.sort(np.random.default_rng(SEED).permutation(self.examples)[:SAMPLE])
        return Values(self._values.actual[chosen], self._values.predicted[chosen])

    @property
    def median_error(self) -> float:
        """The median of the absolute errors, in the target's unit."""
        return float(np.median(np.abs(self._values.residuals)))

    def note(self, noun: str) -> str:
        count, share = outliers(self._values.residuals**2)
        if not count:
            return ""
        makes = f"{count:,} of {self.examples:,} test {noun}s {'makes' if count == 1 else 'make'}"
        return (
            f"{makes} {share:.0%} of the squared error, so RMSE and R² say little about the others: half of the "
            f"errors are below {number(self.median_error)}. evaluate.gate.metric=mae judges all alike; "
            "train.loss=huber or mae, and data.target=log, learn less from large ones."
        )

    def scores(self, batch: Values) -> Floats:
        """Return the absolute errors, [batch]."""
        return np.abs(batch.residuals)

    def describe(self, batch: Values, index: int) -> tuple[str, str]:
        return brief(batch.actual[index]), brief(batch.predicted[index])

    def values(self) -> dict[str, float | None]:
        """Return the metrics in the target's unit; the loss is the squared error of the standardized target.

        R² is the fraction of the target's variance that the predictions explain; undefined if all targets are equal.
        """
        error = self._values.residuals
        mse = float((error**2).mean())
        return {
            "rmse": math.sqrt(mse),
            "mae": float(np.abs(error).mean()),
            "mse": mse,
            "r2": 1 - mse / variance if (variance := self._variance) else None,
            "mean_error": float(error.mean()),
            "loss": float(self._losses().mean()),
        }

    def _losses(self) -> Floats:
        """The squared errors of the standardized target, [examples]; infinite for a logarithm that does not exist."""
        if not self._logarithmic:
            return self._values.residuals**2 / self._deviation**2
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.log(self._values.predicted) - np.log(self._values.actual)
        return np.nan_to_num(error, nan=np.inf) ** 2 / self._deviation**2

    @property
    def _variance(self) -> float:
        """The variance of the targets; 0 if it is rounding."""
        actual = self._values.actual
        variance = float(actual.var())
        return variance if variance > 1e-12 * float(((actual - self._mean) ** 2).mean()) else 0.0

    def influences(self) -> dict[str, Floats]:
        error, actual = self._values.residuals, self._values.actual
        absolute, squared = np.abs(error), error**2
        mse = float(squared.mean())
        influences = {
            "mae": absolute - absolute.mean(),
            "mse": squared - mse,
            "rmse": (squared - mse) / (2 * math.sqrt(mse)) if mse else squared,
            "mean_error": error - error.mean(),
            "loss": (losses := self._losses()) - losses.mean(),
        }
        if variance := self._variance:
            influences["r2"] = (mse / variance * (actual - actual.mean()) ** 2 - squared) / variance
        return influences
