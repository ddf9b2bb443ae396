"""The evaluation report: an HTML page with metrics, charts and misclassified images (see `components.page`)."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from slipway.components import page
from slipway.components.evaluate import charts
from slipway.components.evaluate.accumulators import (
    CALIBRATION_BINS,
    ConfusionMatrix,
    Measures,
    ScoreHistograms,
    WrongExample,
    wilson,
)  # fmt: skip
from slipway.components.evaluate.charts import read_history
from slipway.components.evaluate.evaluation import Evaluation
from slipway.components.evaluate.gate import GateSettings
from slipway.components.evaluate.served_model import Measured
from slipway.core.manifest import Manifest
from slipway.core.values import JsonObject

TEMPLATE = Path(__file__).with_name("report.html")
# Up to this many classes, the confusion matrix is a table and classes are listed in the data set's order.
CLASSES_IN_FULL = 30
CLASSES_BESIDE_LIST = 12  # up to this many, the list of confusions is beside the matrix, otherwise below it
WEAKEST_CLASSES = 20
CONFUSIONS = 12
CURVE_POINTS = 300
CURVES = 20
FOREIGN = "(a class of another data set)"
# Images with a longer side are downscaled to this size before they are embedded.
EMBEDDED_PIXELS = 192
PIXELATED_PIXELS = 64

# name: (label, definition, whether lower is better)
_FIGURES = {
    "accuracy": ("Accuracy", "fraction of images whose most probable class is the true class", False),
    "top_5_accuracy": ("Top-5 accuracy", "fraction of images whose true class is among the five most probable", False),
    "loss": ("Loss", "mean cross-entropy in nats", True),
    "macro_f1": ("Macro F1", "harmonic mean of precision and recall, averaged over the classes", False),
    "macro_precision": (
        "Macro precision",
        "fraction of the images predicted as a class that belong to it, averaged",
        False,
    ),
    "macro_recall": ("Macro recall", "fraction of a class's images that are predicted as it, averaged", False),
    "macro_auc": ("Macro AUC", "area under each class's ROC curve, averaged", False),
    "macro_average_precision": (
        "Mean average precision",
        "area under each class's precision-recall curve, averaged",
        False,
    ),
    "expected_calibration_error": (
        "Expected calibration error",
        "mean gap between confidence and accuracy (ECE)",
        True,
    ),
}
# Labels of the entries of model.json; entries not listed here are shown under "Training".
_MODEL = {
    "builder": "Network",
    "arguments": "Arguments",
    "engine": "Engine",
    "image_size": "Image size",
    "weights": "Weights",
    "weights_checksum": "Weights checksum",
}
_TRAINING = {
    "steps": "Steps",
    "planned_steps": "Planned steps",
    "weights_step": "Weights of step",
    "epochs": "Epochs",
    "batch_size": "Batch size",
    "optimizer": "Optimizer",
    "learning_rate": "Learning rate",
    "replicas": "Replicas",
    "seed": "Seed",
}


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


def render(evaluation: Evaluation) -> str:
    """Return the report of an evaluation as HTML."""
    return page.render(TEMPLATE, **_content(evaluation))


def _content(evaluation: Evaluation) -> JsonObject:
    model, champion, manifest = evaluation.model, evaluation.champion, evaluation.manifest
    confusion, scores, classes = model.measures.confusion, model.measures.scores, len(manifest.classes)
    history = read_history(model.folder / "metrics.jsonl")
    rows = _class_rows(manifest.classes, model, champion)
    in_full = classes <= CLASSES_IN_FULL
    if not in_full:
        rows.sort(key=lambda row: (row.examples == 0, row.f1))
    curves = [charts.learning_curve(history, name) for name in charts.curve_names(history, model.description)]
    return {
        "verdict": evaluation.verdict,
        "gate": gate_text(evaluation.settings.gate),
        "manifest": manifest,
        "metrics": model.metrics,
        "wrong": confusion.examples - confusion.correct,
        "interval": wilson(confusion.correct, confusion.examples),
        "untrained": model.description.get("trainable_bytes") == 0,
        "champion": champion,
        "figures": _figures(model, champion),
        "curves": [curve for curve in curves if curve],
        "last_validation": history.last("validation"),
        "cells": _cells(confusion) if in_full else None,
        "foreign": bool(confusion.counts[:, -1].any()),
        "confusion_plot": None if in_full else charts.confusion_plot(confusion.counts[:, :-1]),
        "confusions": _confusions(manifest.classes, confusion),
        "classes": rows if in_full else rows[:WEAKEST_CLASSES],
        "other_classes": [] if in_full else rows[WEAKEST_CLASSES:],
        "long_names": max(map(len, manifest.classes)) > 3,
        "layout": _layout(classes, perfect=confusion.correct == confusion.examples),
        "calibration": charts.calibration_diagram(model.measures.calibration),
        "bins": CALIBRATION_BINS,
        "roc": _roc(scores, classes),
        "precision_recall": _precision_recall(scores, classes),
        "thin": classes <= CURVES,
        "score_bins": ScoreHistograms.BINS,
        "auc_uncertainty": math.ceil(max(map(scores.uncertainty, range(classes))) * 1e5) / 1e5,
        "worst": [_worst(example, manifest.classes) for example in model.measures.worst.examples],
        "provenance": _provenance(model, manifest),
        "created": datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0"),
    }


def _layout(classes: int, *, perfect: bool) -> str:
    """Return the CSS class that arranges the confusion matrix and the list of confusions."""
    if classes > CLASSES_IN_FULL:
        return "even"
    if classes > CLASSES_BESIDE_LIST:
        return "stacked"
    return "full" if perfect else ""


def _figures(model: Measured, champion: Measured | None) -> list[JsonObject]:
    """Return the rows of the metrics table: this model, the champion, the difference and its trend."""
    ours, intervals = model.metrics, _intervals(model.measures)
    theirs, champion_intervals = (champion.metrics, _intervals(champion.measures)) if champion else ({}, {})
    rows = []
    for name, (label, meaning, lower_is_better) in _FIGURES.items():
        if name not in ours:
            continue
        difference = ours[name] - theirs[name] if name in theirs else None
        trend = "same"
        if difference is not None and abs(difference) >= 5e-5:
            trend = "better" if (difference < 0) == lower_is_better else "worse"
        row: JsonObject = {"label": label, "meaning": meaning, "difference": difference, "trend": trend}
        row |= {"value": ours[name], "interval": intervals.get(name)}
        rows.append(row | {"champion": theirs.get(name), "champion_interval": champion_intervals.get(name)})
    return rows


def _intervals(measures: Measures) -> dict[str, tuple[float, float]]:
    """Return the confidence intervals of the metrics that are proportions of the images."""
    hits = {"accuracy": measures.confusion.correct, "top_5_accuracy": measures.top_hits}
    return {name: wilson(hit, measures.confusion.examples) for name, hit in hits.items() if hit is not None}


def gate_text(gate: GateSettings) -> str:
    """Return the gate's condition in words."""
    name = gate.label
    limit = "at most" if gate.minimized else "at least"
    minimum = f", no {gate.limit_name} set," if gate.limit is None else f" {limit} {gate.limit:g},"
    if gate.margin > 0:
        return f"{name}{minimum} better than the champion’s by at least {gate.margin:g}"
    if gate.margin < 0:
        return f"{name}{minimum} worse than the champion’s by no more than {-gate.margin:g}"
    return f"{name}{minimum} at least as good as the champion’s"


