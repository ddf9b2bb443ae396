"""Evaluation of a model, and of the champion it has to beat, in one streaming pass over the test split."""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate import contract
from slipway.components.evaluate.gate import INTERVALS, EvaluateSettings, GateSettings, Opponent, Verdict, decide
from slipway.components.evaluate.measures import EVALUATED, Baseline
from slipway.components.evaluate.measures.base import compare
from slipway.components.evaluate.measures.classification import ClassificationMeasures
from slipway.components.evaluate.served_model import Answers, Batch, Mask, Measured, ModelFolder, OtherData, ServedModel
from slipway.core import events, manifest, seen
from slipway.core.cores import available_cores
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest, Split, signature_name
from slipway.core.values import JsonObject
from slipway.serving.model import TYPES, read_json
from slipway.trainer.engines.quick_import import import_before_tensorflow, import_tensorflow
from slipway.trainer.tasks import TASKS

SPLIT = "test"
EVENT_SECONDS = 0.5
# Larger confusion matrices do not fit into an artifact's metadata; the report contains them in full.
LARGEST_MATRIX = 100
CURVE_POINTS = 100
# If test examples are excluded from the comparison with the champion, fewer are too few, unless half of all remain.
FEWEST_COMPARED = 50
# Batches of at most so many decoded bytes are predicted in several threads. With larger ones, each operation of a
# network uses all cores itself, and two batches at once would need twice the memory.
SMALL_BATCH_BYTES, MOST_THREADS = 8 * 1024**2, 4
MAY_INCLUDE = "The comparison may include test examples on which the champion was trained or selected: "
UNRECORDED = f"{MAY_INCLUDE}there is no record of them (seen.u64)."
NO_CHAMPION_YET = "There is no champion yet."
NO_CHAMPION_ASKED = "Not compared with a champion (evaluate.champion=none)."


class Classification(Protocol):
    """The methods of kfp's ClassificationMetrics that are used here."""

    def log_confusion_matrix(self, categories: list[str], matrix: list[list[int]]) -> None: ...
    def log_roc_curve(self, fpr: list[float], tpr: list[float], threshold: list[float]) -> None: ...


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation; `champion` is None if there was none to compare with.

    `baseline` has the metrics of a constant prediction, {} without a training split.
    `unseen` are the categories of the split that the training split does not have.
    """

    manifest: Manifest
    model: Measured
    champion: Measured | None
    verdict: Verdict
    settings: EvaluateSettings
    unseen: list[Unseen]
    baseline: Mapping[str, float]

    def as_dict(self) -> JsonObject:
        """Return what a run's record stores: both models' metrics and the verdict."""
        return {
            "metrics": self.model.metrics,
            INTERVALS: {name: list(interval) for name, interval in self.model.intervals.items()},
            "metric": self.settings.gate.name,
            "champion_metrics": self.champion.metrics if self.champion else None,
            "baseline_metrics": dict(self.baseline),
            "verdict": self.verdict.as_dict(),
        }


@dataclass(frozen=True)
class Unseen:
    """The values of a category input that the training split does not have, most frequent first, with their counts."""

    input: str
    examples: int
    categories: list[tuple[str, int]]


class UnseenCategories:
    """Counts the categories of a split's examples that the inputs' vocabularies do not have."""

    def __init__(self, description: Manifest) -> None:
        categories = {name: each for name, each in description.inputs.items() if each.kind == "category"}
        self._vocabularies = {name: frozenset(each.vocabulary) for name, each in categories.items()}
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in categories}
        self._examples = dict.fromkeys(categories, 0)

    def update(self, batch: Batch) -> None:
        """Count the unseen categories of a batch."""
        for name, vocabulary in self._vocabularies.items():
            for row in batch.features[name].numpy().reshape(len(batch.keys), -1).tolist():
                missing = [text for each in row if (text := each.decode(errors="replace")) not in vocabulary]
                self._counts[name].update(missing)
                self._examples[name] += bool(missing)

    def found(self) -> list[Unseen]:
        """Return the inputs with unseen categories."""
        return [
            Unseen(name, self._examples[name], counts.most_common()) for name, counts in self._counts.items() if counts
        ]


def log_classification(evaluation: Evaluation, classification: Classification) -> None:
    """Log the model's confusion matrix and its ROC curve, averaged over the classes at each threshold."""
    classes, measures = evaluation.manifest.classes, evaluation.model.measures
    if not isinstance(measures, ClassificationMeasures):
        return
    if len(classes) <= LARGEST_MATRIX:
        classification.log_confusion_matrix(classes, measures.confusion.counts[:, :-1].tolist())
    else:
        logging.info("%d classes: the confusion matrix is in the report only", len(classes))
    curve = measures.scored.average_curve()
    if curve is not None:
        curve = curve.thinned(CURVE_POINTS)
        classification.log_roc_curve(
            curve.false_positive_rate.tolist(), curve.true_positive_rate.tolist(), curve.thresholds.tolist()
        )


