"""Charts of the evaluation report, as inline SVG in the colours of its style sheet, and the history they show."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from slipway.components.evaluate.accumulators import Calibration, Counts, Curve, Floats
from slipway.core.atomic import json_lines
from slipway.core.values import JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# matplotlib needs literal colours; each of these placeholders stands for a CSS variable of the page.
INK, MUTED, LINE, ACCENT, SECOND = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04", "#0a0b05"
_VARIABLES = {INK: "--ink", MUTED: "--muted", LINE: "--line", ACCENT: "--accent", SECOND: "--second"}
_STYLE = {
    "svg.fonttype": "none",
    "font.size": 9.5,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
POINTS = 400  # of a learning curve
_SQUARE = (3.4, 3.2)  # inches; three of these are side by side
# Cell colours of the confusion matrix plot, readable on light and dark backgrounds.
_RIGHT, _WRONG = (58, 110, 224), (214, 84, 20)


@dataclass(frozen=True)
class Series:
    """A metric by step."""

    steps: list[float]
    values: list[float]


@dataclass(frozen=True)
class History:
    """The training history in a model's metrics.jsonl: its records, in order."""

    records: list[JsonObject]

    def series(self, kind: str, figure: str) -> Series:
        """Return a metric by step, from the records of a kind (train, validation); finite values only.

        More than `POINTS` values are reduced to as many by averaging neighbours.
        """
        found = [
            (record["step"], record[figure])
            for record in self.records
            if record["kind"] == kind and isinstance(record.get(figure), int | float) and math.isfinite(record[figure])
        ]
        groups = np.array_split(np.array(found, np.float64).reshape(-1, 2), min(POINTS, max(1, len(found))))
        means = [group.mean(axis=0) for group in groups if len(group)]
        return Series([float(step) for step, _ in means], [float(value) for _, value in means])

    def names(self) -> list[str]:
        """Return the names of the metrics, in the order of their first record."""
        known = [record for record in self.records if record["kind"] in ("train", "validation")]
        found = dict.fromkeys(
            name for record in known for name in record if name not in ("kind", "step", "epoch", "time")
        )
        return [name for name in found if any(isinstance(record.get(name), int | float) for record in known)]

    def last(self, kind: str) -> JsonObject | None:
        """The last record of a kind."""
        return next((record for record in reversed(self.records) if record["kind"] == kind), None)


def read_history(path: Path) -> History:
    """Return the history in a file, empty if the file does not exist."""
    records = json_lines(path.read_bytes()) if path.is_file() else []
    return History([record for record in records if {"step", "kind"} <= record.keys()])


def curve_names(history: History, description: JsonObject) -> list[str]:
    """Return the metrics with a learning curve: all of a custom program, which has no builder in its model.json.

    Slipway's trainer also records its speed.
    """
    return ["loss", "accuracy"] if "builder" in description else history.names()


def learning_curve(history: History, figure: str) -> str | None:
    """Plot `figure` (loss or accuracy) by step, for training and validation; None if nothing was recorded."""
    train, validation = history.series("train", figure), history.series("validation", figure)
    if not train.steps and not validation.steps:
        return None
    with _style():
        page, (axes,) = _figure(4.6, 2.75)
        if train.steps:
            axes.plot(train.steps, train.values, color=ACCENT, linewidth=1.2, alpha=0.85, label="training")
        if validation.steps:
            marker = "o" if len(validation.steps) <= 40 else ""
            axes.plot(
                validation.steps, validation.values, color=SECOND, linewidth=1.6, marker=marker, markersize=3.5,
                label="validation",
            )  # fmt: skip
        if figure == "loss" and _spans_decades(train, validation):
            axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.locator_params(axis="x", nbins=6, integer=True)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_title(figure.replace("$", r"\$"), loc="left", fontsize=10.5, color=INK)
        axes.margins(x=0.02)
        axes.legend(loc="best")
        return _svg(page, f"{figure} by step, in training and in validation")


def roc_curve(average: Curve, classes: Sequence[Curve]) -> str:
    """Plot the average ROC curve, with the curves of the `classes` as thin lines below it."""
    lines = [(curve.false_positive_rate, curve.true_positive_rate) for curve in (average, *classes)]
    return _rates(lines, "false positive rate", "true positive rate", "ROC curve", diagonal=True)