def _class_rows(classes: Sequence[str], model: Measured, champion: Measured | None) -> list[ClassRow]:
    confusion, scores = model.measures.confusion, model.measures.scores
    right, support = np.diagonal(confusion.counts).tolist(), confusion.support.tolist()
    theirs = champion.measures.confusion.f1.tolist() if champion else [None] * len(classes)
    intervals = [wilson(hits, examples) if examples else None for hits, examples in zip(right, support, strict=True)]
    columns = (
        classes, support, confusion.precision.tolist(), confusion.recall.tolist(), intervals,
        confusion.f1.tolist(), scores.areas(), scores.average_precisions(), theirs,
    )  # fmt: skip
    return [ClassRow(*row) for row in zip(*columns, strict=True)]


def _cells(confusion: ConfusionMatrix) -> list[list[tuple[int, int]]]:
    """Return the confusion matrix as (count, colour strength in percent) pairs."""
    counts = confusion.counts if confusion.counts[:, -1].any() else confusion.counts[:, :-1]
    shares = counts / np.maximum(confusion.support[:, None], 1)
    strengths = np.where(counts > 0, np.clip(np.sqrt(shares) * 100, 18, 100), 0).round().astype(int)
    return [
        list(zip(row.tolist(), strength.tolist(), strict=True)) for row, strength in zip(counts, strengths, strict=True)
    ]