def evaluate(
    settings: EvaluateSettings, model: Path, data: Path, champion: Path | None, serve_module: str = ""
) -> Evaluation:
    """Measure the model in folder `model`, and the champion, on the test split of the data set in `data`.

    Args:
        settings: How to evaluate; with `champion="none"`, the argument `champion` is ignored.
        model: The model's folder.
        data: The prepared data set's folder.
        champion: The folder of the registered version to beat, or None.
        serve_module: What loads the model for serving (serve.module); "" if Slipway does.

    Raises:
        UserError: The data set has no test split or a damaged shard; a model fails to load, has other classes than
            the data set, or returns NaN or infinite probabilities; an image cannot be decoded; serve.module fails.
    """
    description = manifest.read(data)
    split = _test_split(description, data)
    events.phase("loading TensorFlow")
    import_before_tensorflow()  # either model may be of any engine
    import_tensorflow(keras=False)
    events.phase("loading the model")
    opponent_folder = champion if settings.champion == "registered" else None
    hashes = seen.of_split(data, description, SPLIT)
    compared = None if opponent_folder is None else unseen_by(hashes, model, opponent_folder)
    challenger = ServedModel(model, description, split.examples, settings.worst_examples, compared, is_champion=False)
    opponent, other = None, None
    if opponent_folder is not None:
        try:
            _check_enough(compared)
            opponent = ServedModel(opponent_folder, description, split.examples, 0, compared, is_champion=True)
        except OtherData as reason:
            name = ModelFolder(opponent_folder, {}, read_json(opponent_folder / "metadata.json")).name
            other = Opponent(name, {}, incomparable=str(reason))
    events.phase("compiling the model")  # TensorFlow compiles on the first batch
    unseen, constant = UnseenCategories(description), Baseline(description, split.examples)
    models = [challenger, opponent] if opponent else [challenger]
    _measure(data, description, split, settings.batch_size, models, unseen, constant)
    measured = challenger.measured()
    beaten = opponent.measured() if opponent else None
    without = NO_CHAMPION_YET if settings.champion == "registered" else NO_CHAMPION_ASKED
    gate = settings.gate.of(description.task)
    _check_defined(gate, description, measured)
    baseline = constant.metrics()
    is_recorded = hashes is not None and opponent_folder is not None and seen.seen_by(opponent_folder) is not None
    champion_found = other or _as_opponent(beaten, measured, gate.name, is_recorded=is_recorded)
    verdict = decide(gate, measured.metrics, champion_found, without, baseline=baseline)
    if serve_module:
        verdict = verdict.unless(contract.module_fault(model, serve_module))
    elif challenger.sample:
        verdict = verdict.unless(contract.fault(challenger.model, challenger.sample))
    settings = settings.model_copy(update={"gate": gate})
    return Evaluation(description, measured, beaten, verdict, settings, unseen.found(), baseline)


def unseen_by(hashes: NDArray[np.uint64] | None, *models: Path) -> Mask | None:
    """Return whether each of the examples with these hashes is one that none of the models has seen; None for all.

    A model has seen what it was trained on, and what it was selected on, the validation split.
    """
    found = [each for each in map(seen.seen_by, models) if each is not None]
    if hashes is None or not found:
        return None
    unseen: Mask = ~np.isin(hashes, np.concatenate(found))
    return None if unseen.all() else unseen


def _check_enough(compared: Mask | None) -> None:
    """Raise OtherData if so few examples remain that their comparison would say little."""
    if compared is None:
        return
    kept, examples = int(compared.sum()), len(compared)
    if kept < min(FEWEST_COMPARED, examples / 2):
        raise OtherData(
            f"or this model was trained or selected on {examples - kept:,} of the {examples:,} test examples; "
            f"the other {kept:,} are too few to compare on (at least {FEWEST_COMPARED}, or half)"
        )


