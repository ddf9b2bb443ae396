"""Report sections of a classification: confusion matrix, per-class metrics, calibration and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipway.components.evaluate import charts
from slipway.components.evaluate.measures.classification import (
    CALIBRATION_BINS,
    FOREIGN,
    ClassificationMeasures,
    ConfusionMatrix,
)  # fmt: skip
from slipway.components.evaluate.measures.scores import Scores
from slipway.components.evaluate.measures.significance import Counts, proportion_interval
from slipway.components.evaluate.served_model import Measured
from slipway.core.manifest import Manifest
from slipway.core.values import JsonObject

# Up to this many classes, the confusion matrix is a table and classes are listed in the data set's order.
CLASSES_IN_FULL = 30
CLASSES_WITH_NAMES = 100  # up to this many, the matrix has the classes' names at its axes
CLASSES_BESIDE_LIST = 12  # up to this many, the list of confusions is beside the matrix, otherwise below it
WEAKEST_CLASSES = 20
CONFUSIONS = 12


@dataclass(frozen=True)
class ClassRow:
    """A row of the per-class table; `champion_f1` is None without a champion."""

    name: str
    examples: int
    precision: float
    recall: float
    recall_interval: tuple[float, float] | None
    f1: float
    auc: float | None
    average_precision: float | None
    champion_f1: float | None


@dataclass(frozen=True)
class Confusion:
    """An off-diagonal cell of the confusion matrix, and its share of its row."""

    true: str
    predicted: str
    count: int
    share: float


def content(manifest: Manifest, model: Measured, champion: Measured | None) -> JsonObject:
    """Return what the sections show of a model, and of the champion."""
    measures, classes = _measures(model), len(manifest.classes)
    confusion, scored = measures.confusion, measures.scored
    rows = _class_rows(manifest.classes, measures, _measures(champion) if champion else None)
    in_full = classes <= CLASSES_IN_FULL
    if not in_full:
        rows.sort(key=lambda row: (row.examples == 0, row.f1))
    wrong = confusion.examples - confusion.correct
    interval = proportion_interval(confusion.correct, confusion.examples)
    return {
        "wrong": wrong,
        "interval": interval,
        "cells": _cells(confusion) if in_full else None,
        "foreign": bool(confusion.counts[:, -1].any()),
        "confusion_map": None if in_full or classes > CLASSES_WITH_NAMES else _map(confusion, manifest.classes),
        "confusion_plot": charts.confusion_plot(confusion.counts[:, :-1]) if classes > CLASSES_WITH_NAMES else None,
        "confusions": _confusions(manifest.classes, confusion),
        "classes": rows if in_full else rows[:WEAKEST_CLASSES],
        "other_classes": [] if in_full else rows[WEAKEST_CLASSES:],
        "long_names": max(map(len, manifest.classes)) > 3,
        "layout": _layout(classes, perfect=not wrong),
        "calibration": charts.calibration_diagram(measures.calibration, f"{manifest.noun}s"),
        "bins": CALIBRATION_BINS,
        **curves(scored),
    }


def curves(scored: Scores) -> JsonObject:
    """Return the ROC and precision-recall curves, and what the footer says of them."""
    sampled, examples = scored.sampled
    return {
        "roc": charts.roc_curves(scored),
        "precision_recall": charts.precision_recall_curves(scored),
        "thin": len(scored.support) <= charts.CURVES,
        "sampled_scores": sampled if sampled < examples else 0,
    }


def _measures(model: Measured) -> ClassificationMeasures:
    assert isinstance(model.measures, ClassificationMeasures)
    return model.measures


def _layout(classes: int, *, perfect: bool) -> str:
    """Return the CSS class that arranges the confusion matrix and the list of confusions."""
    if classes > CLASSES_IN_FULL:
        return "full" if classes <= CLASSES_WITH_NAMES else "even"
    if classes > CLASSES_BESIDE_LIST:
        return "stacked"
    return "full" if perfect else ""


def _class_rows(
    classes: Sequence[str], model: ClassificationMeasures, champion: ClassificationMeasures | None
) -> list[ClassRow]:
    averages, scored = model.confusion.averages, model.scored
    right, support = averages.hits.tolist(), averages.support.tolist()
    theirs = champion.confusion.averages.f1.tolist() if champion else [None] * len(classes)
    intervals = [
        proportion_interval(hits, examples) if examples else None for hits, examples in zip(right, support, strict=True)
    ]
    columns = (
        classes, support, averages.precision.tolist(), averages.recall.tolist(), intervals,
        averages.f1.tolist(), scored.areas(), scored.average_precisions(), theirs,
    )  # fmt: skip
    return [ClassRow(*row) for row in zip(*columns, strict=True)]


def _cells(confusion: ConfusionMatrix) -> list[list[tuple[int, int]]]:
    """Return the confusion matrix as (count, colour strength in percent) pairs."""
    counts = _shown(confusion)
    shares = counts / np.maximum(confusion.averages.support[:, None], 1)
    strengths = np.where(counts > 0, np.clip(np.sqrt(shares) * 100, 18, 100), 0).round().astype(int)
    return [
        list(zip(row.tolist(), strength.tolist(), strict=True)) for row, strength in zip(counts, strengths, strict=True)
    ]


def _map(confusion: ConfusionMatrix, classes: Sequence[str]) -> str:
    counts = _shown(confusion)
    return charts.confusion_map(counts, classes, [*classes, "other"][: counts.shape[1]])


def _shown(confusion: ConfusionMatrix) -> Counts:
    """Return the counts, [n, n], or [n, n + 1] if some examples were predicted as a class that the data set lacks."""
    return confusion.counts if confusion.counts[:, -1].any() else confusion.counts[:, :-1]


def _confusions(classes: Sequence[str], confusion: ConfusionMatrix) -> list[Confusion]:
    """Return the most frequent confusions in descending order."""
    counts = confusion.counts.copy()
    np.fill_diagonal(counts, 0)
    names = [*classes, FOREIGN]
    order = np.argsort(-counts, axis=None, kind="stable")[:CONFUSIONS]
    found = [(int(row), int(column)) for row, column in zip(*np.unravel_index(order, counts.shape), strict=True)]
    return [
        Confusion(
            names[row], names[column], int(counts[row, column]), counts[row, column] / confusion.averages.support[row]
        )
        for row, column in found
        if counts[row, column]
    ]
