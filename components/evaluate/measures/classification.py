"""Measures of a classification: confusion matrix, curves, calibration and the most confident errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.measures.averages import ClassMeasures, CountAverages
from slipway.components.evaluate.measures.base import ONE_ERROR, SMALLEST_PROBABILITY
from slipway.components.evaluate.measures.significance import Counts, Floats

CALIBRATION_BINS = 15
TOP = 5  # k of top-k accuracy, which data sets of more classes have
FOREIGN = "(a class of another data set)"
# A class of at least so many examples is rarely predicted if the predictions are fewer than this fraction of them.
FEWEST_OF_CLASS, RARELY, MAX_RARE = 5, 0.25, 3


@dataclass(frozen=True)
class Predictions:
    """A batch of predictions on a data set of n classes.

    `labels` [batch] are the indices of the true classes. `probabilities` [batch, n] are in the data set's order of
    classes, 0 for classes that the model does not have. `predicted` [batch] is the index of the most probable class, or
    n if the data set does not have that class; `confidence` [batch] is its probability.
    """

    labels: Counts
    probabilities: Floats
    predicted: Counts
    confidence: Floats

    @property
    def correct(self) -> NDArray[np.bool_]:
        """[batch]: whether the prediction is correct."""
        return self.predicted == self.labels


def in_top(batch: Predictions) -> NDArray[np.bool_]:
    """Return whether the true class is among the `TOP` most probable ones, [batch]."""
    true = np.take_along_axis(batch.probabilities, batch.labels[:, None], axis=1)
    # Ties go to the lower index, as in argmax.
    earlier = np.arange(batch.probabilities.shape[1]) < batch.labels[:, None]
    ahead = (batch.probabilities > true) | ((batch.probabilities == true) & earlier)
    return ahead.sum(axis=1) < TOP


@dataclass(frozen=True)
class MergedBins:
    """Bins of the confidence: the index of each one's first, after that of its last; accuracy and mean confidence."""

    starts: Counts
    ends: Counts
    accuracy: Floats
    confidence: Floats


class Calibration:
    """Calibration (reliability) of the predictions, in bins of equal width in confidence."""

    def __init__(self, bins: int = CALIBRATION_BINS) -> None:
        self.examples: Counts = np.zeros(bins, np.int64)
        self.correct: Counts = np.zeros(bins, np.int64)
        self._confidence: Floats = np.zeros(bins)

    def update(self, batch: Predictions) -> None:
        bins = len(self.examples)
        index = np.clip(np.ceil(batch.confidence * bins).astype(np.int64) - 1, 0, bins - 1)
        np.add.at(self.examples, index, 1)
        np.add.at(self.correct, index, batch.correct)
        np.add.at(self._confidence, index, batch.confidence)

    def merged(self, fewest: int) -> MergedBins:
        """Return bins of at least so many examples, each merged with the following ones until it has them."""
        starts, ends, pending = [], [], 0
        for index, count in enumerate(self.examples.tolist()):
            if count and not pending:
                starts.append(index)
            pending += count
            if pending >= fewest:
                ends.append(index + 1)
                pending = 0
        if pending:  # too few remain: they belong to the last bin, if there is one
            last = int(np.flatnonzero(self.examples)[-1]) + 1
            starts, ends = (starts[:-1], [*ends[:-1], last]) if ends else (starts, [last])
        pairs = list(zip(starts, ends, strict=True))
        counts = [self.examples[start:end].sum() for start, end in pairs]
        return MergedBins(
            np.array(starts),
            np.array(ends),
            np.array([self.correct[start:end].sum() for start, end in pairs]) / counts,
            np.array([self._confidence[start:end].sum() for start, end in pairs]) / counts,
        )

    @property
    def expected_error(self) -> float:
        """Expected calibration error (ECE): mean gap between accuracy and confidence, weighted by bin size."""
        distance = np.abs(self.correct - self._confidence)
        return float(distance.sum() / self.examples.sum())


