"""Report sections of a multilabel classification: per-label metrics with thresholds, and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipway.components.evaluate.measures.multilabel import THRESHOLD, MultilabelMeasures
from slipway.components.evaluate.sections.classification import WEAKEST_CLASSES, curves
from slipway.components.evaluate.served_model import Measured
from slipway.core.manifest import Manifest
from slipway.core.values import JsonObject

# Up to this many labels, all are listed in the data set's order.
LABELS_IN_FULL = 50


@dataclass(frozen=True)
class LabelRow:
    """A row of the per-label table; `best` is the threshold with the highest F1 on the split, and that F1."""

    name: str
    examples: int
    precision: float
    recall: float
    f1: float
    auc: float | None
    average_precision: float | None
    best: tuple[float, float] | None
    champion_f1: float | None


def content(manifest: Manifest, model: Measured, champion: Measured | None) -> JsonObject:
    """Return what the sections show of a model, and of the champion."""
    measures = _measures(model)
    rows = _label_rows(manifest.classes, measures, _measures(champion) if champion else None)
    in_full = len(rows) <= LABELS_IN_FULL
    if not in_full:
        rows.sort(key=lambda row: (row.examples == 0, row.f1))
    return {
        "wrong": round(measures.examples * (1 - model.metrics["exact_match"])),
        "labels": rows if in_full else rows[:WEAKEST_CLASSES],
        "other_labels": [] if in_full else rows[WEAKEST_CLASSES:],
        "threshold": THRESHOLD,
        **curves(measures.scored),
    }


def _measures(model: Measured) -> MultilabelMeasures:
    assert isinstance(model.measures, MultilabelMeasures)
    return model.measures


def _label_rows(
    labels: Sequence[str], model: MultilabelMeasures, champion: MultilabelMeasures | None
) -> list[LabelRow]:
    averages, scored = model.averages, model.scored
    theirs = champion.averages.f1.tolist() if champion else [None] * len(labels)
    columns = (
        labels, averages.support.tolist(), averages.precision.tolist(), averages.recall.tolist(),
        averages.f1.tolist(), scored.areas(), scored.average_precisions(),
        map(scored.best_f1, range(len(labels))), theirs,
    )  # fmt: skip
    return [LabelRow(*row) for row in zip(*columns, strict=True)]
