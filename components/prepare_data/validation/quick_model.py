"""A quick model of a sample of a data set: how well it predicts examples like or unlike those it was fitted to.

It is a weighted mean of the nearest neighbors, which are near in the inputs that alone predict something. It finds what
a sample's neighbors have in common, as a flexible network does, in a tenth of a second; importing scikit-learn's trees
takes ten times as long. It is fitted to the same number of examples whichever way they are divided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipway.components.prepare_data.validation.input_scores import area, association, ranks

NEIGHBORS, FOLDS, PERIODS, SEED = 8, 5, 6, 0
# The weight of an input that predicts nothing alone; one that alone predicts all has 1 more.
BASE_WEIGHT = 0.1
# The distances at which neighbors count half, in parts of the mean distance of an example's neighbors.
SOFTENING = 0.05
# Resamples of groups of examples, from which the interval of a difference is computed.
RESAMPLES = 60
# The quantile of the normal distribution for an interval of 95 %.
INTERVAL = 1.96
# Whole numbers that occur so often on average are compared as categories, too, such as identifiers.
MIN_REPEATS = 1.3

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
# The rows to fit a model to, and those to predict.
Fold: TypeAlias = tuple[Integers, Integers]


@dataclass(frozen=True)
class Column:
    """An input: numbers [examples], NaN where missing; codes of categories [examples]; or a block [examples, n]."""

    kind: Literal["number", "category", "block"]
    values: Floats

    def weight(self, labels: Floats, task: str) -> float:
        """Return how much the input counts, by how well it alone predicts the labels."""
        if self.kind == "block":
            return 1 / self.values.shape[1]
        return BASE_WEIGHT + association(self.values, labels, task, is_category=self.kind == "category") ** 2

    def points(self) -> Floats:
        """Return what is near in near examples, [examples, n]: standardized values, or ranks of numbers."""
        if self.kind == "block":
            return (self.values - self.values.mean()) / (self.values.std() + 1e-9)
        result = np.zeros((len(self.values), 0 if self.kind == "category" else 2))
        if self.kind == "number":
            known = ~np.isnan(self.values)
            result[known, 0] = (ranks(self.values[known]) / max(known.sum(), 1) - 0.5) * np.sqrt(12)
            result[~known, 1] = 2
        return result

    @property
    def is_compared(self) -> bool:
        """Whether examples with the same value are nearer: of a category, or of whole numbers that are repeated."""
        if self.kind != "number":
            return self.kind == "category"
        known = self.values[~np.isnan(self.values)]
        different = np.unique(known)
        is_whole = len(different) > 2 and (different == np.round(different)).all()
        return bool(is_whole and len(known) >= MIN_REPEATS * len(different))


@dataclass(frozen=True)
class Sample:
    """A sample of a data set.

    Attributes:
        inputs: What the network would see.
        labels: The index of each example's class, or its target.
        task: What is learned.
    """

    inputs: Sequence[Column]
    labels: Floats
    task: Literal["classification", "regression"]

    def take(self, rows: Integers) -> Sample:
        """Return the sample of these rows."""
        columns = [replace(column, values=column.values[rows]) for column in self.inputs]
        return Sample(columns, self.labels[rows], self.task)

    def distances(self, but: int | None = None) -> NDArray[np.float32]:
        """Return the squared distances of all examples by their inputs, without the one at the index `but`."""
        used = [column for index, column in enumerate(self.inputs) if index != but]
        weights = [column.weight(self.labels, self.task) for column in used]
        points = [column.points() * math.sqrt(weight) for column, weight in zip(used, weights, strict=True)]
        result = squared_distances(np.hstack(points))
        for column, weight in zip(used, weights, strict=True):
            if column.is_compared:
                result[column.values[:, None] != column.values[None]] += weight
        return result


def squared_distances(points: Floats) -> NDArray[np.float32]:
    """Return the squared distance of each pair of points, [points, n]."""
    single = points.astype(np.float32)
    squares = (single**2).sum(axis=1)
    result: NDArray[np.float32] = single @ single.T
    result *= -2
    result += squares[:, None]
    result += squares[None]
    np.maximum(result, 0, out=result)
    return result


def predict(distances: NDArray[np.float32], labels: Floats, task: str, folds: Iterable[Fold]) -> Floats:
    """Return predictions, [examples, outputs], from each fold's other rows; NaN for rows in no fold.

    Outputs are the probabilities of classes, or one, the target.
    """
    is_regression = task == "regression"
    targets = labels[:, None] if is_regression else labels[:, None] == np.arange(int(labels.max()) + 1)
    result = np.full((len(labels), targets.shape[1]), np.nan)
    for fitted, predicted in folds:
        near = distances[np.ix_(predicted, fitted)]
        count = min(NEIGHBORS, len(fitted))
        index = np.argpartition(near, count - 1, axis=1)[:, :count]
        near = np.take_along_axis(near, index, axis=1)
        weights = 1 / (near + SOFTENING * near.mean(axis=1, keepdims=True) + 1e-9)
        weights /= weights.sum(axis=1, keepdims=True)
        result[predicted] = (weights[:, :, None] * targets[fitted][index]).sum(axis=1)
    return result


def random_folds(examples: int) -> list[Fold]:
    """Divide examples at random."""
    return _folds(np.random.default_rng(SEED).permutation(examples) % FOLDS)


def group_folds(groups: Integers) -> list[Fold]:
    """Divide examples at random so that those of a group are in one fold, the largest groups first."""
    counts = np.bincount(groups)
    order = np.random.default_rng(SEED).permutation(len(counts))
    order = order[np.argsort(-counts[order], kind="stable")]
    sizes, of_group = np.zeros(FOLDS), np.zeros(len(counts), np.int64)
    for group in order.tolist():
        of_group[group] = int(np.argmin(sizes))
        sizes[of_group[group]] += counts[group]
    return _folds(of_group[groups])


def _folds(numbers: Integers) -> list[Fold]:
    rows = np.arange(len(numbers))
    return [(rows[numbers != fold], rows[numbers == fold]) for fold in np.unique(numbers).tolist()]


def forward_folds(times: Floats) -> tuple[list[Fold], list[Fold]]:
    """Divide examples in time: each period but the first two is predicted from those before, or from any others.

    Returns:
        Folds of the past; and folds of the same sizes of examples at random, where rows of one period are predicted in
        two halves, so that a model may have seen the other half.
    """
    random = np.random.default_rng(SEED)
    order = np.argsort(times, kind="stable")
    edges = np.searchsorted(times[order], np.quantile(times, np.linspace(0, 1, PERIODS + 1)[1:-1]), "left")
    periods = [period for period in np.split(order, np.unique(edges)) if len(period)]
    past, anywhere = [], []
    for number in range(min(2, len(periods) - 1), len(periods)):
        before = np.concatenate(periods[:number])
        past.append((before, periods[number]))
        for half in np.array_split(random.permutation(periods[number]), 2):
            others = np.setdiff1d(order, half)
            anywhere.append((random.choice(others, min(len(before), len(others)), replace=False), half))
    return past, anywhere


@dataclass(frozen=True)
class Difference:
    """Two scores, AUC or R², of the same examples, and the 95 % interval of `first` - `second`."""

    first: float
    second: float
    low: float
    high: float
    examples: int

    @property
    def size(self) -> float:
        """How much higher the first score is."""
        return self.first - self.second


def difference(labels: Floats, task: str, first: Floats, second: Floats, clusters: Integers) -> Difference:
    """Compare two predictions of the examples that both have; `clusters` of examples are resampled as a whole."""
    rows = np.flatnonzero(~np.isnan(first[:, 0]) & ~np.isnan(second[:, 0]))
    labels, first, second = labels[rows], first[rows], second[rows]
    scores = score(labels, first, task), score(labels, second, task)
    random = np.random.default_rng(SEED)
    _, cluster = np.unique(clusters[rows], return_inverse=True)
    members = np.split(np.argsort(cluster, kind="stable"), np.cumsum(np.bincount(cluster))[:-1])
    sizes = []
    for _ in range(RESAMPLES):
        chosen = np.concatenate([members[number] for number in random.integers(len(members), size=len(members))])
        of_chosen = [score(labels[chosen], predictions[chosen], task) for predictions in (first, second)]
        sizes.append(of_chosen[0] - of_chosen[1])
    size, margin = scores[0] - scores[1], INTERVAL * float(np.std(sizes, ddof=1))
    return Difference(*scores, size - margin, size + margin, len(rows))


def score(labels: Floats, predictions: Floats, task: str) -> float:
    """Return the R², or the mean over classes of the AUC; of two classes, that of one."""
    if task == "regression":
        squares = float(((labels - labels.mean()) ** 2).sum())
        return 1 - float(((labels - predictions[:, 0]) ** 2).sum()) / squares if squares else 0.0
    classes = np.unique(labels).astype(int)
    if len(classes) < 2:
        return 0.5
    measured = classes[:1] if len(classes) == 2 else classes
    return float(np.mean([area(predictions[:, label], labels == label) for label in measured]))
