"""The evaluation report: an HTML page with metrics, charts and the worst examples (see `components.page`)."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from slipway.components import page
from slipway.components.evaluate import charts, rows
from slipway.components.evaluate.charts import History, read_history
from slipway.components.evaluate.evaluate import Evaluation
from slipway.components.evaluate.gate import SIGNIFICANCE
from slipway.components.evaluate.measured import Measured, Unseen
from slipway.components.evaluate.measures.classification import ClassificationMeasures
from slipway.components.evaluate.occlusion import overlay
from slipway.components.evaluate.sections import SECTIONS
from slipway.components.evaluate.settings import GateSettings
from slipway.components.step import LOGS_VARIABLE
from slipway.core import formatting
from slipway.core.manifest import Manifest
from slipway.core.values import JsonObject
from slipway.trainer.metrics.history import METRICS_FILE
from slipway.trainer.metrics.spent import FILE_NAME as SPENT_FILE
from slipway.trainer.tasks import TASKS

TEMPLATE = Path(__file__).with_name("report.html")
# Larger confusion matrices do not fit into an artifact's metadata; the report contains them in full.
LARGEST_MATRIX = 100
CURVE_POINTS = 100
UNSEEN_SHOWN, UNSEEN_CHARACTERS = 10, 60
INPUTS_NAMED = 12
TABLE_ROWS = 50  # of a custom evaluation's table
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
_OF_DATA = ("task", "classes", "inputs", "target", "target_name", "job_checksum", "data_fingerprint")
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
    "time": "Time",
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


def render(evaluation: Evaluation, run: str = "") -> str:
    """Return the report of an evaluation as HTML; `run` is the run's id."""
    model, history = evaluation.model, read_history(evaluation.model.folder / "metrics.jsonl")
    content: JsonObject = {
        "run": run,
        "links": _links(evaluation),
        "commands": _commands(run, evaluation.manifest),
        "verdict": evaluation.verdict,
        "gate": gate_text(evaluation.settings.gate, has_champion=evaluation.opponent is not None),
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
    ends = model.intervals.get(gate.name)
    is_percent = gate.name == "accuracy"
    shown = f"{ends[0]:.1%} to {ends[1]:.1%}" if ends and is_percent else ends and formatting.interval(*ends)
    return {
        "headline": f"{gate.label} {f'{value:.2%}' if is_percent else formatting.number(value)}",
        "gate_label": gate.label,
        "gate_interval": shown,
        "significance": gate.tested or SIGNIFICANCE,
        "noun": manifest.noun,
        "sections": f"sections/{manifest.task}.html",
        "untrained": model.description.get("trainable_bytes") == 0,
        "unseen": [(unseen, _few(unseen)) for unseen in evaluation.unseen],
        "compared": model.compared.examples,
        "metric_rows": list(rows.of_split(evaluation, manifest)),
        "slice_metrics": list(rows.by_slice(evaluation, manifest)),
        "importance": list(rows.of_importance(evaluation)),
        "validated": [
            (row.metrics[name].title, validation[name]) for name in ("loss", row.metric) if name in validation
        ],
        "validation_step": validation.get("step"),
        "worst": [(example, *_data_uri(example.image)) for example in model.measures.worst.examples],
        "occlusion": {
            example.key: overlay(evaluation.occlusion[example.key], example.image)
            for example in model.measures.worst.examples
            if example.key in evaluation.occlusion
        },
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
        "headline": f"{gate.label} {formatting.number(model.metrics[gate.name])}",
        "source": module or "the metrics that the program reported",
        "sections": "sections/custom.html",
        "metric_rows": list(rows.of_custom(evaluation)),
        "plots": [(title, *_embedded(plot)) for title, plot in model.plots.items()],
        "tables": [
            (
                title,
                list(table[0]),
                [_cells(row, table[0]) for row in table[:TABLE_ROWS]],
                max(0, len(table) - TABLE_ROWS),
            )
            for title, table in model.tables.items()
            if table
        ],
        "provenance": [("", [(label, value) for label, value in provenance.items() if value])],
    }


def _few(unseen: Unseen) -> str:
    """Return the most frequent unseen values with their counts, for people."""
    shown = [
        f"{text[:UNSEEN_CHARACTERS] or '(empty)'}{'…' if len(text) > UNSEEN_CHARACTERS else ''} ({count:,})"
        for text, count in unseen.values[:UNSEEN_SHOWN]
    ]
    more = len(unseen.values) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _links(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return titles and addresses of what is beside the report in the run's folder, if this machine has one."""
    logs = os.environ.get(LOGS_VARIABLE)
    if not logs:
        return []
    links = [("Configuration", "config.yaml"), ("log of the evaluation", "logs/evaluate.log")]
    if evaluation.manifest is not None:
        links.insert(0, ("Statistics of the data set", "statistics.html"))
    champion_run = str((evaluation.champion.registration if evaluation.champion else {}).get("run_id") or "")
    if champion_run and (Path(logs).parents[1] / champion_run / "report.html").is_file():
        links.append((f"the champion’s report ({champion_run})", f"../{champion_run}/report.html"))
    return links


def _commands(run: str, manifest: Manifest | None) -> list[str]:
    """Return the commands that use a run's model, and the one that starts the same run."""
    inputs = "FOLDER" if manifest and manifest.is_image_only else "FILE.csv" if manifest and manifest.inputs else "FILE"
    return [
        f"slipway predict {run} {inputs} -o predictions.csv",
        f"slipway serve {run}",
        f"slipway run -c runs/{run}/config.yaml",
    ]


def _cells(row: Mapping[str, object], columns: Mapping[str, object]) -> list[str]:
    """Return a row of a custom evaluation's table as texts."""
    values = (row.get(column, "") for column in columns)
    return [formatting.number(value) if isinstance(value, float) else str(value) for value in values]


def gate_text(gate: GateSettings, *, has_champion: bool) -> str:
    """Return the gate's condition in words."""
    limit = "at most" if gate.minimized else "at least"
    minimum = f"no {gate.limit_name} set" if gate.limit is None else f"{limit} {gate.limit:g}"
    parts = [f"{gate.label}, {minimum}" if gate.limit is None else f"{gate.label} {minimum}"]
    if has_champion and gate.margin > 0:
        parts.append(f"better than the champion’s by at least {gate.margin:g}")
    elif has_champion and gate.margin < 0:
        parts.append(f"worse than the champion’s by no more than {-gate.margin:g}")
    elif has_champion:
        parts.append(f"{'at least as good as' if gate.tested is None else 'better than'} the champion’s")
    if has_champion and gate.tested is not None:
        parts.append(f"significantly (p at most {gate.tested:g})")
    elif has_champion and gate.significance == "auto" and gate.margin >= 0:
        parts.append("significantly better on a test split that was used before")
    return ", ".join(parts)


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
    return "image", page.data_uri(kind, content)


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
    return page.data_uri(kind.lower(), image), largest <= PIXELATED_PIXELS


def _provenance(model: Measured, manifest: Manifest) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the columns of the provenance section: model and training from model.json, and the data set."""
    about = {key: value for key, value in model.description.items() if key not in _OF_DATA}
    if (spent := model.folder / SPENT_FILE).is_file():
        about["time"] = json.loads(spent.read_bytes())["text"]
    if not any(size := about.pop("image_size", None) or []):
        about.pop("channels", None)
    else:
        channels = {1: ", grayscale", 3: ", color"}.get(about.pop("channels", None), "")
        about["image_size"] = f"{size[0]} × {size[1]} pixels{channels}"
    if not manifest.resize:
        about.pop("resize_mode", None)
    if "variables_bytes" in about:
        size, trainable = about.pop("variables_bytes"), about.pop("trainable_bytes", 0)
        about["weights"] = f"{size:,} bytes, {trainable / max(size, 1):.1%} trainable"
    other_entries = {key: key.replace("_", " ").capitalize() for key in about if key not in (*_MODEL, *_TRAINING)}
    inputs = [f"{name} ({data_input.kind})" for name, data_input in manifest.inputs.items()]
    more = len(inputs) - INPUTS_NAMED
    data = {
        "Data set": manifest.name,
        "Source": manifest.source,
        "Splits": ", ".join(f"{name} {split.examples:,}" for name, split in manifest.splits.items()),
        "Task": manifest.task,
        "Labels" if manifest.task == "multilabel" else "Classes": f"{len(manifest.classes):,}"
        if manifest.classes
        else "",
        "Target": manifest.target_name if manifest.target else "",
        "Inputs": ", ".join(inputs[:INPUTS_NAMED]) + (f" and {more:,} more" if more > 0 else ""),
        "Encodings": ", ".join(manifest.encodings),
        f"Skipped {manifest.noun}s": manifest.skipped_text.replace(f" {manifest.noun}s skipped", ""),
        "Damaged images": f"{manifest.checked.damaged:,}" if manifest.checked and manifest.checked.damaged else "",
        "Fingerprint": manifest.fingerprint,
    }
    return [
        ("Model", _entries(about, _MODEL)),
        ("Training", _entries(about, _TRAINING | other_entries)),
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
        return formatting.brief(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
