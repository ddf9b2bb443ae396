"""The report of an evaluation: one self-contained HTML page, without scripts and without anything from a network."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from components.evaluate import charts
from components.evaluate.accumulators import CALIBRATION_BINS, ConfusionMatrix, Curve, ScoreHistograms, WrongExample
from components.evaluate.evaluation import Evaluation
from components.evaluate.gate import NAMES
from components.evaluate.history import read_history
from components.evaluate.served_model import Measured

TEMPLATE = "report.html"
# Up to this many classes, the confusion matrix is a table and the classes are in the data set's order.
CLASSES_IN_FULL = 30
WEAKEST_CLASSES = 20
CONFUSIONS = 12
CURVE_POINTS = 300
CURVES = 20
FOREIGN = "(a class of another data set)"
# An image up to this many pixels a side is embedded as it is; a larger one as a picture of that size.
EMBEDDED_PIXELS = 192
PIXELATED_PIXELS = 64

# name: (label, what it says, whether lower is better)
_FIGURES = {
    "accuracy": ("Accuracy", "images whose most probable class is the true one", False),
    "loss": ("Loss", "mean cross-entropy in nats", True),
    "macro_f1": ("Macro F1", "F1 averaged over the classes", False),
    "macro_precision": ("Macro precision", "of what was called a class, how much is it", False),
    "macro_recall": ("Macro recall", "of what is a class, how much was found", False),
    "macro_auc": ("Macro AUC", "area under each class's ROC curve, averaged", False),
    "expected_calibration_error": ("Calibration error", "mean distance of confidence and accuracy", True),
}
_TRAINING_LABELS = {
    "builder": "Network",
    "arguments": "Its arguments",
    "engine": "Engine",
    "steps": "Steps",
    "image_size": "Image size",
    "seed": "Seed",
    "weights_checksum": "Weights checksum",
    "data_fingerprint": "Data fingerprint",
}


@dataclass(frozen=True)
class ClassRow:
    """One class in the table: its figures, and the champion's F1 where there is a champion."""

    name: str
    examples: int
    precision: float
    recall: float
    f1: float
    auc: float | None
    champion_f1: float | None


@dataclass(frozen=True)
class Confusion:
    """One wrong cell of the confusion matrix, and its share of its row."""

    true: str
    predicted: str
    count: int
    share: float


def write_report(evaluation: Evaluation, path: Path) -> None:
    """Write the page about an evaluation to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(evaluation), encoding="utf-8")


def render(evaluation: Evaluation) -> str:
    """The page about an evaluation."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = _figure
    environment.filters["count"] = "{:,}".format
    environment.filters["difference"] = lambda value: f"{value:+.4f}".replace("-", "−")
    environment.filters["confidence"] = _confidence
    environment.filters["percent"] = lambda value: f"{value:.1%}"
    return environment.get_template(TEMPLATE).render(**_content(evaluation))


def _content(evaluation: Evaluation) -> dict[str, Any]:
    model, champion, manifest = evaluation.model, evaluation.champion, evaluation.manifest
    confusion = model.measures.confusion
    history = read_history(model.folder / "metrics.jsonl")
    rows = _class_rows(manifest.classes, model, champion)
    in_full = len(manifest.classes) <= CLASSES_IN_FULL
    if not in_full:
        rows.sort(key=lambda row: (row.examples == 0, row.f1))
    curves = [charts.learning_curve(history, figure) for figure in ("loss", "accuracy")]
    return {
        "verdict": evaluation.verdict,
        "gate": _gate(evaluation),
        "manifest": manifest,
        "metrics": model.metrics,
        "wrong": confusion.examples - int(np.trace(confusion.counts)),
        "champion": champion,
        "figures": _figures(model, champion),
        "curves": [curve for curve in curves if curve],
        "last_validation": history.last("validation"),
        "cells": _cells(confusion) if in_full else None,
        "foreign": bool(confusion.counts[:, -1].any()),
        "picture": None if in_full else charts.confusion_picture(confusion.counts[:, :-1]),
        "confusions": _confusions(manifest.classes, confusion),
        "classes": rows if in_full else rows[:WEAKEST_CLASSES],
        "other_classes": [] if in_full else rows[WEAKEST_CLASSES:],
        "long_names": max(map(len, manifest.classes)) > 3,
        "calibration": charts.calibration_diagram(model.measures.calibration),
        "bins": CALIBRATION_BINS,
        "roc": _roc(model.measures.scores, len(manifest.classes)),
        "score_bins": ScoreHistograms.BINS,
        "auc_uncertainty": _auc_uncertainty(model.measures.scores, len(manifest.classes)),
        "worst": [_worst(example, manifest.classes) for example in model.measures.worst.examples],
        "training": _training(model),
        "splits": [(name, split.examples, len(split.shards)) for name, split in manifest.splits.items()],
        "created": datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0"),
    }


def _figures(model: Measured, champion: Measured | None) -> list[dict[str, Any]]:
    """The key figures: this model's, the champion's, and the difference with whether it is for the better."""
    ours = model.metrics
    theirs = champion.metrics if champion else {}
    rows = []
    for name, (label, meaning, lower_is_better) in _FIGURES.items():
        if name not in ours:
            continue
        difference = ours[name] - theirs[name] if name in theirs else None
        row = {"name": name, "label": label, "meaning": meaning, "value": ours[name], "champion": theirs.get(name)}
        row["difference"] = difference
        row["trend"] = "same" if difference is None or abs(difference) < 5e-5 else _trend(difference, lower_is_better)
        rows.append(row)
    return rows


