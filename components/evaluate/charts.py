"""Charts of the evaluation report, as inline SVG in the colors of its style sheet, and the history they show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from slipway.components.evaluate.measures.classification import Calibration
from slipway.components.evaluate.measures.scores import AREA, AVERAGE_PRECISION, Scores
from slipway.components.evaluate.measures.significance import Floats
from slipway.components.evaluate.plot import ACCENT, MUTED, SECOND, Axis, Panel, draw
from slipway.core.atomic import json_lines
from slipway.core.formatting import elided
from slipway.core.values import JsonObject
from slipway.trainer.tasks import TASKS, in_words

POINTS = 400  # of a learning curve
CURVE_POINTS, CLASS_POINTS = 300, 80  # of a mean curve, and of each class
CURVES = 20  # for at most so many classes, each has its own ROC and precision-recall curve
MEAN = "mean of all"
NAME_LENGTH = 14  # of a class in a legend
_SQUARE = (245, 230)  # three of these are side by side
_WIDE = (331, 198)
_SHARE = Axis(-0.02, 1.02)
_RADIUS = 1.6  # of a scatter plot's dots
SMOOTHED = 100  # from so many points on, a learning curve is smoothed above its points
FEWEST_IN_BIN = 10  # of the calibration; smaller bins are merged with the next

Lines = dict[str, tuple[Floats, Floats]]  # x and y values by name


@dataclass(frozen=True)
class History:
    """The training history in a model's metrics.jsonl: its records, in order."""

    records: list[JsonObject]

    def series(self, kind: str, metric: str) -> tuple[Floats, Floats]:
        """Return the steps and values of a metric in the records of a kind (train, validation); finite values only.

        More than `POINTS` values are reduced to as many by averaging neighbors.
        """
        points = [
            (record["step"], record[metric])
            for record in self.records
            if record["kind"] == kind and isinstance(record.get(metric), int | float) and math.isfinite(record[metric])
        ]
        groups = np.array_split(np.array(points, np.float64).reshape(-1, 2), min(POINTS, max(1, len(points))))
        means = np.array([group.mean(axis=0) for group in groups if len(group)]).reshape(-1, 2)
        return means[:, 0], means[:, 1]

    def names(self) -> list[str]:
        """Return the names of the metrics, in the order of their first record."""
        names: dict[str, None] = {}
        for record in self.records:
            if record["kind"] in ("train", "validation"):
                names |= dict.fromkeys(name for name, value in record.items() if isinstance(value, int | float))
        return [name for name in names if name not in ("step", "epoch", "time")]

    def validation(self, step: int | None) -> JsonObject:
        """Return the validation at `step`, or the last one if it is None; {} if there is none."""
        validations = (record for record in reversed(self.records) if record["kind"] == "validation")
        return next((record for record in validations if step in (None, record["step"])), {})


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
    logarithmic = metric == "loss" and bool(every.min() > 0) and math.log10(every.max() / every.min()) > 1.7
    panel = Panel(
        Axis.around(steps, validated, margin=0.02, label="step", whole=True),
        Axis.around(every, logarithmic=logarithmic),
    )
    if len(steps) >= SMOOTHED:
        panel.line(steps, values, ACCENT, 0.8, opacity=0.3)
        window = len(steps) // 20
        counts = np.convolve(np.ones(len(steps)), np.ones(window), "same")
        values = np.convolve(values, np.ones(window), "same") / counts
    if len(steps):
        panel.line(steps, values, ACCENT, opacity=0.85, dots=3 if len(steps) == 1 else 0, name="training")
    if len(validated):
        radius = 3 if len(validated) == 1 else 1.75 if len(validated) <= 40 else 0
        panel.line(validated, validations, SECOND, 1.6, dots=radius, name="validation")
    name = in_words(metric)
    title = f"{name}{', log scale' * logarithmic}{', smoothed' * (len(steps) >= SMOOTHED)}"
    return draw([panel], _WIDE, f"{name} by step, in training and in validation", title)


def roc_curves(scored: Scores, names: Sequence[str]) -> str | None:
    """Plot the average ROC curve, above the classes' own if they are few; None if no class has one."""
    average, classes = scored.average_curve(), len(names)
    if average is None:
        return None
    curves = {names[index]: scored.curve(index) for index in range(classes if classes <= CURVES else 0)}
    lines = {
        name: (thin.false_positive_rate, thin.true_positive_rate)
        for name, curve in {MEAN: average, **curves}.items()
        if curve is not None and (thin := curve.thinned(CURVE_POINTS if name == MEAN else CLASS_POINTS))
    }
    lowest = _lowest(names, scored.each[AREA], lines)
    return _rates(lines, lowest, "false positive rate", "true positive rate", "ROC curve", diagonal=True)


