"""Charts of the evaluation report, as inline SVG in the colors of its style sheet, and the history they show."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np

from slipway.components.evaluate.measures.classification import Calibration
from slipway.components.evaluate.measures.scores import Scores
from slipway.components.evaluate.measures.significance import Counts, Floats
from slipway.components.evaluate.plot import ACCENT, LINE, MUTED, SECOND, Axis, Panel, draw
from slipway.core.atomic import json_lines
from slipway.core.values import JsonObject
from slipway.trainer.tasks import TASKS

POINTS = 400  # of a learning curve
CURVE_POINTS = 300
CURVES = 20  # for at most so many classes, each has its own ROC and precision-recall curve
_SQUARE = (245, 230)  # three of these are side by side
_WIDE = (331, 198)
_SHARE = Axis(-0.02, 1.02)
_RADIUS = 1.6  # of a scatter plot's dots
_CELL, _NAME_LENGTH = 10.0, 24  # of a confusion matrix: the side of a cell, and the longest name at its axes
# Cell colors of the confusion matrix plot, readable on light and dark backgrounds.
_RIGHT, _WRONG = (58, 110, 224), (214, 84, 20)


@dataclass(frozen=True)
class History:
    """The training history in a model's metrics.jsonl: its records, in order."""

    records: list[JsonObject]

    def series(self, kind: str, metric: str) -> tuple[Floats, Floats]:
        """Return the steps and values of a metric in the records of a kind (train, validation); finite values only.

        More than `POINTS` values are reduced to as many by averaging neighbors.
        """
        found = [
            (record["step"], record[metric])
            for record in self.records
            if record["kind"] == kind and isinstance(record.get(metric), int | float) and math.isfinite(record[metric])
        ]
        groups = np.array_split(np.array(found, np.float64).reshape(-1, 2), min(POINTS, max(1, len(found))))
        means = np.array([group.mean(axis=0) for group in groups if len(group)]).reshape(-1, 2)
        return means[:, 0], means[:, 1]

    def names(self) -> list[str]:
        """Return the names of the metrics, in the order of their first record."""
        found: dict[str, None] = {}
        for record in self.records:
            if record["kind"] in ("train", "validation"):
                found |= dict.fromkeys(name for name, value in record.items() if isinstance(value, int | float))
        return [name for name in found if name not in ("step", "epoch", "time")]

    def validation(self, step: int | None) -> JsonObject:
        """Return the validation at `step`, or the last one if it is None; {} if there is none."""
        found = (record for record in reversed(self.records) if record["kind"] == "validation")
        return next((record for record in found if step in (None, record["step"])), {})


def read_history(path: Path) -> History:
    """Return the history in a file, empty if the file does not exist."""
    records = json_lines(path.read_bytes()) if path.is_file() else []
    return History([record for record in records if {"step", "kind"} <= record.keys()])


def learning_curves(history: History, description: JsonObject) -> list[str]:
    """Plot the metrics that were recorded in training, in the order of their names.

    Of a model with a builder in its model.json, only the loss and the task's metric: Slipway's trainer also records
    its speed.
    """
    names = history.names()
    if "builder" in description:
        names = ["loss", TASKS[description.get("task", "classification")].metric]
    return [curve for name in names if (curve := _learning_curve(history, name))]


def _learning_curve(history: History, metric: str) -> str | None:
    """Plot `metric` by step, for training and validation; None if nothing was recorded."""
    (steps, values), (validated, validations) = history.series("train", metric), history.series("validation", metric)
    every = np.concatenate([values, validations])
    if not len(every):
        return None
    logarithmic = metric == "loss" and every.min() > 0 and math.log10(every.max() / every.min()) > 1.7
    panel = Panel(
        Axis.around(steps, validated, margin=0.02, label="step", whole=True),
        Axis.around(every, logarithmic=logarithmic),
    )
    if len(steps):
        panel.line(steps, values, ACCENT, opacity=0.85, name="training")
    if len(validated):
        panel.line(validated, validations, SECOND, 1.6, dots=len(validated) <= 40, name="validation")
    name = metric.replace("_", " ")
    return draw([panel], _WIDE, f"{name} by step, in training and in validation", name)


