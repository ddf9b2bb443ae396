"""Measures of a regression: squared and absolute errors, R², a sample for the plots, and the largest residuals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.measures.base import Measures
from slipway.components.evaluate.measures.significance import SEED, Counts, Figures, Floats
from slipway.core.manifest import Input

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

    Keeps the targets and predictions of a random sample of `SAMPLE` examples, the same for all models.
    """

    def __init__(self, target: Input, examples: int, worst: int = 0) -> None:
        # Statistics of an example: 1; error, absolute and squared error; the target's distance from the training mean
        # and its square.
        super().__init__(examples, 6, worst)
        self._mean, self._deviation = (target.mean or (0.0,))[0], (target.deviation or (1.0,))[0]
        self._sampled = np.zeros(examples, bool)
        self._sampled[np.random.default_rng(SEED).permutation(examples)[:SAMPLE]] = True
        self._samples: list[Values] = []

    def predictions(self, labels: NDArray[np.generic], values: Floats, _order: Counts) -> Values:
        return Values(labels.astype(np.float64), values)

    def update(self, batch: Values) -> None:
        error, distance = batch.residuals, batch.actual - self._mean
        groups, size = self.sums.next(len(error)), len(error)
        rows = np.stack([np.ones(size), error, np.abs(error), error**2, distance, distance**2], axis=1)
        self.sums.add(groups, rows)
        sampled = self._sampled[self.examples : self.examples + size]
        self._samples.append(Values(batch.actual[sampled], batch.predicted[sampled]))
        self.examples += size

    @property
    def sample(self) -> Values:
        """A random sample of the examples, all if they are at most `SAMPLE`, in the split's order."""
        actual = np.concatenate([part.actual for part in self._samples])
        return Values(actual, np.concatenate([part.predicted for part in self._samples]))

    def scores(self, batch: Values) -> Floats:
        """Return the absolute errors, [batch]."""
        return np.abs(batch.residuals)

    def describe(self, batch: Values, index: int) -> tuple[str, str]:
        return f"{batch.actual[index]:.6g}", f"{batch.predicted[index]:.6g}"

    def figures(self, sums: Floats) -> Figures:
        """Return the metrics [n] in the target's unit; the loss is the squared error of the standardized target.

        R² is the fraction of the target's variance that the predictions explain; undefined if all targets are equal.
        """
        examples, error, absolute, squared, distance, distance_squared = sums.T
        mse = squared / examples
        variance = np.maximum(distance_squared / examples - (distance / examples) ** 2, 0)
        varies = variance > 1e-12 * distance_squared / examples
        unexplained = np.divide(mse, variance, out=np.full(len(mse), np.nan), where=varies)
        return {
            "rmse": np.sqrt(mse),
            "mae": absolute / examples,
            "mse": mse,
            "r2": 1 - unexplained,
            "mean_error": error / examples,
            "loss": mse / self._deviation**2,
        }