def precision_recall_curves(scored: Scores, names: Sequence[str]) -> str | None:
    """Plot the mean of the classes' interpolated precision by recall, above their own if they are few."""
    recalls = np.linspace(0, 1, CURVE_POINTS)
    precisions = {name: scored.precision_at(index, recalls) for index, name in enumerate(names)}
    curves = {name: curve for name, curve in precisions.items() if curve is not None}
    if not curves:
        return None
    shown = {MEAN: np.mean(list(curves.values()), axis=0), **(curves if len(names) <= CURVES else {})}
    kept = np.linspace(0, CURVE_POINTS - 1, CLASS_POINTS).round().astype(int)
    lines = {name: (recalls, curve) if name == MEAN else (recalls[kept], curve[kept]) for name, curve in shown.items()}
    lowest = _lowest(names, scored.each[AVERAGE_PRECISION], lines)
    return _rates(lines, lowest, "recall", "precision", "precision-recall curve", diagonal=False)


def _lowest(names: Sequence[str], areas: Floats, lines: Lines) -> str:
    """Return the name of the line with the smallest area, "" if fewer than two classes have one."""
    shown = [(area, name) for area, name in zip(areas.tolist(), names, strict=True) if name in lines]
    return min(shown)[1] if len(shown) > 1 else ""


def _rates(lines: Lines, lowest: str, x: str, y: str, name: str, *, diagonal: bool) -> str:
    """Plot rates between 0 and 1: the mean and the `lowest`, named in the legend, above those of the other classes."""
    panel = Panel(replace(_SHARE, label=x), replace(_SHARE, label=y))
    if diagonal:
        panel.line([0, 1], [0, 1], MUTED, 0.8, dashed=True)
    for label in [*(name for name in lines if name not in (lowest, MEAN)), *filter(None, [lowest, MEAN])]:
        color, width, opacity = {lowest: (SECOND, 1.2, 1.0), MEAN: (ACCENT, 1.8, 1.0)}.get(label, (MUTED, 0.6, 0.55))
        panel.line(*lines[label], color, width, opacity=opacity, name=label, legend=False)
    if lowest:
        panel.legend = [("mean", ACCENT), (f"lowest: {elided([lowest], NAME_LENGTH)[0]}", SECOND)]
    return draw([panel], _SQUARE, f"{name} of each against the rest, and their mean")


def calibration_diagram(calibration: Calibration, examples: str) -> str:
    """Plot a reliability diagram: accuracy by confidence, and a histogram of the `examples`' confidence below it."""
    bins = len(calibration.examples)
    edges = np.arange(bins + 1) / bins
    merged = calibration.merged(FEWEST_IN_BIN)
    upper = Panel(Axis(0, 1, "confidence"), Axis(0, 1.03, "accuracy"), height=4)
    upper.line([0, 1], [0, 1], MUTED, 0.8, dashed=True)
    upper.bars(edges[merged.starts], edges[merged.ends], merged.accuracy, ACCENT, 0.4)
    upper.line(merged.confidence, merged.accuracy, ACCENT, dots=1.75, name="accuracy", legend=False)
    heights = calibration.examples.astype(np.float64)
    lower = Panel(Axis(0, 1, "confidence"), Axis(0, 1.05 * float(heights.max()), examples, ticks=1, whole=True))
    lower.bars(edges[:-1], edges[1:], heights, MUTED, 0.6, name=examples)
    return draw([upper, lower], _SQUARE, "accuracy by confidence")


def predicted_actual(actual: Floats, predicted: Floats, name: str) -> str:
    """Plot predicted by actual values, with the diagonal on which both are equal."""
    panel = Panel(
        Axis.around(actual, predicted, label=f"actual {name}"),
        Axis.around(actual, predicted, label=f"predicted {name}"),
    )
    ends = [float(min(actual.min(), predicted.min())), float(max(actual.max(), predicted.max()))]
    panel.line(ends, ends, MUTED, 0.8, dashed=True)
    panel.dots(actual, predicted, ACCENT, _RADIUS, _opacity(len(actual)))
    return draw([panel], _SQUARE, "predicted by actual values")


def residual_plot(predicted: Floats, residuals: Floats, name: str) -> str:
    """Plot residuals by predicted values."""
    x = Axis.around(predicted, label=f"predicted {name}")
    panel = Panel(x, Axis.around(residuals, [0.0], label="residual"))
    panel.line([x.low, x.high], [0, 0], MUTED, 0.8, dashed=True)
    panel.dots(predicted, residuals, ACCENT, _RADIUS, _opacity(len(predicted)))
    return draw([panel], _SQUARE, "residuals by predicted values")


def residual_histogram(residuals: Floats) -> str:
    """Plot how many examples have which residual."""
    counts, edges = np.histogram(residuals, bins=min(40, max(8, round(math.sqrt(len(residuals))))))
    y = Axis.around(counts, zero=True, label="examples", whole=True)
    panel = Panel(Axis.around(edges, [0.0], label="residual"), y)
    panel.bars(edges[:-1], edges[1:], counts, ACCENT, 0.6, name="examples")
    panel.line([0, 0], [y.low, y.high], MUTED, 0.8, dashed=True)
    return draw([panel], _SQUARE, "number of examples by residual")


def _opacity(points: int) -> float:
    """Return the opacity of a scatter plot's dots, lower for more points."""
    return float(np.clip(12 / math.sqrt(points), 0.25, 0.8))