def _confusions(classes: Sequence[str], confusion: ConfusionMatrix) -> list[Confusion]:
    """Return the most frequent confusions in descending order."""
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
    """Return the chart of the average ROC curve and, for few classes, of theirs."""
    average = scores.average_curve()
    if average is None:
        return None
    curves = [scores.curve(index) for index in range(classes if classes <= CURVES else 0)]
    return charts.roc_curve(average.thinned(CURVE_POINTS), [curve.thinned(CURVE_POINTS) for curve in curves if curve])


def _precision_recall(scores: ScoreHistograms, classes: int) -> str | None:
    """Return the chart of the classes' interpolated precision-recall curves and their mean."""
    recalls = np.linspace(0, 1, CURVE_POINTS)
    curves = [curve.at(recalls) for index in range(classes) if (curve := scores.precision_recall(index))]
    if not curves:
        return None
    return charts.precision_recall_curve(recalls, np.mean(curves, axis=0), curves if classes <= CURVES else [])


def _worst(example: WrongExample, classes: Sequence[str]) -> JsonObject:
    address, pixelated = _data_uri(example.image)
    names = [*classes, FOREIGN]
    about = {"true": names[example.label], "predicted": names[example.predicted], "confidence": example.confidence}
    return {"address": address, "pixelated": pixelated, "key": example.key, **about}


def _data_uri(image: bytes) -> tuple[str, bool]:
    """Return an encoded image as a data URI, downscaled if large, and whether to render it pixelated."""
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
    except OSError:  # TensorFlow decodes some images that Pillow cannot; a browser may as well
        kind, largest = "PNG", EMBEDDED_PIXELS
    address = f"data:image/{kind.lower()};base64,{base64.b64encode(image).decode()}"
    return address, largest <= PIXELATED_PIXELS


def _provenance(model: Measured, manifest: Manifest) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the columns of the provenance section: model and training from model.json, and the data set."""
    about = {key: value for key, value in model.description.items() if key not in ("classes", "job_checksum")}
    if size := about.pop("image_size", None):
        channels = {1: ", grayscale", 3: ", colour"}.get(about.pop("channels", None), "")
        about["image_size"] = f"{size[0]} × {size[1]} pixels{channels}"
    if "variables_bytes" in about:
        size, trainable = about.pop("variables_bytes"), about.pop("trainable_bytes", 0)
        about["weights"] = f"{size:,} bytes, {trainable / max(size, 1):.1%} trainable"
    others = {key: key.replace("_", " ").capitalize() for key in about if key not in (*_MODEL, *_TRAINING)}
    others.pop("data_fingerprint", None)  # the manifest's
    data = {
        "Data set": manifest.name,
        "Source": manifest.source,
        "Splits": ", ".join(f"{name} {split.examples:,}" for name, split in manifest.splits.items()),
        "Classes": f"{len(manifest.classes):,}",
        "Encodings": ", ".join(manifest.encodings),
        "Skipped images": f"{manifest.left_out_count:,}" if manifest.left_out_count else "",
        "Fingerprint": manifest.fingerprint,
    }
    return [
        ("Model", _entries(about, _MODEL)),
        ("Training", _entries(about, _TRAINING | others)),
        ("Data", [(label, value) for label, value in data.items() if value]),
    ]


def _entries(about: JsonObject, labels: Mapping[str, str]) -> list[tuple[str, str]]:
    kept = [(label, about[key]) for key, label in labels.items() if key in about]
    return [(label, _text(value)) for label, value in kept if value not in (None, {}, [], "")]


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
