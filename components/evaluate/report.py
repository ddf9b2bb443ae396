"""The evaluation report: an HTML page with metrics, charts and the worst examples (see `components.page`)."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from slipway.components import page
from slipway.components.evaluate import charts
from slipway.components.evaluate.charts import read_history
from slipway.components.evaluate.evaluation import Evaluation, Unseen
from slipway.components.evaluate.gate import GateSettings
from slipway.components.evaluate.measures.base import Example
from slipway.components.evaluate.sections import SECTIONS
from slipway.components.evaluate.served_model import Measured
from slipway.components.page import figure
from slipway.core.manifest import Manifest
from slipway.core.values import JsonObject
from slipway.trainer.tasks import TASKS

TEMPLATE = Path(__file__).with_name("report.html")
UNSEEN_SHOWN = 10
# Images with a longer side are downscaled to this size before they are embedded.
EMBEDDED_PIXELS = 192
PIXELATED_PIXELS = 64

# Labels of the entries of model.json; entries not listed here are shown under "Training".
_MODEL = {
    "builder": "Network",
    "arguments": "Arguments",
    "engine": "Engine",
    "image_size": "Image size",
    "weights": "Weights",
    "weights_checksum": "Weights checksum",
}
# Entries that the data set describes, or that are of no interest.
_OF_DATA = ("task", "classes", "inputs", "target", "job_checksum")
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
    "went_back": "Older checkpoint used",
}


def render(evaluation: Evaluation) -> str:
    """Return the report of an evaluation as HTML."""
    return page.render(TEMPLATE, **_content(evaluation))


def _content(evaluation: Evaluation) -> JsonObject:
    model, champion, manifest = evaluation.model, evaluation.champion, evaluation.manifest
    history, recorded = read_history(model.folder / "metrics.jsonl"), ("loss", TASKS[manifest.task].figure)
    curves = [charts.learning_curve(history, name) for name in charts.curve_names(history, model.description)]
    validation, gate = history.validation(model.description.get("weights_step")), evaluation.settings.gate
    value = model.metrics[gate.name]
    return {
        "verdict": evaluation.verdict,
        "gate": gate_text(gate),
        "headline": f"{gate.label} {f'{value:.2%}' if gate.name == 'accuracy' else figure(value)}",
        "manifest": manifest,
        "noun": manifest.noun,
        "sections": f"sections/{manifest.task}.html",
        "metrics": model.metrics,
        "untrained": model.description.get("trainable_bytes") == 0,
        "unseen": [(each, _few(each)) for each in evaluation.unseen],
        "champion": champion,
        "compared": model.compared.examples,
        "figures": _figures(model, champion, manifest, evaluation.baseline),
        "baseline": evaluation.baseline,
        "curves": [curve for curve in curves if curve],
        "validated": [
            (TASKS[manifest.task].metrics[name].title, validation[name]) for name in recorded if name in validation
        ],
        "validation_step": validation.get("step"),
        "worst": [_worst(example) for example in model.measures.worst.examples],
        "provenance": _provenance(model, manifest),
        "created": datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0"),
        "compares_classes": champion is not None and model.compared is model.measures,
        **SECTIONS[manifest.task](manifest, model, champion),
    }


def _few(unseen: Unseen) -> str:
    """Return the most frequent unseen categories with their counts, for people."""
    shown = [f"{name or '(empty)'} ({count:,})" for name, count in unseen.categories[:UNSEEN_SHOWN]]
    more = len(unseen.categories) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _figures(
    model: Measured, champion: Measured | None, manifest: Manifest, baseline: Mapping[str, float]
) -> list[JsonObject]:
    """Return the rows of the metrics table: this model, the baseline, the champion, the difference and its trend."""
    ours, theirs, compared = model.metrics, champion.metrics if champion else {}, model.compared.metrics()
    champion_intervals = champion.intervals if champion else {}
    rows = []
    for name, metric in TASKS[manifest.task].metrics.items():
        if name not in ours:
            continue
        difference = compared[name] - theirs[name] if name in theirs and name in compared else None
        trend = "same"
        if difference is not None and figure(compared[name]) != figure(theirs[name]):
            trend = "better" if (difference < 0) == (metric.direction == "minimize") else "worse"
        label = metric.title[0].upper() + metric.title[1:]
        row: JsonObject = {"label": label, "meaning": metric.meaning, "difference": difference, "trend": trend}
        row |= {"value": ours[name], "interval": model.intervals.get(name), "baseline": baseline.get(name)}
        row |= {"no_interval": model.without_interval.get(name)}
        rows.append(row | {"champion": theirs.get(name), "champion_interval": champion_intervals.get(name)})
    return rows


def gate_text(gate: GateSettings) -> str:
    """Return the gate's condition in words."""
    name = gate.label
    limit = "at most" if gate.minimized else "at least"
    minimum = f", no {gate.limit_name} set," if gate.limit is None else f" {limit} {gate.limit:g},"
    significant = "" if gate.significance is None else f", significantly (p at most {gate.significance:g})"
    if gate.margin > 0:
        return f"{name}{minimum} better than the champion’s by at least {gate.margin:g}{significant}"
    if gate.margin < 0:
        return f"{name}{minimum} worse than the champion’s by no more than {-gate.margin:g}"
    return f"{name}{minimum} {'better than' if significant else 'at least as good as'} the champion’s{significant}"


def _worst(example: Example) -> JsonObject:
    address, pixelated = _data_uri(example.image) if example.image else ("", False)
    return {"address": address, "pixelated": pixelated, "example": example, "values": example.values or {}}


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
    about = {key: value for key, value in model.description.items() if key not in _OF_DATA}
    if not any(size := about.pop("image_size", None) or []):
        about.pop("channels", None)
    else:
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
        "Task": manifest.task,
        "Labels" if manifest.task == "multilabel" else "Classes": f"{len(manifest.classes):,}"
        if manifest.classes
        else "",
        "Inputs": ", ".join(f"{name} ({each.kind})" for name, each in manifest.inputs.items()),
        "Encodings": ", ".join(manifest.encodings),
        f"Skipped {manifest.noun}s": manifest.skipped.replace(f" {manifest.noun}s skipped", ""),
        "Damaged images": f"{manifest.checked.damaged:,}" if manifest.checked and manifest.checked.damaged else "",
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
