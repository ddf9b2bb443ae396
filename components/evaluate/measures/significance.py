"""Confidence intervals and paired significance tests for the metrics of an evaluation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.gate import REPLICATES

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Figures = dict[str, Floats]

NORMAL_95 = 1.959963984540054  # the standard normal distribution's 97.5% quantile
SEED = 0
# Examples are resampled in at most this many random groups of equal size, one by one if they are fewer.
MOST_GROUPS, FEWEST_GROUPS = 1000, 100
# Approximate limit of the numbers kept by `GroupSums` and by a chunk of replicates.
CELLS = 4_000_000
# Most replicates whose metrics are computed at once: their arrays fit into the CPU's caches.
ROWS = 128


def wilson(successes: int, examples: int) -> tuple[float, float]:
    """Return the 95% confidence interval (Wilson score) of a proportion; `examples` is at least 1."""
    share, z2 = successes / examples, NORMAL_95**2
    centre = (share + z2 / (2 * examples)) / (1 + z2 / examples)
    half = NORMAL_95 / (1 + z2 / examples) * math.sqrt(share * (1 - share) / examples + z2 / (4 * examples**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def mcnemar(first: int, second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test.

    Args:
        first: Number of examples that only the first model predicts correctly.
        second: Number of examples that only the second model predicts correctly.
    """
    differing, fewer = first + second, min(first, second)
    # Logarithms of the binomial coefficients (differing over 0, 1, … fewer), as the coefficients overflow.
    index = np.arange(1, fewer + 1)
    coefficients = np.concatenate([[0.0], np.cumsum(np.log((differing - index + 1) / index))])
    highest = float(coefficients.max())
    tail = math.log(float(np.exp(coefficients - highest).sum())) + highest - differing * math.log(2)
    return min(1.0, 2 * math.exp(min(tail, 0.0)))


def bootstrap_p_value(gains: Floats, gain: float) -> float:
    """Return the two-sided p-value of a difference from its bootstrap replicates; NaN replicates are ignored.

    Args:
        gains: The difference in each replicate.
        gain: The observed difference.
    """
    found = gains[np.isfinite(gains)]
    opposite = np.count_nonzero(found <= 0 if gain > 0 else found >= 0)
    return min(1.0, 2 * (1 + float(opposite)) / (1 + len(found)))


class GroupSums:
    """Sums of additive statistics over random groups of a split's examples, from which a metric is bootstrapped.

    Resampling groups needs memory for the groups only, and 4 bytes per example. With at most `MOST_GROUPS` examples,
    each is its own group: the ordinary bootstrap. Groups and replicates depend only on the number of examples and of
    statistics, so two models on the same split are resampled alike: their replicates are paired.
    """

    def __init__(self, examples: int, statistics: int) -> None:
        limit = max(FEWEST_GROUPS, min(MOST_GROUPS, CELLS // statistics))
        self._groups = _groups(examples, limit)
        self.sums: Floats = np.zeros((min(examples, limit), statistics))
        self._done = 0

    def next(self, examples: int) -> Counts:
        """Return the groups of the split's next examples, [examples]."""
        self._done += examples
        return self._groups[self._done - examples : self._done].astype(np.int64)

    def add(self, groups: Counts, rows: Floats) -> None:
        """Add the first statistics of examples, `rows` [examples, at most statistics], to the sums of their groups."""
        np.add.at(self.sums[:, : rows.shape[1]], groups, rows)

    @property
    def total(self) -> Floats:
        """[statistics]: the sums over all examples."""
        return self.sums.sum(axis=0)

    def replicates(self, figures: Callable[[Floats], Figures]) -> Figures:
        """Return metrics in each bootstrap replicate, [REPLICATES].

        Args:
            figures: Maps sums of statistics [n, statistics] to metrics [n], NaN where they are undefined.
        """
        counts = _replicates(len(self.sums))
        step = max(1, CELLS // self.sums.shape[1])
        used = np.flatnonzero(self.sums.any(axis=0))  # most bins of a trained model's scores are empty
        sums, parts = self.sums[:, used], []
        for start in range(0, REPLICATES, step):
            drawn = counts[start : start + step] @ sums
            for some in np.array_split(drawn, -(-len(drawn) // ROWS)):
                resampled = np.zeros((len(some), self.sums.shape[1]))
                resampled[:, used] = some
                parts.append(figures(resampled))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@functools.lru_cache(maxsize=2)
def _groups(examples: int, groups: int) -> NDArray[np.int32]:
    if examples <= groups:
        return np.arange(examples, dtype=np.int32)
    return (np.random.default_rng(SEED).permutation(examples) % groups).astype(np.int32)


@functools.lru_cache(maxsize=2)
def _replicates(groups: int) -> Floats:
    """Return how often each group is drawn in each replicate, [REPLICATES, groups]."""
    drawn = np.random.default_rng(SEED).multinomial(groups, np.full(groups, 1 / groups), size=REPLICATES)
    return drawn.astype(np.float64)


def percentile_interval(replicates: Floats) -> tuple[float, float] | None:
    """Return the 95% percentile interval of bootstrap replicates; None if most are undefined (NaN)."""
    found = replicates[np.isfinite(replicates)]
    if len(found) < REPLICATES / 2:
        return None
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)