def precision_recall_curve(recalls: Floats, average: Floats, classes: Sequence[Floats]) -> str:
    """Plot the average precision [points] by recall, with the curves of the `classes` as thin lines below it."""
    lines = [(recalls, precisions) for precisions in (average, *classes)]
    return _rates(lines, "recall", "precision", "precision-recall curve", diagonal=False)


def _rates(lines: list[tuple[Floats, Floats]], x: str, y: str, name: str, *, diagonal: bool) -> str:
    """Plot rates between 0 and 1: the average, which is the first of `lines`, above those of the classes."""
    with _style():
        page, (axes,) = _figure(*_SQUARE)
        for line in lines[1:]:
            axes.plot(*line, color=MUTED, linewidth=0.6, alpha=0.55)
        if diagonal:
            axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (4, 4)))
        axes.plot(*lines[0], color=ACCENT, linewidth=1.8)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel=x, ylabel=y)
        return _svg(page, f"{name} of each class against the rest, and their average")


def calibration_diagram(calibration: Calibration) -> str:
    """Plot a reliability diagram: accuracy by confidence, and a histogram of the confidence below it."""
    bins = len(calibration.examples)
    centres = (np.arange(bins) + 0.5) / bins
    used = calibration.examples > 0
    with _style():
        page, (upper, lower) = _figure(*_SQUARE, rows=[4, 1])
        upper.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (4, 4)))
        upper.bar(centres[used], calibration.accuracy[used], width=0.8 / bins, color=ACCENT, alpha=0.4, linewidth=0)
        upper.plot(
            calibration.confidence[used], calibration.accuracy[used], color=ACCENT, marker="o", markersize=3.5,
            linewidth=1.2,
        )  # fmt: skip
        upper.set(xlim=(0, 1), ylim=(0, 1.03), ylabel="accuracy")
        upper.tick_params(labelbottom=False)
        lower.bar(centres, calibration.examples, width=0.8 / bins, color=MUTED, alpha=0.6, linewidth=0)
        lower.set(xlim=(0, 1))
        lower.grid(axis="y", visible=False)
        lower.set_yticks([])
        lower.spines["left"].set_visible(False)
        lower.set(xlabel="confidence", ylabel="images")
        return _svg(page, "accuracy by confidence")


def confusion_plot(counts: Counts) -> str:
    """Draw a confusion matrix [n, n or more] as the data URI of a PNG with one pixel per cell.

    The diagonal is blue, the rest orange. Opacity grows with the square root of the cell's share of its row, so that
    rare confusions stay visible.
    """
    from PIL import Image

    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    pixels = np.zeros((*counts.shape, 4), np.uint8)
    pixels[..., :3] = _WRONG
    pixels[np.arange(len(counts)), np.arange(len(counts)), :3] = _RIGHT
    pixels[..., 3] = np.where(counts > 0, np.clip(70 + 185 * np.sqrt(shares), 0, 255), 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels, mode="RGBA").save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _spans_decades(*series: Series) -> bool:
    values = [value for one in series for value in one.values]
    return min(values) > 0 and math.log10(max(values) / min(values)) > 1.7


def _style() -> AbstractContextManager[None]:
    import matplotlib as mpl

    return mpl.rc_context(_STYLE)


def _figure(width: float, height: float, rows: Sequence[float] = (1,)) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(len(rows), 1, squeeze=False, gridspec_kw={"height_ratios": list(rows)})
    return figure, list(axes[:, 0])


def _svg(figure: Figure, description: str) -> str:
    """Return a figure as an inline <svg> element, scaled to its container, in the page's colours and font."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    # Element ids are hashes; the salt keeps them unique among the charts of a page.
    with rc_context({"svg.hashsalt": description}):
        figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    opening = text.index("<svg")
    start = text.index(">", opening) + 1
    box = text[opening:start].split('viewBox="')[1].split('"')[0]
    body = text[start:].replace("*{stroke-linejoin: round; stroke-linecap: butt}", "")
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, f"var({variable})")
    return f'<svg class="chart" viewBox="{box}" role="img" aria-label="{escape(description)}">{body}'
