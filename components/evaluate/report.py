"""The evaluation report: an HTML page with metrics, charts and the worst examples (see `components.page`)."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from slipway.components import page
from slipway.components.evaluate import charts
from slipway.components.evaluate.charts import History, read_history
from slipway.components.evaluate.evaluate import Evaluation
from slipway.components.evaluate.measured import Measured, Unseen
from slipway.components.evaluate.measures.classification import ClassificationMeasures
from slipway.components.evaluate.sections import SECTIONS
from slipway.components.evaluate.settings import GateSettings, known
from slipway.components.page import number
from slipway.core.manifest import Manifest
from slipway.core.values import JsonObject
from slipway.trainer.metrics.history import METRICS_FILE
from slipway.trainer.tasks import TASKS

TEMPLATE = Path(__file__).with_name("report.html")
# Larger confusion matrices do not fit into an artifact's metadata; the report contains them in full.
LARGEST_MATRIX = 100
CURVE_POINTS = 100
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


class Classification(Protocol):
    """The methods of kfp's ClassificationMetrics that are used here."""

    def log_confusion_matrix(self, categories: list[str], matrix: list[list[int]]) -> None: ...
    def log_roc_curve(self, fpr: list[float], tpr: list[float], threshold: list[float]) -> None: ...


def log_classification(evaluation: Evaluation, classification: Classification) -> None:
    """Log the model's confusion matrix and its ROC curve, averaged over the classes at each threshold."""
    measures = evaluation.model.measures
    if evaluation.manifest is None or not isinstance(measures, ClassificationMeasures):
        return
    classes = evaluation.manifest.classes
    if len(classes) <= LARGEST_MATRIX:
        classification.log_confusion_matrix(classes, measures.confusion[:, :-1].tolist())
    else:
        logging.info("%d classes: the confusion matrix is in the report only", len(classes))
    curve = measures.scored.average_curve()
    if curve is not None:
        curve = curve.thinned(CURVE_POINTS)
        classification.log_roc_curve(
            curve.false_positive_rate.tolist(), curve.true_positive_rate.tolist(), curve.thresholds.tolist()
        )


def render(evaluation: Evaluation) -> str:
    """Return the report of an evaluation as HTML."""
    model, history = evaluation.model, read_history(evaluation.model.folder / "metrics.jsonl")
    content: JsonObject = {
        "verdict": evaluation.verdict,
        "gate": gate_text(evaluation.settings.gate),
        "manifest": evaluation.manifest,
        "metrics": model.metrics,
        "champion": evaluation.champion,
        "baseline": evaluation.baseline,
        "curves": charts.learning_curves(history, model.description),
        "created": datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0"),
    }
    if evaluation.manifest is None:
        return page.render(TEMPLATE, **content, **_of_custom(evaluation))
    return page.render(TEMPLATE, **content, **_of_split(evaluation, evaluation.manifest, history))


def _of_split(evaluation: Evaluation, manifest: Manifest, history: History) -> JsonObject:
    """Return what only the report of an evaluation on the test split shows."""
    model, champion, gate, row = evaluation.model, evaluation.champion, evaluation.settings.gate, TASKS[manifest.task]
    assert model.measures is not None
    assert model.compared is not None
    value, validation = model.metrics[gate.name], history.validation(model.description.get("weights_step"))
    return {
        "headline": f"{gate.label} {f'{value:.2%}' if gate.name == 'accuracy' else number(value)}",
        "noun": manifest.noun,
        "sections": f"sections/{manifest.task}.html",
        "untrained": model.description.get("trainable_bytes") == 0,
        "unseen": [(each, _few(each)) for each in evaluation.unseen],
        "compared": model.compared.examples,
        "metric_rows": list(_rows_of_split(evaluation, manifest)),
        "validated": [
            (row.metrics[name].title, validation[name]) for name in ("loss", row.metric) if name in validation
        ],
        "validation_step": validation.get("step"),
        "worst": [(example, *_data_uri(example.image)) for example in model.measures.worst.examples],
        "provenance": _provenance(model, manifest),
        "compares_classes": champion is not None and model.compared is model.measures,
        **SECTIONS[manifest.task](manifest, model.measures, champion.measures if champion else None),
    }


