"""The report's sections by task; the template of each is sections/TASK.html."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from slipway.components.evaluate import charts
from slipway.components.evaluate.measures.averages import CountAverages
from slipway.components.evaluate.measures.classification import CALIBRATION_BINS, FOREIGN, ClassificationMeasures
from slipway.components.evaluate.measures.multilabel import THRESHOLD, MultilabelMeasures
from slipway.components.evaluate.measures.regression import RegressionMeasures
from slipway.components.evaluate.measures.scores import AREA, AVERAGE_PRECISION, Scores
from slipway.components.evaluate.measures.significance import Counts, proportion_interval
from slipway.core.manifest import Manifest, TaskName
from slipway.core.values import JsonObject

# Up to this many classes, the confusion matrix is a table and classes are listed in the data set's order.
CLASSES_IN_FULL = 30
CLASSES_WITH_NAMES = 100  # up to this many, the matrix has the classes' names at its axes
CLASSES_BESIDE_LIST = 12  # up to this many, the list of confusions is beside the matrix, otherwise below it
LABELS_IN_FULL = 50  # up to this many, all labels are listed in the data set's order
WEAKEST_CLASSES = 20
CONFUSIONS = 12


def classification(
    manifest: Manifest, measures: ClassificationMeasures, champion: ClassificationMeasures | None
) -> JsonObject:
    """Return the confusion matrix, the metrics of each class, calibration and curves."""
    names, counts, averages = manifest.classes, measures.confusion, measures.averages
    classes, wrong = len(names), measures.examples - int(averages.hits.sum())
    in_full, with_names = classes <= CLASSES_IN_FULL, classes <= CLASSES_WITH_NAMES
    # Without the column of foreign classes if no example was predicted as one.
    shown = counts if counts[:, -1].any() else counts[:, :-1]
    layout = "full" if with_names else "even"
    if in_full:
        layout = "stacked" if classes > CLASSES_BESIDE_LIST else "" if wrong else "full"
    recalls = [
        proportion_interval(hits, examples) if examples else None
        for hits, examples in zip(averages.hits.tolist(), averages.support.tolist(), strict=True)
    ]
    theirs = champion.averages if champion else None
    return {
        "wrong": wrong,
        "interval": proportion_interval(measures.examples - wrong, measures.examples),
        "cells": _cells(shown, averages.support) if in_full else None,
        "foreign": bool(counts[:, -1].any()),
        "confusion_map": charts.confusion_map(shown, names, [*names, "other"][: shown.shape[1]])
        if with_names and not in_full
        else None,
        "confusion_plot": None if with_names else charts.confusion_plot(counts[:, :-1]),
        "confusions": list(_confusions(names, counts)),
        **_each(names, averages, measures.scored, theirs, CLASSES_IN_FULL, recall_interval=recalls),
        "long_names": max(map(len, names)) > 3,
        "layout": layout,
        "calibration": charts.calibration_diagram(measures.calibration, f"{manifest.noun}s"),
        "bins": CALIBRATION_BINS,
        **_curves(measures.scored),
    }


def multilabel(manifest: Manifest, measures: MultilabelMeasures, champion: MultilabelMeasures | None) -> JsonObject:
    """Return the metrics of each label, with the threshold that has the highest F1, and curves."""
    averages, scored = measures.averages, measures.scored
    best = [scored.best_f1(index) for index in range(len(manifest.classes))]
    theirs = champion.averages if champion else None
    return {
        "wrong": measures.examples - measures.hits()["exact_match"],
        **_each(manifest.classes, averages, scored, theirs, LABELS_IN_FULL, best=best),
        "threshold": THRESHOLD,
        **_curves(scored),
    }


def regression(_manifest: Manifest, measures: RegressionMeasures, _champion: RegressionMeasures | None) -> JsonObject:
    """Return plots of predicted against actual values, and of residuals."""
    sample = measures.sample
    return {
        "sampled": len(sample.actual),
        "predicted_actual": charts.predicted_actual(sample.actual, sample.predicted),
        "residual_plot": charts.residual_plot(sample.predicted, sample.residuals),
        "residual_histogram": charts.residual_histogram(sample.residuals),
        "mean_error": measures.metrics()["mean_error"],
    }


# From the data set, the model's measures and the champion's to what the task's template shows.
SECTIONS: Mapping[TaskName, Callable[[Manifest, Any, Any], JsonObject]] = {
    "classification": classification,
    "multilabel": multilabel,
    "regression": regression,
}


def _each(
    names: Sequence[str],
    averages: CountAverages,
    scored: Scores,
    champion: CountAverages | None,
    in_full: int,
    **more: Sequence[object],
) -> JsonObject:
    """Return a row for each class or label; of more than `in_full`, those with the lowest F1 apart from the others."""
    columns = {
        "name": names,
        "examples": averages.support.tolist(),
        "precision": averages.precision.tolist(),
        "recall": averages.recall.tolist(),
        "f1": averages.f1.tolist(),
        "auc": scored.each[AREA].tolist(),
        "average_precision": scored.each[AVERAGE_PRECISION].tolist(),
        "champion_f1": champion.f1.tolist() if champion else [None] * len(names),
        **more,
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if len(rows) <= in_full:
        return {"rows": rows, "other_rows": []}
    rows.sort(key=lambda row: (row["examples"] == 0, row["f1"]))
    return {"rows": rows[:WEAKEST_CLASSES], "other_rows": rows[WEAKEST_CLASSES:]}


def _curves(scored: Scores) -> JsonObject:
    """Return the ROC and precision-recall curves, and what the footer says of them."""
    sampled, examples = scored.sampled
    return {
        "roc": charts.roc_curves(scored),
        "precision_recall": charts.precision_recall_curves(scored),
        "thin": len(scored.support) <= charts.CURVES,
        "sampled_scores": sampled if sampled < examples else 0,
    }


def _cells(counts: Counts, support: Counts) -> list[list[tuple[int, int]]]:
    """Return the confusion matrix as (count, color strength in percent) pairs."""
    fractions = counts / np.maximum(support[:, None], 1)
    strengths = np.where(counts > 0, np.clip(np.sqrt(fractions) * 100, 18, 100), 0).round().astype(int)
    return [list(zip(*row, strict=True)) for row in zip(counts.tolist(), strengths.tolist(), strict=True)]


def _confusions(classes: Sequence[str], counts: Counts) -> Iterator[JsonObject]:
    """Yield the most frequent confusions in descending order, with their fractions of the true class."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    names = [*classes, FOREIGN]
    for cell in np.argsort(-wrong, axis=None, kind="stable")[:CONFUSIONS]:
        true, predicted = np.unravel_index(cell, wrong.shape)
        if count := int(wrong[true, predicted]):
            fraction = count / counts[true].sum()
            yield {"true": names[true], "predicted": names[predicted], "count": count, "fraction": fraction}