class ClassificationMeasures(ClassMeasures[Predictions]):
    """All metrics of one model on one split of a data set with these classes.

    Keeps the label, the prediction and the loss of each example, and its scores; see `Scores`.
    """

    without_interval = MappingProxyType({"loss": ONE_ERROR, "expected_calibration_error": ONE_ERROR})

    def __init__(self, classes: Sequence[str], examples: int, worst: int = 0) -> None:
        super().__init__(classes, examples, worst)
        # True classes in rows, predicted in columns; the last column is for foreign classes.
        self.confusion: Counts = np.zeros((len(classes), len(classes) + 1), np.int64)
        self.calibration = Calibration()
        self._labels, self._predicted = np.zeros((2, examples), np.int32)
        self._in_top = 0

    def predictions(self, labels: NDArray[np.generic], values: Floats, order: Counts) -> Predictions:
        best = values.argmax(axis=1)
        if self.threshold is not None:  # a float32, as in `slipway.serving.model.Model.best`
            best = (values[:, 1] >= np.float32(self.threshold)).astype(np.int64)
        confidence = values[np.arange(len(best)), best]
        return Predictions(labels.astype(np.int64), self.ordered(values, order), order[best], confidence)

    def update(self, batch: Predictions) -> None:
        size, classes = batch.probabilities.shape
        part = slice(self.examples, self.examples + size)
        self.examples += size
        np.add.at(self.confusion, (batch.labels, batch.predicted), 1)
        self.calibration.update(batch)
        self.scored.update(batch.probabilities, batch.labels[:, None] == np.arange(classes))
        true = batch.probabilities[np.arange(size), batch.labels]
        self._losses[part] = -np.log(np.clip(true, SMALLEST_PROBABILITY, 1.0))
        self._labels[part], self._predicted[part] = batch.labels, batch.predicted
        self._in_top += int(in_top(batch).sum())

    def scores(self, batch: Predictions) -> Floats:
        """Return the confidence of the wrong predictions, [batch]."""
        return np.where(batch.correct, -np.inf, batch.confidence)

    def describe(self, batch: Predictions, index: int) -> tuple[str, str]:
        names = [*self._names, FOREIGN]
        return names[int(batch.labels[index])], names[int(batch.predicted[index])]

    def note(self, noun: str) -> str:
        counts = self.averages
        rare = np.flatnonzero((counts.support >= FEWEST_OF_CLASS) & (counts.predicted < RARELY * counts.support))
        if not len(rare):
            return ""
        fractions = [(self._names[index], counts.predicted[index], counts.support[index]) for index in rare[:MAX_RARE]]
        shown = ", ".join(
            f"{name} for {predicted / self.examples:.1%} of the test {noun}s ({support / self.examples:.1%} are {name})"
            for name, predicted, support in fractions
        )
        more = f", and {len(rare) - MAX_RARE:,} more classes as rarely" if len(rare) > MAX_RARE else ""
        advice = ""
        if rare.tolist() == [1] and len(self._names) == 2 and self.threshold is None:
            advice = " train.threshold=f1 predicts it more often; in a program, threshold of slipway.training.export."
        return f"The model predicts {shown}{more}.{advice}"

    @property
    def correct(self) -> NDArray[np.bool_]:
        return self._labels == self._predicted

    @property
    def averages(self) -> CountAverages:
        return CountAverages(np.diagonal(self.confusion), self.confusion.sum(axis=0)[:-1], self.confusion.sum(axis=1))

    def values(self) -> dict[str, float | None]:
        """Return the metrics; macro averages are over the classes that have examples.

        The loss is the mean cross-entropy in nats; probabilities are clipped to at least `SMALLEST_PROBABILITY`.
        """
        return {
            **{name: hits / self.examples for name, hits in self.hits().items()},
            "loss": float(self._losses.mean()),
            **self.averages.macro(),
            **self.scored.macro(),
            "expected_calibration_error": self.calibration.expected_error,
        }

    def influences(self) -> dict[str, Floats]:
        def summed(hits: Floats, predicted: Floats, support: Floats) -> Floats:
            foreign = np.append(predicted, 0.0)
            return self.correct * hits[self._labels] + foreign[self._predicted] + support[self._labels]

        return {
            "loss": self._losses - self._losses.mean(),
            **self.averages.influences(summed, self.examples),
            **self.scored.influences(),
        }

    def hits(self) -> dict[str, int]:
        top = {"top_5_accuracy": self._in_top} if len(self._names) > TOP else {}
        return {"accuracy": int(np.trace(self.confusion)), **top}