def roc_curves(scored: Scores) -> str | None:
    """Plot the average ROC curve, above the classes' own if they are few; None if no class has one."""
    average, classes = scored.average_curve(), len(scored.support)
    if average is None:
        return None
    found = [curve for index in range(classes if classes <= CURVES else 0) if (curve := scored.curve(index))]
    lines = [
        (thin.false_positive_rate, thin.true_positive_rate)
        for thin in (curve.thinned(CURVE_POINTS) for curve in (average, *found))
    ]
    return _rates(lines, "false positive rate", "true positive rate", "ROC curve", diagonal=True)


def precision_recall_curves(scored: Scores) -> str | None:
    """Plot the mean of the classes' interpolated precision by recall, above their own if they are few."""
    recalls, classes = np.linspace(0, 1, CURVE_POINTS), len(scored.support)
    found = [scored.precision_at(index, recalls) for index in range(classes)]
    curves = [each for each in found if each is not None]
    if not curves:
        return None
    shown = [np.mean(curves, axis=0), *(curves if classes <= CURVES else [])]
    return _rates([(recalls, each) for each in shown], "recall", "precision", "precision-recall curve", diagonal=False)


def _rates(lines: list[tuple[Floats, Floats]], x: str, y: str, name: str, *, diagonal: bool) -> str:
    """Plot rates between 0 and 1: the average, which is the first of `lines`, above those of the classes."""
    panel = Panel(replace(_SHARE, label=x), replace(_SHARE, label=y))
    for line in lines[1:]:
        panel.line(*line, MUTED, 0.6, opacity=0.55)
    if diagonal:
        panel.line([0, 1], [0, 1], MUTED, 0.8, dashed=True)
    panel.line(*lines[0], ACCENT, 1.8)
    return draw([panel], _SQUARE, f"{name} of each class against the rest, and their average")


def calibration_diagram(calibration: Calibration, examples: str) -> str:
    """Plot a reliability diagram: accuracy by confidence, and a histogram of the `examples`' confidence below it."""
    bins = len(calibration.examples)
    centers = (np.arange(bins) + 0.5) / bins
    used = calibration.examples > 0
    upper = Panel(Axis(0, 1), Axis(0, 1.03, "accuracy"), height=4)
    upper.line([0, 1], [0, 1], MUTED, 0.8, dashed=True)
    half = 0.4 / bins
    upper.bars(centers[used] - half, centers[used] + half, calibration.accuracy[used], ACCENT, 0.4)
    upper.line(calibration.confidence[used], calibration.accuracy[used], ACCENT, dots=True)
    lower = Panel(Axis(0, 1, "confidence"), Axis(0, 1.05 * float(calibration.examples.max()), examples, ticks=0))
    lower.bars(centers - half, centers + half, calibration.examples.astype(np.float64), MUTED, 0.6)
    return draw([upper, lower], _SQUARE, "accuracy by confidence")


def predicted_actual(actual: Floats, predicted: Floats) -> str:
    """Plot predicted by actual values, with the diagonal on which both are equal."""
    panel = Panel(Axis.around(actual, predicted, label="actual"), Axis.around(actual, predicted, label="predicted"))
    ends = [float(min(actual.min(), predicted.min())), float(max(actual.max(), predicted.max()))]
    panel.line(ends, ends, MUTED, 0.8, dashed=True)
    panel.dots(actual, predicted, ACCENT, _RADIUS, _opacity(len(actual)))
    return draw([panel], _SQUARE, "predicted by actual values")


def residual_plot(predicted: Floats, residuals: Floats) -> str:
    """Plot residuals by predicted values."""
    x = Axis.around(predicted, label="predicted")
    panel = Panel(x, Axis.around(residuals, [0.0], label="residual"))
    panel.line([x.low, x.high], [0, 0], MUTED, 0.8, dashed=True)
    panel.dots(predicted, residuals, ACCENT, _RADIUS, _opacity(len(predicted)))
    return draw([panel], _SQUARE, "residuals by predicted values")


