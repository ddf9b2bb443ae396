"""Confidence intervals and paired significance tests for the metrics of an evaluation.

They are computed from each example's influence on a metric: how much the metric changes with the example's weight,
times the number of examples (the delta method, or infinitesimal jackknife; of an AUC, DeLong's method). Influences
have the mean 0; the mean of their squares, by the number of examples, is the metric's variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaincinv, ndtr, ndtri, stdtr, stdtrit

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

SEED = 0
# Errors that the variance of a proportion weighs, beside those observed; see `fraction_interval`.
PRIOR = 4.0
# Examples that draw the metric of a class to the mean of the classes.
CLASS_PRIOR = 8.0
# Influences below this fraction of the metric are rounding.
ROUNDING = 1e-9
# The interval of an error allows for examples that the sample lacks, with so many times its largest error: there are up
# to 3 if a sample lacks all of them with a probability of 5% (the rule of three).
UNSEEN, LARGER_ERROR = 3.0, 4.0


class NoInterval(Exception):
    """A metric has no confidence interval, or no test, that can be relied on; the text is the reason."""


def proportion_interval(successes: float, examples: float) -> tuple[float, float]:
    """Return the 95% confidence interval (Clopper-Pearson, exact) of a proportion; both may be fractions."""
    failures = examples - successes
    low = betaincinv(successes, failures + 1, 0.025) if successes > 0 else 0.0
    high = betaincinv(successes + 1, failures, 0.975) if failures > 0 else 1.0
    return float(low), float(high)


def mcnemar(first: int, second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test.

    Args:
        first: Number of examples that only the first model predicts correctly.
        second: Number of examples that only the second model predicts correctly.
    """
    # Of equal probabilities, both tails are alike; scipy.stats, whose binomtest says the same, takes 0.7 s to import.
    return min(1.0, 2 * float(bdtr(min(first, second), first + second, 0.5))) if first + second else 1.0


def standard_error(influences: Floats) -> tuple[float, float]:
    """Return the standard error of a metric and its degrees of freedom, from the examples' influences.

    The degrees of freedom are the effective number of examples that contribute to the variance: less than their
    number if the influences have heavy tails, or most are 0.
    """
    squares = influences**2
    total, examples = float(squares.sum()), len(influences)
    if examples < 2 or not total:
        return 0.0, 0.0
    return math.sqrt(total / (examples - 1) / examples), total**2 / float((squares**2).sum())


def quantile_95(examples: float) -> float:
    """Return the 97.5% quantile of Student's t distribution; of `examples` that contribute, one is for the mean."""
    return float(stdtrit(max(2.0, examples - 1), 0.975))


def number_interval(value: float, influences: Floats, power: int) -> tuple[float, float]:
    """Return the 95% confidence interval of a mean of errors raised to a power.

    Raises:
        NoInterval: The error of all examples is the same.
    """
    half, below, above = _half_widths(value, influences, power)
    return value - math.hypot(half, below), value + math.hypot(half, above)


def positive_interval(value: float, influences: Floats, power: int, *, is_ratio: bool = False) -> tuple[float, float]:
    """Return the 95% confidence interval of a mean of errors that are 0 or more, from that of its logarithm.

    Unseen, larger errors raise a mean; one that is divided by another mean may fall, too.

    Raises:
        NoInterval: The error of all examples is the same, or few of them contribute to the mean.
    """
    half, below, above = _half_widths(value, influences, power)
    low, high = (math.hypot(half / value, math.log1p(bound / value)) for bound in (below if is_ratio else 0.0, above))
    if high >= 700:  # of a float
        raise NoInterval("too few examples contribute to it")
    return value * math.exp(-low), value * math.exp(high)


def _half_widths(value: float, influences: Floats, power: int) -> tuple[float, float, float]:
    """Return half the width of Student's interval, and how much unseen, larger errors would change a metric.

    A sample rarely has the largest errors of a population with heavy tails.
    """
    error, freedom = standard_error(influences)
    if error <= ROUNDING * abs(value):
        raise NoInterval("all examples have the same error")
    larger = UNSEEN * LARGER_ERROR**power / len(influences)
    return quantile_95(freedom) * error, -larger * float(influences.min()), larger * float(influences.max())


def check_bias(counts: Floats) -> None:
    """Check that ratios with these denominators, [classes], have a mean whose bias is small beside its standard error.

    The bias of a mean of ratios falls with the denominator of each class, and its standard error with the root of those
    of all classes, too: they have to be as large as the number of classes, in their harmonic mean.

    Raises:
        NoInterval: They are not.
    """
    if float((1 / counts).sum()) > 1 + ROUNDING:
        raise NoInterval("there are too few examples of each class")