def _as_opponent(champion: Measured | None, model: Measured, metric: str, *, is_recorded: bool) -> Opponent | None:
    if champion is None:
        return None
    ours, kept, examples = model.compared.metrics(), model.compared.examples, model.measures.examples
    identical, comparison = champion.has_weights_of(model), compare(metric, model.compared, champion.measures)
    basis = missing = ""
    if kept < examples:
        basis = (
            f"The comparison excludes {examples - kept:,} of the {examples:,} test examples, on which the champion was "
            "trained or selected."
        )
        if metric in model.metrics and not {metric} <= ours.keys() & champion.metrics.keys():
            missing = f"was trained or selected on {examples - kept:,} of the {examples:,} test examples; "
            missing += f"the other {kept:,} do not define the metric {metric}"
    return Opponent(
        champion.name,
        champion.metrics,
        identical,
        comparison,
        champion.unknown,
        champion.foreign,
        incomparable=missing,
        basis=basis,
        caveat="" if is_recorded else UNRECORDED,
        ours=ours,
    )


def _check_defined(gate: GateSettings, description: Manifest, model: Measured) -> None:
    """Raise UserError if the gate's metric is one of the task's, but undefined on this split."""
    if gate.name in model.metrics or gate.name not in (metrics := TASKS[description.task].metrics):
        return
    raise UserError(
        f"The test split does not define the {gate.label}: {metrics[gate.name].meaning}.",
        setting="evaluate.gate.metric",
        value=gate.name,
        allowed=", ".join(name for name in metrics if name in model.metrics),
        fix="choose another metric, or let the test split have examples of all classes and different targets",
    )


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


def _measure(
    data: Path,
    description: Manifest,
    split: Split,
    batch_size: int,
    models: list[ServedModel],
    unseen: UnseenCategories,
    constant: Baseline,
) -> None:
    """Run every model on every batch of the split."""
    done, started = 0, time.monotonic()
    reported_at = started
    stream = batches([data / shard.file for shard in split.shards], description, batch_size)
    small = description.decoded_bytes * batch_size <= SMALL_BATCH_BYTES
    for batch, answers in _predicted(stream, models, min(available_cores(), MOST_THREADS) if small else 1):
        unseen.update(batch)
        constant.update(batch.labels)
        for model, answer in zip(models, answers, strict=True):
            model.update(batch, answer)
        done += len(batch.labels)
        now = time.monotonic()
        if now - reported_at >= EVENT_SECONDS or done == split.examples:
            reported_at = now
            events.progress(done, split.examples, "examples", examples_per_second=done / max(now - started, 1e-9))


def _predicted(
    stream: Iterator[Batch], models: list[ServedModel], threads: int
) -> Iterator[tuple[Batch, list[Answers]]]:
    """Yield each batch, in order, with the answers of the models, which predict ahead in threads."""
    waiting: deque[tuple[Batch, list[Future[Answers]]]] = deque()
    pool = ThreadPoolExecutor(threads, "predicting")
    try:
        for batch in stream:
            waiting.append((batch, [pool.submit(model.predict, batch) for model in models]))
            if len(waiting) > threads:
                yield _answered(*waiting.popleft())
        yield from itertools.starmap(_answered, waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def _answered(batch: Batch, answers: list[Future[Answers]]) -> tuple[Batch, list[Answers]]:
    return batch, [answer.result() for answer in answers]


def batches(shards: list[Path], description: Manifest, batch_size: int) -> Iterator[Batch]:
    """Stream the examples in order; the last batch may be smaller."""
    import tensorflow as tf

    from slipway.trainer.data.images import as_it_is

    row, inputs = EVALUATED[description.task], description.all_inputs
    label = tf.io.FixedLenFeature([len(description.classes)] if row.label_per_name else [], row.label)
    features = {"label": label, "key": tf.io.FixedLenFeature([], "string")}
    for name, each in inputs.items():
        features[name] = tf.io.FixedLenFeature([] if each.kind == "image" else each.shape, TYPES[each.kind])
    records = tf.data.TFRecordDataset([str(path) for path in shards], buffer_size=1 << 20).batch(batch_size)
    parse = as_it_is(lambda batch: tf.io.parse_example(batch, features))
    for parsed in records.map(parse).prefetch(2):
        raw = {signature_name(name, each): parsed[name] for name, each in inputs.items()}
        yield Batch(raw, parsed["label"].numpy(), list(parsed["key"].numpy()))
