"""The evaluation: measure a model and the champion that it has to beat, and apply the gate.

Both are measured on the test split in one streaming pass, or as `custom` says.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate import contract, custom, importance, ledger, occlusion, slices
from slipway.components.evaluate.gate import AUTOMATIC, INTERVALS, Level, Opponent, Verdict, decide
from slipway.components.evaluate.ledger import Ledger
from slipway.components.evaluate.measured import (
    SPLIT,
    UNRECORDED,
    Batch,
    Data,
    Importance,
    Mask,
    Measured,
    Measurement,
    Unseen,
    unseen_by,
)
from slipway.components.evaluate.measures import EVALUATED, Baseline
from slipway.components.evaluate.measures.base import comparisons
from slipway.components.evaluate.served_model import OtherData, ServedModel
from slipway.components.evaluate.settings import EvaluateSettings, GateSettings
from slipway.components.prepare_data.validation.leaks import near_model_notes
from slipway.core import events, locked, manifest, seen
from slipway.core.cores import available_cores
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest, Split
from slipway.core.values import JsonObject
from slipway.core.words import has_unknown_words
from slipway.serving.model import TYPES, import_tensorflow, is_model
from slipway.trainer.metrics.history import METRICS_FILE
from slipway.trainer.tasks import TASKS

EVENT_SECONDS = 0.5
# If test examples are excluded from the comparison with the champion, fewer are too few, unless half of all remain.
FEWEST_COMPARED = 50
# Batches of at most so many decoded bytes are predicted in several threads. With larger ones, each operation of a
# network uses all cores itself, and two batches at once would need twice the memory.
SMALL_BATCH_BYTES, MAX_THREADS = 8 * 1024**2, 4


@dataclass(frozen=True, kw_only=True)
class Evaluation(Measurement):
    """The result of an evaluation: what was measured, and the gate's verdict."""

    verdict: Verdict

    def as_dict(self) -> JsonObject:
        """Return what a run's record stores: both models' metrics and the verdict."""
        record: JsonObject = {
            "metrics": self.model.metrics,
            "metric": self.settings.gate.name,
            "champion_metrics": self.champion.metrics if self.champion else None,
            "verdict": self.verdict.as_dict(),
        }
        if self.manifest is not None:
            record[INTERVALS] = {name: list(interval) for name, interval in self.model.intervals.items()}
            record["baseline_metrics"] = dict(self.baseline)
            record["importance"] = {measured.input: measured.as_dict() for measured in self.importance}
            record["slices"] = {
                part.name: {"metrics": part.measures.metrics(), INTERVALS: part.measures.intervals()}
                for part in self.model.slices
            }
        return record


def evaluate(
    settings: EvaluateSettings,
    model: Path,
    data: Data,
    champion: Path | None,
    serve_module: str = "",
    seed_metrics: Sequence[float] = (),
    run: str = "",
) -> Evaluation:
    """Measure the model in folder `model`, and the champion, and apply the gate.

    Args:
        settings: How to evaluate; with `champion="none"`, the argument `champion` is ignored.
        model: The model's folder.
        data: The prepared data set's folder, or the data of a custom program.
        champion: The folder of the registered version to beat, or None.
        serve_module: What loads the model for serving (serve.module); "" if Slipway does.
        seed_metrics: The gate's metric of the same training with other seeds.
        run: The run's id, for the test split's ledger.

    Raises:
        UserError: A model or the data cannot be evaluated, see `measure_on_split` and `custom.measure`; a metric that
            the gate needs is missing; serve.module fails.
    """
    opponent, without = champion, "There is no champion yet."
    if settings.champion == "none":
        opponent, without = None, "Not compared with a champion (evaluate.champion=none)."
    if isinstance(data, Path) and not is_custom(settings, model):
        measurement = measure_on_split(settings, model, data, opponent)
    else:
        measurement = custom.measure(settings, model, data, opponent)
    looks = _looks_at(measurement)
    verdict = decide(
        measurement.settings.gate,
        measurement.model.metrics,
        measurement.opponent,
        without,
        measurement.how,
        measurement.baseline,
        measurement.slices,
        measurement.model.intervals.get(measurement.settings.gate.name),
        [*measurement.notes, *(looks.problems if looks else ())],
        seed_metrics,
        _level(measurement, looks),
    )
    if serve_module:
        verdict = verdict.unless(contract.module_fault(model, serve_module))
    elif measurement.sample:
        verdict = verdict.unless(contract.fault(*measurement.sample))
    if looks is not None:
        _record(looks, measurement, run, verdict)
    return Evaluation(**vars(measurement), verdict=verdict)


def _looks_at(measurement: Measurement) -> Ledger | None:
    """Return the ledger of the test split on which a model was measured; None if Slipway did not measure it."""
    if measurement.manifest is None or not isinstance(measurement.data, Path):
        return None
    hashes = seen.of_split(measurement.data, measurement.manifest, SPLIT)
    return ledger.read(ledger.ledger_of(measurement.data, measurement.manifest.splits[SPLIT], hashes))