def _trend(difference: float, lower_is_better: bool) -> str:
    return "better" if (difference < 0) == lower_is_better else "worse"


def _gate(evaluation: Evaluation) -> str:
    gate = evaluation.settings.gate
    name = NAMES[gate.metric]
    limit = "at most" if gate.metric == "loss" else "at least"
    minimum = "" if gate.minimum is None else f" {limit} {gate.minimum:g},"
    if gate.margin > 0:
        return f"{name}{minimum} better than the champion’s by at least {gate.margin:g}"
    if gate.margin < 0:
        return f"{name}{minimum} worse than the champion’s by no more than {-gate.margin:g}"
    return f"{name}{minimum} at least as good as the champion’s"


def _auc_uncertainty(scores: ScoreHistograms, classes: int) -> str:
    """The largest of any class, rounded up to what the report shows."""
    largest = max(scores.uncertainty(index) for index in range(classes))
    return f"{math.ceil(largest * 1e5) / 1e5:.5f}"


def _class_rows(classes: Sequence[str], model: Measured, champion: Measured | None) -> list[ClassRow]:
    confusion = model.measures.confusion
    precision, recall, f1, support = confusion.precision, confusion.recall, confusion.f1, confusion.support
    areas = model.measures.scores.areas()
    theirs = champion.measures.confusion.f1 if champion else None
    return [
        ClassRow(
            name=name,
            examples=int(support[index]),
            precision=float(precision[index]),
            recall=float(recall[index]),
            f1=float(f1[index]),
            auc=areas[index],
            champion_f1=None if theirs is None else float(theirs[index]),
        )
        for index, name in enumerate(classes)
    ]


def _cells(confusion: ConfusionMatrix) -> list[list[tuple[int, int]]]:
    """The confusion matrix as counts and strengths: the share of the row in percent, for the cell's colour."""
    counts = confusion.counts if confusion.counts[:, -1].any() else confusion.counts[:, :-1]
    shares = counts / np.maximum(confusion.support[:, None], 1)
    strengths = np.where(counts > 0, np.clip(np.sqrt(shares) * 100, 18, 100), 0).round().astype(int)
    return [
        list(zip(row.tolist(), strength.tolist(), strict=True)) for row, strength in zip(counts, strengths, strict=True)
    ]


def _confusions(classes: Sequence[str], confusion: ConfusionMatrix) -> list[Confusion]:
    """The most frequent confusions, the most frequent first."""
    counts = confusion.counts.copy()
    np.fill_diagonal(counts, 0)
    names = [*classes, FOREIGN]
    order = np.argsort(-counts, axis=None, kind="stable")[:CONFUSIONS]
    found = [(int(row), int(column)) for row, column in zip(*np.unravel_index(order, counts.shape), strict=True)]
    return [
        Confusion(names[row], names[column], int(counts[row, column]), counts[row, column] / confusion.support[row])
        for row, column in found
        if counts[row, column]
    ]


def _roc(scores: ScoreHistograms, classes: int) -> str | None:
    average = scores.average_curve()
    if average is None:
        return None
    return charts.roc_curve(average.thinned(CURVE_POINTS), list(_curves(scores, classes)) if classes <= CURVES else [])


def _curves(scores: ScoreHistograms, classes: int) -> Iterator[Curve]:
    for index in range(classes):
        curve = scores.curve(index)
        if curve is not None:
            yield curve.thinned(CURVE_POINTS)


def _worst(example: WrongExample, classes: Sequence[str]) -> dict[str, Any]:
    address, pixelated = _picture(example.image)
    names = [*classes, FOREIGN]
    return {
        "address": address,
        "pixelated": pixelated,
        "key": example.key,
        "true": names[example.label],
        "predicted": names[example.predicted],
        "confidence": example.confidence,
    }


def _picture(image: bytes) -> tuple[str, bool]:
    """An encoded image as a data URI, made smaller where it is large, and whether its pixels are to be seen as such."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(image)) as opened:
            kind, largest = opened.format or "PNG", max(opened.size)
            if largest > EMBEDDED_PIXELS:
                small = opened.convert("RGB")
                small.thumbnail((EMBEDDED_PIXELS, EMBEDDED_PIXELS))
                buffer = io.BytesIO()
                small.save(buffer, "JPEG", quality=85)
                kind, image = "JPEG", buffer.getvalue()
    except OSError:  # TensorFlow decodes a little more than Pillow does; a browser may too
        kind, largest = "PNG", EMBEDDED_PIXELS
    address = f"data:image/{kind.lower()};base64,{base64.b64encode(image).decode()}"
    return address, largest <= PIXELATED_PIXELS


def _training(model: Measured) -> list[tuple[str, str]]:
    """What model.json says of the training, the well-known things first; the classes stand elsewhere."""
    description = dict(model.description)
    height_width, channels = description.pop("image_size", None), description.pop("channels", None)
    if height_width:
        colour = {1: ", grey", 3: ", colour"}.get(channels, "")
        description["image_size"] = f"{height_width[0]} × {height_width[1]} pixels{colour}"
    if "steps" in description:
        description["steps"] = f"{description['steps']:,}"
    for key in ("classes", "job_checksum"):
        description.pop(key, None)
    known = [(label, description.pop(key)) for key, label in _TRAINING_LABELS.items() if key in description]
    others = [(key.replace("_", " ").capitalize(), value) for key, value in description.items()]
    return [(label, _text(value)) for label, value in known + others if value not in (None, {}, [], "")]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _confidence(value: float) -> str:
    """A probability in percent; one that is nearly 1 is not called 100%."""
    return "> 99.9%" if 0.9995 <= value < 1 else f"{value:.1%}"