def residual_histogram(residuals: Floats) -> str:
    """Plot how many examples have which residual."""
    counts, edges = np.histogram(residuals, bins=min(40, max(8, round(math.sqrt(len(residuals))))))
    y = Axis.around(counts, zero=True, label="examples")
    panel = Panel(Axis.around(edges, [0.0], label="residual"), y)
    panel.bars(edges[:-1], edges[:-1] + 0.9 * np.diff(edges), counts, ACCENT, 0.6)
    panel.line([0, 0], [y.low, y.high], MUTED, 0.8, dashed=True)
    return draw([panel], _SQUARE, "number of examples by residual")


def _opacity(points: int) -> float:
    """Return the opacity of a scatter plot's dots, lower for more points."""
    return float(np.clip(12 / math.sqrt(points), 0.25, 0.8))


def confusion_map(counts: Counts, rows: Sequence[str], columns: Sequence[str]) -> str:
    """Draw a confusion matrix as an <svg> element with the classes at both axes; pointing at a cell shows its count.

    The diagonal is blue, the rest orange, as in `confusion_plot`.
    """
    opacities = np.sqrt(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))
    edge = _CELL * (0.5 * min(_NAME_LENGTH, max(map(len, columns))) + 1)
    width, height = edge + _CELL * len(columns), edge + _CELL * len(rows)
    lines = [f"M{edge:g},{edge + _CELL * index:g}H{width:g}" for index in range(len(rows) + 1)]
    lines += [f"M{edge + _CELL * index:g},{edge:g}V{height:g}" for index in range(len(columns) + 1)]
    parts = [f'<path d="{"".join(lines)}" stroke="{LINE}" stroke-width=".4"/>']

    def write(x: float, y: float, name: str, style: str) -> None:
        short = name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 1] + "…"
        parts.append(f'<text x="{x:g}" y="{y:g}" {style}><title>{escape(name)}</title>{escape(short)}</text>')

    for index, name in enumerate(rows):
        write(edge - 3, edge + _CELL * (index + 0.8), name, 'text-anchor="end"')
    for index, name in enumerate(columns):
        left = edge + _CELL * (index + 0.8)
        write(left, edge - 3, name, f'transform="rotate(-90 {left:g} {edge - 3:g})"')
    for row, column in np.argwhere(counts).tolist():
        title = f"{rows[row]}, predicted as {columns[column]}: {counts[row, column]:,}"
        parts.append(
            f'<rect x="{edge + _CELL * column:g}" y="{edge + _CELL * row:g}" width="{_CELL:g}" height="{_CELL:g}" '
            f'fill="{ACCENT if row == column else SECOND}" fill-opacity="{max(opacities[row, column], 0.25):.2f}">'
            f"<title>{escape(title)}</title></rect>"
        )
    return (
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" font-size="{_CELL * 0.85:g}" fill="{MUTED}" role="img" '
        f'style="max-width: {1.6 * width:.0f}px" aria-label="confusion matrix of {len(rows)} classes">'
        f"{''.join(parts)}</svg>"
    )


def confusion_plot(counts: Counts) -> str:
    """Draw a confusion matrix [n, n or more] as the data URI of a PNG with one pixel per cell.

    The diagonal is blue, the rest orange. Opacity grows with the square root of the cell's fraction of its row, so that
    rare confusions stay visible.
    """
    from PIL import Image

    opacities = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    pixels = np.zeros((*counts.shape, 4), np.uint8)
    pixels[..., :3] = _WRONG
    pixels[np.arange(len(counts)), np.arange(len(counts)), :3] = _RIGHT
    pixels[..., 3] = np.where(counts > 0, np.clip(70 + 185 * np.sqrt(opacities), 0, 255), 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels, mode="RGBA").save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
