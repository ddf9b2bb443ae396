"""How well an input alone predicts the class or the target: the AUC or R² that it reaches on examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipway.core.dates import Order
from slipway.core.manifest import Input

# Fewer examples outside the largest class, or fewer known numbers, may be separated by chance.
FEWEST_OTHERS = 10
# Texts that occur less often count as one: a key predicts anything.
FEWEST_OF_TEXT = 5
# Numbers are divided into bins of so many examples, at most so many bins; the most frequent classes are measured.
BIN_EXAMPLES, MAX_BINS, MAX_CLASSES = 20, 256, 20
FOLDS, SEED = 5, 0

Value: TypeAlias = bytes | float | int
Floats: TypeAlias = NDArray[np.float64]


def score(column: Sequence[Value], labels: Sequence[Value], about: Input, task: str) -> float:
    """Return the mean AUC of the classes, or the R², that an input reaches alone; 0 if there are too few examples."""
    numbers = None
    if about.kind == "date":
        numbers = days(column, about.order)
    elif about.kind in ("number", "integer"):
        numbers = np.array(column, np.float64)
    bins = _of_texts(column) if numbers is None else _of_numbers(numbers)
    if task == "regression":
        return _explained(numbers, bins, np.array(labels, np.float64))
    score, positive = _separated(bins, np.array(labels))
    if numbers is not None and positive.shape[1] == 2:
        for missing in (-np.inf, np.inf):
            reached = area(np.where(np.isnan(numbers), missing, numbers), positive[:, 0])
            score = max(score, reached, 1 - reached)
    return score


def association(values: Floats, labels: Floats, task: str, *, is_category: bool) -> float:
    """Return how well numbers, or the codes of categories, alone predict the labels: from 0, not at all, to 1."""
    bins = _of_texts(values.tolist()) if is_category else _of_numbers(values)
    if task == "regression":
        return max(0.0, _explained(None, bins, labels))
    return max(0.0, 2 * _separated(bins, labels)[0] - 1)


def _separated(bins: NDArray[np.int64], labels: NDArray[Any]) -> tuple[float, NDArray[np.bool_]]:
    """Return the mean AUC of the most frequent classes by the bins of an input, and which examples are of each class.

    The AUC is 0, and there is no class, if there are too few examples.
    """
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2 or len(labels) - counts.max() < FEWEST_OTHERS:
        return 0.0, np.zeros((len(labels), 0), bool)
    frequent = classes[np.argsort(-counts, kind="stable")[:MAX_CLASSES]]
    positive = labels[:, None] == frequent
    expected = _out_of_fold(bins, positive.astype(np.float64))
    return float(np.mean([area(expected[:, index], positive[:, index]) for index in range(len(frequent))])), positive


def _explained(numbers: Floats | None, bins: NDArray[np.int64], targets: Floats) -> float:
    """Return the largest R²: of the means of bins, out of fold, and of targets or their ranks by a straight line."""
    if len(targets) < FEWEST_OTHERS or not targets.std():
        return 0.0
    expected = _out_of_fold(bins, targets[:, None])[:, 0]
    score = 1 - float(((targets - expected) ** 2).sum() / ((targets - targets.mean()) ** 2).sum())
    known = ~np.isnan(numbers) if numbers is not None else np.zeros(0, bool)
    if numbers is not None and known.sum() >= max(FEWEST_OTHERS, len(targets) / 2):
        for first, second in ((numbers[known], targets[known]), (ranks(numbers[known]), ranks(targets[known]))):
            if first.std() and second.std():
                score = max(score, float(np.corrcoef(first, second)[0, 1] ** 2))
    return score


def _of_numbers(numbers: Floats) -> NDArray[np.int64]:
    """Return the bin of each number, [examples]; missing ones have one of their own."""
    known = numbers[~np.isnan(numbers)]
    count = min(MAX_BINS, max(2, len(known) // BIN_EXAMPLES))
    edges = np.unique(np.quantile(known, np.linspace(0, 1, count + 1)[1:-1])) if len(known) else known
    bins: NDArray[np.int64] = np.where(np.isnan(numbers), len(edges) + 1, np.searchsorted(edges, numbers, "right"))
    return bins


def _of_texts(texts: Sequence[Value]) -> NDArray[np.int64]:
    """Return the index of each text, [examples]; rare ones have the same."""
    numbers: dict[Value, int] = {}
    index = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    counts = np.bincount(index)
    merged: NDArray[np.int64] = np.where(counts[index] < FEWEST_OF_TEXT, len(counts), index)
    return merged


def _out_of_fold(bins: NDArray[np.int64], targets: Floats) -> Floats:
    """Return the mean of the targets [examples, n] of the same bin in the other folds, as if there were one average."""
    folds = np.random.default_rng(SEED).integers(FOLDS, size=len(bins))
    cells = bins * FOLDS + folds
    size = (int(bins.max()) + 1) * FOLDS
    other_counts = _without(np.bincount(cells, minlength=size))[cells]
    sums = [_without(np.bincount(cells, target, size))[cells] for target in targets.T]
    return (np.stack(sums, axis=1) + targets.mean(axis=0)) / (other_counts + 1)[:, None]


def _without(cells: NDArray[np.generic]) -> Floats:
    """Return the sum of the other folds of the same bin, of sums of each bin's folds."""
    by_bin = cells.reshape(-1, FOLDS).astype(np.float64)
    return (by_bin.sum(axis=1, keepdims=True) - by_bin).ravel()


def area(scores: Floats, positive: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    return float((ranks(scores)[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def ranks(values: Floats) -> Floats:
    """Return the ranks from 1 on, [examples]; equal values have their mean."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[index]
    return ranks


def days(column: Sequence[Value], order: Order) -> Floats:
    """Return the days since 1970 of dates, NaN of other texts."""
    import pyarrow

    from slipway.components.prepare_data.encoding.texts import days_of

    texts = [value.decode(errors="replace") if isinstance(value, bytes) else "" for value in column]
    return days_of(pyarrow.array(texts, pyarrow.string()), order)