def _of_custom(evaluation: Evaluation) -> JsonObject:
    """Return what only the report of a custom evaluation shows."""
    model, gate, module = evaluation.model, evaluation.settings.gate, evaluation.settings.module
    sizes = [path.stat().st_size for path in sorted(model.folder.rglob("*")) if path.is_file()]
    provenance = {
        "Metrics": module or METRICS_FILE,
        "Data": "of the program" if evaluation.data is None else str(evaluation.data),
        "Model": f"{len(sizes):,} files, {sum(sizes):,} bytes",
        "Weights checksum": str(model.weights_checksum or ""),
    }
    return {
        "headline": f"{gate.label} {model.metrics[gate.name]:.5g}",
        "source": module or "the metrics that the program reported",
        "sections": "sections/custom.html",
        "metric_rows": list(_rows_of_custom(evaluation)),
        "plots": [(title, *_embedded(plot)) for title, plot in model.plots.items()],
        "tables": model.tables,
        "provenance": [("", [(label, value) for label, value in provenance.items() if value])],
    }


def _few(unseen: Unseen) -> str:
    """Return the most frequent unseen categories with their counts, for people."""
    shown = [f"{name or '(empty)'} ({count:,})" for name, count in unseen.categories[:UNSEEN_SHOWN]]
    more = len(unseen.categories) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _rows_of_split(evaluation: Evaluation, manifest: Manifest) -> Iterator[JsonObject]:
    """Yield the rows of the metrics table: this model, the baseline, the champion, the difference and its trend."""
    model, champion = evaluation.model, evaluation.champion
    assert model.measures is not None
    assert model.compared is not None
    theirs, intervals = (champion.metrics, champion.intervals) if champion else ({}, {})
    compared, without_interval = model.compared.metrics(), model.measures.without()
    for name, metric in TASKS[manifest.task].metrics.items():
        if name not in model.metrics:
            continue
        difference, trend = "–", ""
        if name in theirs and name in compared:
            gain = compared[name] - theirs[name]
            difference = f"{'+' if gain >= 0 else '−'}{number(abs(gain))}"
            trend = "better" if (gain < 0) == (metric.direction == "minimize") else "worse"
            if number(compared[name]) == number(theirs[name]):
                difference, trend = "0.0000", "same"
        yield {
            "label": metric.title[0].upper() + metric.title[1:],
            "meaning": metric.meaning,
            "value": number(model.metrics[name]),
            "interval": model.intervals.get(name),
            "no_interval": without_interval.get(name),
            "baseline": number(evaluation.baseline.get(name)),
            "champion": number(theirs.get(name)),
            "champion_interval": intervals.get(name),
            "difference": difference,
            "trend": trend,
        }


def _rows_of_custom(evaluation: Evaluation) -> Iterator[JsonObject]:
    """Yield the rows of the metrics table, the gate's metric first; only known directions have a trend."""
    gate, ours = evaluation.settings.gate, evaluation.model.metrics
    theirs = evaluation.champion.metrics if evaluation.champion else {}
    for name in sorted(ours, key=lambda name: name != gate.name):
        row: JsonObject = {"label": name, "value": f"{ours[name]:.5g}", "interval": None, "champion_interval": None}
        row |= {"champion": "–", "difference": "–", "trend": ""}
        metric = known(name)
        if name in theirs:
            gain = ours[name] - theirs[name]
            row |= {"champion": f"{theirs[name]:.5g}", "difference": f"{gain:+.5g}"}
            if name == gate.name or metric:
                minimized = gate.minimized if metric is None or name == gate.name else metric.direction == "minimize"
                row["trend"] = "same" if not gain else "better" if (gain < 0) == minimized else "worse"
        yield row


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


def _embedded(plot: Any) -> tuple[str, str]:
    """Return a plot's kind, image or page, and its content: a data URI or HTML."""
    if hasattr(plot, "savefig"):
        buffer = io.BytesIO()
        plot.savefig(buffer, format="svg", bbox_inches="tight")
        kind, content = "svg+xml", buffer.getvalue()
    else:
        ending, content = Path(plot).suffix.lower(), Path(plot).read_bytes()
        if ending in (".html", ".htm"):
            return "page", content.decode(errors="replace")
        kind = {".svg": "svg+xml", ".png": "png"}.get(ending, "jpeg")
    return "image", f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _data_uri(image: bytes) -> tuple[str, bool]:
    """Return an encoded image as a data URI, downscaled if large, and whether to render it pixelated; "" of none."""
    if not image:
        return "", False
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
        channels = {1: ", grayscale", 3: ", color"}.get(about.pop("channels", None), "")
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
        f"Skipped {manifest.noun}s": manifest.skipped_text.replace(f" {manifest.noun}s skipped", ""),
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