def _level(measurement: Measurement, looks: Ledger | None) -> Level | None:
    """Return the level at which the difference from the champion is tested; None for that of the gate."""
    gate, champion = measurement.settings.gate, measurement.champion
    if looks is None or champion is None or gate.significance is None:
        return None
    whole = gate.tested
    if whole is None:
        if gate.margin < 0 or not looks.has(champion.weights_checksum):
            return None
        whole = AUTOMATIC
    return Level(whole, looks.number_of(measurement.model.weights_checksum, champion.weights_checksum))


def _record(looks: Ledger, measurement: Measurement, run: str, verdict: Verdict) -> None:
    """Add the model to the ledger of the test split; say so if it cannot be written."""
    model, metric = measurement.model, measurement.settings.gate.name
    try:
        ledger.add(
            looks, run=run, model=model.weights_checksum or str(model.folder), metric=metric,
            value=model.metrics[metric], decision=verdict.decision,
        )  # fmt: skip
    except OSError as error:
        events.message(f"The ledger of the test split, {looks.folder}, cannot be written: {error.strerror}.")


def is_custom(settings: EvaluateSettings, model: Path) -> bool:
    """Return whether Slipway does not evaluate a model itself, on the test split of the prepared data set.

    It does not with `evaluate.module`, if its program reported metrics, and if it could not load the model.
    """
    return settings.module is not None or (model / METRICS_FILE).is_file() or not is_model(model)


def measure_on_split(settings: EvaluateSettings, model: Path, data: Path, champion: Path | None) -> Measurement:
    """Measure both models on the test split of the data set in `data`.

    Raises:
        UserError: The data set has no test split or a damaged shard; a model fails to load, has other classes than
            the data set, or returns NaN or infinite probabilities; an image cannot be decoded; the gate's metric is
            undefined on the split.
    """
    description = manifest.read(data)
    split = _test_split(description, data)
    events.phase("loading TensorFlow")
    import_tensorflow()
    events.phase("loading the model")
    hashes = seen.of_split(data, description, SPLIT)
    compared = None if champion is None else unseen_by(hashes, model, champion)
    shards = [locked.folder_of(data, SPLIT) / shard.file for shard in split.shards]
    parts = slices.find(settings.slices, description, lambda: batches(shards, description, settings.batch_size))
    served, opponent = None, None
    if champion is not None:
        try:
            _check_enough(compared)
            served = ServedModel(champion, description, split.examples, 0, compared, parts, is_champion=True)
        except OtherData as reason:
            opponent = Opponent(Measured(champion, {}, {}).name, {}, incomparable=str(reason))
            compared = None
    challenger = ServedModel(
        model, description, split.examples, settings.worst_examples, compared, parts, is_champion=False
    )
    events.phase("compiling the model")  # TensorFlow compiles on the first batch
    unseen, constant = UnseenValues(description), Baseline(description, split.examples)
    models = [challenger, served] if served else [challenger]
    done, started = 0, time.monotonic()
    reported_at = started
    for batch, answers in _predicted(shards, description, settings.batch_size, models):
        unseen.update(batch)
        constant.update(batch.labels)
        for served_model, answer in zip(models, answers, strict=True):
            served_model.update(batch, answer)
        done += len(batch.labels)
        now = time.monotonic()
        if now - reported_at >= EVENT_SECONDS or done == split.examples:
            reported_at = now
            events.progress(done, split.examples, "examples", examples_per_second=done / max(now - started, 1e-9))
    measured = challenger.measured()
    beaten = served.measured() if served else None
    gate = settings.gate.of(description.task)
    _check_defined(gate, description, measured)
    if beaten is not None:
        is_recorded = hashes is not None and seen.seen_by(beaten.folder) is not None
        opponent = _as_opponent(beaten, measured, gate.name, caveat="" if is_recorded else UNRECORDED)
    return Measurement(
        settings=settings.model_copy(update={"gate": gate}),
        data=data,
        model=measured,
        champion=beaten,
        opponent=opponent,
        how="on the test split",
        manifest=description,
        sample=(challenger.model, challenger.sample) if challenger.sample else None,
        unseen=unseen.counted(),
        baseline=constant.metrics(),
        importance=_importance(settings, challenger, data, description, gate),
        occlusion=_occlusion(settings, challenger, description, measured),
        notes=[*challenger.notes(), *near_model_notes(data, description, measured.metrics)],
    )


def _importance(
    settings: EvaluateSettings, served: ServedModel, data: Path, description: Manifest, gate: GateSettings
) -> list[Importance]:
    """Return how much each input matters, [] if there is only one or no validation split."""
    count = importance.example_count(description)
    if not settings.importance or not count:
        return []
    events.phase("measuring which inputs matter")
    shards = [data / shard.file for shard in description.splits[importance.SPLIT].shards]
    examples = importance.first(batches(shards, description, settings.batch_size), count)
    parts = slices.find(settings.slices, description, lambda: iter([examples]))
    return importance.measure(served, description, examples, gate, parts, settings.batch_size)


