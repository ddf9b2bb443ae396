"""Evaluation of a model, and of the champion it has to beat, in one streaming pass over the test split."""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slipway.components.evaluate.gate import EvaluateSettings, Opponent, Verdict, decide
from slipway.components.evaluate.served_model import Batch, Measured, ServedModel
from slipway.core import events, manifest
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest, Split
from slipway.core.values import JsonObject
from slipway.trainer.engines.quick_import import import_before_tensorflow, import_tensorflow

SPLIT = "test"
FEATURES = {"image": "string", "label": "int64", "key": "string"}
EVENT_SECONDS = 0.5
REPORT_LIBRARIES = ("matplotlib.figure", "matplotlib.backends.backend_svg", "jinja2")
# Larger confusion matrices do not fit into an artifact's metadata; the report contains them in full.
LARGEST_MATRIX = 100
CURVE_POINTS = 100
NO_CHAMPION_YET = "There is no champion yet."
NO_CHAMPION_ASKED = "Not compared with a champion (evaluate.champion=none)."


class Classification(Protocol):
    """The methods of kfp's ClassificationMetrics that are used here."""

    def log_confusion_matrix(self, categories: list[str], matrix: list[list[int]]) -> None: ...
    def log_roc_curve(self, fpr: list[float], tpr: list[float], threshold: list[float]) -> None: ...


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation; `champion` is None if there was none to compare with."""

    manifest: Manifest
    model: Measured
    champion: Measured | None
    verdict: Verdict
    settings: EvaluateSettings

    def as_dict(self) -> JsonObject:
        """Return what a run's record stores: both models' metrics and the verdict."""
        return {
            "metrics": self.model.metrics,
            "metric": self.settings.gate.metric,
            "champion_metrics": self.champion.metrics if self.champion else None,
            "verdict": self.verdict.as_dict(),
        }


def log_classification(evaluation: Evaluation, classification: Classification) -> None:
    """Log the model's confusion matrix and its ROC curve, averaged over the classes at each threshold."""
    classes, measures = evaluation.manifest.classes, evaluation.model.measures
    if len(classes) <= LARGEST_MATRIX:
        classification.log_confusion_matrix(classes, measures.confusion.counts[:, :-1].tolist())
    else:
        logging.info("%d classes: the confusion matrix is in the report only", len(classes))
    curve = measures.scores.average_curve()
    if curve is not None:
        curve = curve.thinned(CURVE_POINTS)
        classification.log_roc_curve(
            curve.false_positive_rate.tolist(), curve.true_positive_rate.tolist(), curve.thresholds.tolist()
        )


def evaluate(settings: EvaluateSettings, model: Path, data: Path, champion: Path | None) -> Evaluation:
    """Measure the model in folder `model`, and the champion, on the test split of the data set in `data`.

    Args:
        settings: How to evaluate; with `champion="none"`, the argument `champion` is ignored.
        model: The model's folder.
        data: The prepared data set's folder.
        champion: The folder of the registered version to beat, or None.

    Raises:
        UserError: The data set has no test split or a damaged shard; a model fails to load, has other classes than
            the data set, or returns NaN or infinite probabilities; an image cannot be decoded.
    """
    description = manifest.read(data)
    split = _test_split(description, data)
    events.phase("loading TensorFlow")
    import_before_tensorflow()  # either model may be of any engine
    import_tensorflow(keras=False)
    threading.Thread(target=_import_for_the_report, daemon=True).start()
    events.phase("loading the model")
    opponent_folder = champion if settings.champion == "registered" else None
    challenger = ServedModel(model, description, settings.worst_examples, is_champion=False)
    opponent = None
    if opponent_folder is not None:
        opponent = ServedModel(opponent_folder, description, 0, is_champion=True)
    events.phase("compiling the model")  # TensorFlow compiles on the first batch
    _measure(data, split, settings.batch_size, [challenger, opponent] if opponent else [challenger])
    measured = challenger.measured()
    beaten = opponent.measured() if opponent else None
    without = NO_CHAMPION_YET if settings.champion == "registered" else NO_CHAMPION_ASKED
    verdict = decide(settings.gate, measured.metrics, _as_opponent(beaten, measured), without)
    return Evaluation(description, measured, beaten, verdict, settings)


def _import_for_the_report() -> None:
    """Import the report's libraries while TensorFlow computes; a failed import is raised again by the report."""
    with contextlib.suppress(ImportError):
        for name in REPORT_LIBRARIES:
            importlib.import_module(name)


def _as_opponent(champion: Measured | None, model: Measured) -> Opponent | None:
    if champion is None:
        return None
    identical = champion.weights_checksum is not None and champion.weights_checksum == model.weights_checksum
    return Opponent(champion.name, champion.metrics, identical, champion.unknown, champion.foreign)


def _test_split(description: Manifest, data: Path) -> Split:
    split = description.splits.get(SPLIT)
    if split is None or not split.examples:
        found = "is empty" if split else "does not exist"
        raise UserError(
            f"The data set in {data} cannot be evaluated on: its split {SPLIT!r} {found}.",
            setting="data.split",
            value=", ".join(f"{name}: {part.examples}" for name, part in description.splits.items()),
            allowed="a test split of at least one example",
            fix=f"add a folder {SPLIT!r} to the source, or set data.split.{SPLIT} above 0 for a source without splits",
        )
    manifest.verify(data, split.shards)
    return split


def _measure(data: Path, split: Split, batch_size: int, models: list[ServedModel]) -> None:
    """Run every model on every batch of the split."""
    done, started = 0, time.monotonic()
    reported_at = started
    for batch in _batches([data / shard.file for shard in split.shards], batch_size):
        for model in models:
            model.update(batch)
        done += len(batch.labels)
        now = time.monotonic()
        if now - reported_at >= EVENT_SECONDS or done == split.examples:
            reported_at = now
            events.progress(done, split.examples, "examples", examples_per_second=done / max(now - started, 1e-9))


def _batches(shards: list[Path], batch_size: int) -> Iterator[Batch]:
    """Stream the examples in order; the last batch may be smaller."""
    import tensorflow as tf

    features = {name: tf.io.FixedLenFeature([], kind) for name, kind in FEATURES.items()}
    records = tf.data.TFRecordDataset([str(path) for path in shards], buffer_size=1 << 20).batch(batch_size)
    for parsed in records.map(lambda batch: tf.io.parse_example(batch, features)).prefetch(2):
        yield Batch(parsed["image"], parsed["label"].numpy(), list(parsed["key"].numpy()))
