"""The report's sections by task; the template of each is sections/TASK.html."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from slipway.components.evaluate import charts
from slipway.components.evaluate.measures.averages import CountAverages
from slipway.components.evaluate.measures.classification import FOREIGN, ClassificationMeasures
from slipway.components.evaluate.measures.multilabel import THRESHOLD, MultilabelMeasures
from slipway.components.evaluate.measures.regression import RegressionMeasures
from slipway.components.evaluate.measures.scores import AREA, AVERAGE_PRECISION, Scores
from slipway.components.evaluate.measures.significance import Counts, proportion_interval
from slipway.core.formatting import difference, elided
from slipway.core.manifest import Manifest, TaskName
from slipway.core.values import JsonObject

# Up to this many classes, classes are listed in the data set's order, and the confusion matrix has all of them; of
# more, it has those that are confused most often.
CLASSES_IN_FULL = 30
CLASSES_BESIDE_LIST = 12  # up to this many, the list of confusions is beside the matrix, otherwise below it
LABELS_IN_FULL = 50  # up to this many, all labels are listed in the data set's order
WEAKEST_CLASSES = 20
CONFUSIONS, CONFUSIONS_OF_MANY = 12, 30
LONGEST_NAME = 20  # at the matrix


def classification(
    manifest: Manifest, measures: ClassificationMeasures, champion: ClassificationMeasures | None
) -> JsonObject:
    """Return the confusion matrix, the metrics of each class, calibration and curves."""
    names, counts, averages = manifest.classes, measures.confusion, measures.averages
    wrong = measures.examples - int(averages.hits.sum())
    confused = list(_confused(counts))
    chosen = list(range(len(names)))
    if len(names) > CLASSES_IN_FULL:
        chosen = sorted(list(dict.fromkeys(index for pair in confused for index in pair))[:CLASSES_IN_FULL])
    recalls = [
        proportion_interval(hits, examples) if examples else None
        for hits, examples in zip(averages.hits.tolist(), averages.support.tolist(), strict=True)
    ]
    champion_averages = champion.averages if champion else None
    most = CONFUSIONS if len(names) <= CLASSES_IN_FULL else CONFUSIONS_OF_MANY
    return {
        "wrong": wrong,
        "matrix": _matrix(names, counts, chosen) if chosen else None,
        "beside": 0 < len(chosen) <= CLASSES_BESIDE_LIST and wrong,
        "confusions": [
            {
                "true": names[true],
                "predicted": [*names, FOREIGN][predicted],
                "count": int(counts[true, predicted]),
                "fraction": counts[true, predicted] / counts[true].sum(),
            }
            for true, predicted in confused[:most]
        ],
        **_each(names, averages, measures.scored, champion_averages, CLASSES_IN_FULL, recall_interval=recalls),
        "fewest": charts.FEWEST_IN_BIN,
        "calibration": charts.calibration_diagram(measures.calibration, f"{manifest.noun}s"),
        **_curves(measures.scored, names),
    }


def multilabel(manifest: Manifest, measures: MultilabelMeasures, champion: MultilabelMeasures | None) -> JsonObject:
    """Return the metrics of each label, with the threshold that has the highest F1, and curves."""
    averages, scored = measures.averages, measures.scored
    best = [scored.best_f1(index) for index in range(len(manifest.classes))]
    champion_averages = champion.averages if champion else None
    return {
        "wrong": measures.examples - measures.hits()["exact_match"],
        **_each(manifest.classes, averages, scored, champion_averages, LABELS_IN_FULL, best=best),
        "threshold": THRESHOLD,
        **_curves(scored, manifest.classes),
    }


def regression(manifest: Manifest, measures: RegressionMeasures, _champion: RegressionMeasures | None) -> JsonObject:
    """Return plots of predicted against actual values, and of residuals."""
    sample, name = measures.sample, manifest.target_name
    return {
        "target": name,
        "sampled": len(sample.actual),
        "predicted_actual": charts.predicted_actual(sample.actual, sample.predicted, name),
        "residual_plot": charts.residual_plot(sample.predicted, sample.residuals, name),
        "residual_histogram": charts.residual_histogram(sample.residuals),
        "median_error": measures.median_error,
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
    if champion:
        pairs = zip(averages.f1.tolist(), champion.f1.tolist(), strict=True)
        columns["gain"] = [difference(f1, champion_f1, 3) for f1, champion_f1 in pairs]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if len(rows) <= in_full:
        return {"rows": rows, "other_rows": []}
    rows.sort(key=lambda row: (row["examples"] == 0, row["f1"]))
    return {"rows": rows[:WEAKEST_CLASSES], "other_rows": rows[WEAKEST_CLASSES:]}


def _curves(scored: Scores, names: Sequence[str]) -> JsonObject:
    """Return the ROC and precision-recall curves, and what the footer says of them."""
    sampled, examples = scored.sampled
    return {
        "roc": charts.roc_curves(scored, names),
        "precision_recall": charts.precision_recall_curves(scored, names),
        "thin": len(scored.support) <= charts.CURVES,
        "sampled_scores": sampled if sampled < examples else 0,
    }


def _confused(counts: Counts) -> Iterator[tuple[int, int]]:
    """Yield the pairs of true and predicted class that are confused, the most frequent first."""
    true, predicted = np.nonzero(counts)
    wrong = true != predicted
    true, predicted = true[wrong], predicted[wrong]
    order = np.argsort(-counts[true, predicted], kind="stable")
    yield from zip(true[order].tolist(), predicted[order].tolist(), strict=True)


def _matrix(names: Sequence[str], counts: Counts, chosen: Sequence[int]) -> JsonObject:
    """Return the confusion matrix of the chosen classes.

    A row has the short and the full name of its class, and cells: count, strength of the color in percent, in words,
    and kind. A last column has the classes that the data set does not have, if any was predicted.
    """
    rows = [index for index in chosen if index < len(names)]
    columns = [*rows, len(names)] if counts[:, -1].any() else rows
    full = [*names, "other"]
    short = dict(zip(columns, elided([full[index] for index in columns], LONGEST_NAME), strict=True))
    fractions = counts[rows] / np.maximum(counts[rows].sum(axis=1, keepdims=True), 1)
    strengths = np.clip(np.sqrt(fractions) * 100, 18, 100).round().astype(int)

    def cells(position: int, row: int) -> Iterator[tuple[int, int, str, str]]:
        for column in columns:
            count = int(counts[row, column])
            title = f"{full[row]}, predicted as {full[column]}: {count:,}"
            yield count, int(strengths[position, column]), title, "right" if row == column else ""

    return {
        "longest": max(map(len, short.values())),
        "columns": [(short[index], full[index]) for index in columns],
        "rows": [(short[row], full[row], list(cells(position, row))) for position, row in enumerate(rows)],
    }
