"""Which inputs matter: how much worse a metric gets if an input's values are exchanged among the examples.

This is the permutation importance of scikit-learn's `sklearn.inspection.permutation_importance`, with the same
exchanges: https://scikit-learn.org/stable/modules/permutation_importance.html. It is measured on the validation split,
so that nobody chooses inputs by the test split. Its interval is that of a mean over the examples, of each one's
influence on the metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.measured import Batch, Importance
from slipway.components.evaluate.measures import EVALUATED
from slipway.components.evaluate.measures.base import Measures, chosen
from slipway.components.evaluate.measures.significance import Floats, NoInterval, quantile_95, standard_error
from slipway.components.evaluate.served_model import ServedModel
from slipway.components.evaluate.settings import GateSettings
from slipway.components.evaluate.slices import Slice
from slipway.core import events
from slipway.core.manifest import Manifest

SPLIT = "validation"
REPEATS, SEED = 5, 0
# Examples that are predicted for each exchange: as many as PREDICTIONS allow, of images fewer.
MAX_EXAMPLES, MIN_EXAMPLES = 1000, 100
PREDICTIONS, PREDICTIONS_OF_IMAGES = 100_000, 10_000


def example_count(data: Manifest) -> int:
    """Return on how many examples of the validation split the importance is measured; 0 without two inputs."""
    split, inputs = data.splits.get(SPLIT), len(data.all_inputs)
    if split is None or inputs < 2:
        return 0
    predictions = PREDICTIONS_OF_IMAGES if data.has_image else PREDICTIONS
    most = min(MAX_EXAMPLES, max(MIN_EXAMPLES, predictions // (REPEATS * inputs)))
    return min(most, split.examples)


def measure(
    served: ServedModel, data: Manifest, examples: Batch, gate: GateSettings, slices: Sequence[Slice], batch_size: int
) -> list[Importance]:
    """Return the importance of each input that the model uses, the most important first.

    Args:
        served: The model, which was measured on the test split before.
        data: The data set's manifest.
        examples: Examples of the validation split.
        gate: Its metric is what gets worse.
        slices: Parts of these examples.
        batch_size: Number of examples that are predicted at once.
    """
    names = served.used_inputs()
    orders = exchanges(len(examples.keys))
    whole = _predicted(served, examples, [np.arange(len(examples.keys))], "", batch_size)[0]
    intact, parts = _of(data, whole), [(part, _of(data, chosen(whole, part.mask))) for part in slices]
    measured = []
    for number, name in enumerate(names):
        events.progress(number, len(names), "inputs exchanged")
        repeats = _predicted(served, examples, orders, data.signature[name], batch_size)
        exchanged = [_of(data, repeat) for repeat in repeats]
        by_slice = {
            part.name: _loss(before, [_of(data, chosen(repeat, part.mask)) for repeat in repeats], gate)
            for part, before in parts
        }
        if not math.isnan(loss := _loss(intact, exchanged, gate)):
            defined = {part: on_part for part, on_part in by_slice.items() if not math.isnan(on_part)}
            measured.append(Importance(name, loss, _interval(loss, intact, exchanged, gate.name), defined))
    return sorted(measured, key=lambda importance: -importance.loss)


def exchanges(count: int) -> list[NDArray[np.intp]]:
    """Return the orders of `count` examples that scikit-learn draws with random_state=SEED, one for each repeat."""
    seed = np.random.RandomState(SEED).randint(np.iinfo(np.int32).max + 1)
    draws, exchange, order, orders = np.random.RandomState(seed), np.arange(count), np.arange(count), []
    for _ in range(REPEATS):
        draws.shuffle(exchange)
        order = order[exchange]  # each repeat exchanges what the one before has left
        orders.append(order)
    return orders


def _predicted(
    served: ServedModel, examples: Batch, orders: Sequence[NDArray[np.intp]], exchanged: str, batch_size: int
) -> list[Any]:
    """Return the predictions of the examples for each order, in which the values of the input `exchanged` are."""
    import tensorflow as tf

    count = len(examples.keys)
    features = {}
    for stored, values in examples.features.items():
        taken = np.concatenate(orders) if stored == exchanged else np.tile(np.arange(count), len(orders))
        features[stored] = tf.gather(values, taken)
    everything = Batch(features, np.tile(examples.labels.T, len(orders)).T, examples.keys * len(orders))
    parts = [everything.part(start, start + batch_size) for start in range(0, len(everything.keys), batch_size)]
    answers = np.concatenate([served.predict(part) for part in parts])
    return [
        served.predictions(examples, answers[start : start + count]) for start in range(0, count * len(orders), count)
    ]


def _of(data: Manifest, predictions: Any) -> Measures[Any]:
    """Return the measures of predictions."""
    measures = EVALUATED[data.task].of(data, len(next(iter(vars(predictions).values()))))
    measures.update(predictions)
    return measures


def _loss(before: Measures[Any], repeats: Sequence[Measures[Any]], gate: GateSettings) -> float:
    """Return by how much the gate's metric gets worse in the mean, NaN if it is undefined."""
    sign = 1 if gate.minimized else -1
    values = [measures.metrics().get(gate.name, math.nan) for measures in (before, *repeats)]
    return sign * float(np.mean([value - values[0] for value in values[1:]]))


def _interval(
    loss: float, before: Measures[Any], repeats: Sequence[Measures[Any]], metric: str
) -> tuple[float, float] | None:
    """Return the 95% confidence interval of a loss, None if the metric has none."""
    try:
        influences = [_influences(measures, metric) for measures in (before, *repeats)]
        error, freedom = standard_error(np.mean(influences[1:], axis=0) - influences[0])
    except NoInterval:
        return None
    half = quantile_95(freedom) * error
    return loss - half, loss + half


def _influences(measures: Measures[Any], metric: str) -> Floats:
    if metric == "accuracy" and measures.correct is not None:
        return np.asarray(measures.correct - measures.correct.mean(), np.float64)
    if (influences := measures.influences().get(metric)) is None:
        raise NoInterval(f"{metric} has no influences")
    return influences


def first(batches: Iterable[Batch], count: int) -> Batch:
    """Return the first `count` examples of batches as one."""
    import tensorflow as tf

    taken: list[Batch] = []
    keys: list[bytes] = []
    for batch in batches:
        taken.append(batch)
        keys += batch.keys
        if len(keys) >= count:
            break
    features = {name: tf.concat([batch.features[name] for batch in taken], 0) for name in taken[0].features}
    return Batch(features, np.concatenate([batch.labels for batch in taken]), keys).part(0, count)