def _occlusion(
    settings: EvaluateSettings, served: ServedModel, description: Manifest, measured: Measured
) -> occlusion.Maps:
    """Return the maps of the most confident errors of a classification of images, {} for other data."""
    if not settings.importance or description.task != "classification" or not description.is_image_only:
        return {}
    assert measured.measures is not None
    events.phase("looking at the most confident errors")
    return occlusion.maps(measured.measures.worst.examples, description, served.predict_images)


def _test_split(description: Manifest, data: Path) -> Split:
    split = description.splits.get(SPLIT)
    if split is None or not split.examples:
        state = "is empty" if split else "does not exist"
        raise UserError(
            f"The data set in {data} cannot be evaluated on: its split {SPLIT!r} {state}.",
            setting="data.split",
            value=", ".join(f"{name}: {part.examples}" for name, part in description.splits.items()),
            allowed="a test split of at least one example",
            fix=f"add a folder {SPLIT!r} to the source, or set data.split.{SPLIT} above 0 for a source without splits",
        )
    manifest.verify(locked.folder_of(data, SPLIT), split.shards)
    return split


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


class UnseenValues:
    """Counts the categories of a split's examples, and the texts, that the inputs' vocabularies do not have."""

    def __init__(self, description: Manifest) -> None:
        self._inputs = {name: read for name, read in description.inputs.items() if read.kind in ("category", "text")}
        self._vocabularies = {name: frozenset(read.vocabulary) for name, read in self._inputs.items()}
        self._stored = description.signature
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in self._inputs}
        self._examples = dict.fromkeys(self._inputs, 0)

    def update(self, batch: Batch) -> None:
        """Count the unseen values of a batch."""
        for name, vocabulary in self._vocabularies.items():
            is_text = self._inputs[name].kind == "text"
            for row in batch.features[self._stored[name]].numpy().reshape(len(batch.keys), -1).tolist():
                texts = [text.decode(errors="replace") for text in row]
                missing = [
                    text
                    for text in texts
                    if (has_unknown_words(text, vocabulary) if is_text else text not in vocabulary)
                ]
                self._counts[name].update(missing)
                self._examples[name] += bool(missing)

    def counted(self) -> list[Unseen]:
        """Return the inputs with unseen values."""
        return [
            Unseen(name, self._examples[name], counts.most_common(), is_text=self._inputs[name].kind == "text")
            for name, counts in self._counts.items()
            if counts
        ]


def _predicted(
    shards: list[Path], description: Manifest, batch_size: int, models: list[ServedModel]
) -> Iterator[tuple[Batch, list[NDArray[np.float32]]]]:
    """Yield each batch of the shards, in order, with the answers of the models, which predict ahead in threads."""
    small = description.decoded_bytes * batch_size <= SMALL_BATCH_BYTES
    threads = min(available_cores(), MAX_THREADS) if small else 1
    waiting: deque[tuple[Batch, list[Future[NDArray[np.float32]]]]] = deque()
    pool = ThreadPoolExecutor(threads, "predicting")

    def answered(batch: Batch, answers: list[Future[NDArray[np.float32]]]) -> tuple[Batch, list[NDArray[np.float32]]]:
        return batch, [answer.result() for answer in answers]

    try:
        for batch in batches(shards, description, batch_size):
            waiting.append((batch, [pool.submit(model.predict, batch) for model in models]))
            if len(waiting) > threads:
                yield answered(*waiting.popleft())
        yield from itertools.starmap(answered, waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def batches(shards: list[Path], description: Manifest, batch_size: int) -> Iterator[Batch]:
    """Stream the examples in order; the last batch may be smaller."""
    import tensorflow as tf

    from slipway.trainer.data.images import as_it_is

    measures, inputs = EVALUATED[description.task], description.all_inputs
    label = tf.io.FixedLenFeature([len(description.classes)] if measures.label_per_name else [], measures.label)
    features = {"label": label, "key": tf.io.FixedLenFeature([], "string")}
    for name, data_input in inputs.items():
        features[name] = tf.io.FixedLenFeature(data_input.stored_shape, TYPES[data_input.kind])
    records = tf.data.TFRecordDataset([str(path) for path in shards], buffer_size=1 << 20).batch(batch_size)
    parse = as_it_is(lambda batch: tf.io.parse_example(batch, features))
    for parsed in records.map(parse).prefetch(2):
        raw = {served: parsed[name] for name, served in description.signature.items()}
        yield Batch(raw, parsed["label"].numpy(), list(parsed["key"].numpy()))


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


def _as_opponent(champion: Measured, model: Measured, metric: str, *, caveat: str) -> Opponent:
    """Return the champion as the gate compares the model with it: on the examples that neither has seen."""
    assert model.measures is not None
    assert model.compared is not None
    assert champion.measures is not None
    ours, kept, examples = model.compared.metrics(), model.compared.examples, model.measures.examples
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
        champion.has_weights_of(model),
        comparisons(model.compared, champion.measures).get(metric),
        champion.unknown,
        champion.foreign,
        incomparable=missing,
        basis=basis,
        caveat=caveat,
        ours=ours,
    )