def fraction_interval(
    value: float, influences: Floats, class_values: Floats, counts: Floats, bias: float
) -> tuple[float, float]:
    """Return the 95% confidence interval of a metric from 0 to 1, such as the mean of a metric of each class.

    It is that of a proportion with the effective number of examples (Korn and Graubard): that of independent examples
    with which a proportion would have the metric's variance. Where few examples are wrong, the observed variance says
    little, and is 0 without any error: a proportion's variance is added, with the weight of `PRIOR` errors.

    Args:
        value: The metric.
        influences: The examples' influences on it.
        class_values: The metric of each class, [classes].
        counts: The denominator of each class's metric, such as its examples, [classes].
        bias: How much higher the metric is in a sample than in its population; the interval contains both.
    """
    error, errors = standard_error(influences)
    classes, spread = len(class_values), max(value * (1 - value), 1e-12)
    # Of a class that has few examples, perhaps all correct, the metric is drawn to the mean of the classes.
    smooth = (counts * class_values + CLASS_PRIOR * value) / (counts + CLASS_PRIOR)
    lacking = smooth * (1 - smooth) * counts / np.maximum(counts - 1, 1) - class_values * (1 - class_values)
    observed = (error**2 + float((np.maximum(lacking, 0) / counts).sum()) / classes**2) / spread
    expected = float((1 / counts).sum()) / classes**2
    freedom = errors + PRIOR
    variance = (errors * observed + PRIOR * max(expected, 1 / len(influences))) / freedom
    examples = (quantile_95(np.inf) / quantile_95(freedom)) ** 2 / variance
    low, high = max(0.0, value - max(0.0, bias)), min(1.0, value - min(0.0, bias))
    return proportion_interval(low * examples, examples)[0], proportion_interval(high * examples, examples)[1]


def paired_p_value(gain: float, influences: Floats) -> float:
    """Return the two-sided p-value of a difference `gain` of a metric, from the differences of the influences."""
    error, freedom = standard_error(influences)
    if not error:
        return 1.0 if not gain else 0.0
    return float(2 * stdtr(max(1.0, freedom - 1), -abs(gain) / error))


def another_p_value(values: Sequence[float], other: float) -> float:
    """Return the two-sided p-value of the t-test that `other` is drawn from the distribution of at least two values."""
    gain = float(np.mean(values)) - other
    if not (error := float(np.std(values, ddof=1)) * math.sqrt(1 / len(values) + 1)):
        return 1.0 if not gain else 0.0
    return float(2 * stdtr(len(values) - 1, -abs(gain) / error))


def shortfall_p_value(gain: float, influences: Floats, margin: float) -> float:
    """Return the one-sided p-value of a difference `gain` that is smaller than `margin`; see `paired_p_value`."""
    error, freedom = standard_error(influences)
    if not error:
        return 0.0 if gain < margin - ROUNDING else 1.0
    return float(stdtr(max(1.0, freedom - 1), (gain - margin) / error))


def mcnemar_shortfall(first: int, second: int, examples: int, margin: float) -> tuple[float, float]:
    """Return the one-sided p-value of a difference of two accuracies that is smaller than `margin`, and its error.

    It is Tango's score test (Statistics in Medicine, 1998), for the margin 0 McNemar's exact test; the error is that of
    a difference equal to the margin, and that of one example at least.

    Args:
        first: Number of examples that only the first model predicts correctly.
        second: Number of examples that only the second model predicts correctly.
        examples: Number of all examples.
        margin: The difference, -1 to 1.
    """
    linear = (2 * examples - first + second) * margin - first - second
    root = math.sqrt(max(0.0, linear**2 + 8 * examples * second * margin * (1 - margin)))
    expected = max(0.0, -margin, (root - linear) / (4 * examples))  # probability that only the second one is right
    error = math.sqrt(max(0.0, 2 * expected + margin * (1 - margin)) / examples)
    gain, least = (first - second) / examples, 1 / examples
    if not margin:
        return float(bdtr(first, first + second, 0.5)) if first + second else 1.0, max(least, error)
    if not error:
        return 0.0 if gain < margin - ROUNDING else 1.0, least
    return float(ndtr((gain - margin) / error)), max(least, error)


def holm(p_values: Sequence[float], significance: float) -> list[bool]:
    """Return which of several tests reject, so that any true hypothesis of all is rejected as rarely as by one test."""
    order = np.argsort(p_values)
    limits = significance / (len(p_values) - np.arange(len(p_values)))
    passing = np.logical_and.accumulate(np.asarray(p_values)[order] <= limits)
    return [bool(is_rejected) for is_rejected in passing[np.argsort(order)]]


def detectable(error: float, significance: float) -> float:
    """Return the shortfall that a one-sided test of a difference with this error sees in 8 of 10 samples."""
    return float(ndtri(1 - significance) + ndtri(0.8)) * error
