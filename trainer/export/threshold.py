"""The decision threshold of a model of two classes: chosen on the validation split, part of the exported model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipway.core import events
from slipway.core.manifest import Manifest
from slipway.trainer.export.examples import predictions

# Returns the decision threshold of a network; see `choose`.
Decision: TypeAlias = Callable[[Callable[[Any], Any]], float | None]
SPLIT = "validation"
TOGETHER = 256

logger = logging.getLogger(__name__)


def choose(rule: str | float | None, data: Path, manifest: Manifest, network: Callable[[Any], Any]) -> float | None:
    """Return the least probability of the second class at which a model predicts it; None if it is the more probable.

    Args:
        rule: `train.threshold`.
        data: The data set.
        manifest: Its manifest.
        network: Maps the inputs, as tensors of TensorFlow, to the network's outputs, [batch, outputs].
    """
    if rule is None or isinstance(rule, float):
        return rule
    if SPLIT not in manifest.splits or not manifest.splits[SPLIT].shards:
        logger.warning("threshold %s: there is no validation split; the more probable class is predicted", rule)
        return None
    scores, positive = _validated(data, manifest, network)
    probability = best(rule, scores, positive)
    events.message(
        f"{manifest.classes[1]} is predicted from a probability of {probability:.4f}: {rule} on the validation split"
    )
    return probability


def best(rule: str, scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """Return the threshold with the highest F1 or Youden's index, halfway to the next lower score.

    Args:
        rule: f1 or youden: the true minus the false positive rate.
        scores: The probabilities of the positive class.
        positive: Whether each example is of this class.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], positive[order]
    true, false = np.cumsum(hits), np.cumsum(~hits)
    last = np.append(ranked[1:] < ranked[:-1], True)  # of those with one score
    negatives, positives = max(int(false[-1]), 1), max(int(true[-1]), 1)
    quality = true / positives - false / negatives if rule == "youden" else 2 * true / (positives + true + false)
    index = int(np.where(last, quality, -np.inf).argmax())
    following = ranked[index + 1] if index + 1 < len(ranked) else 0.0
    return float((ranked[index] + following) / 2)


def _validated(
    data: Path, manifest: Manifest, network: Callable[[Any], Any]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the probabilities of the second class over the validation split, and which examples are of it."""
    import tensorflow as tf

    from slipway.trainer.data.features import Features, scaled

    with tf.device("CPU:0"):
        features, scores, labels = Features(manifest), [], []
        paths = [str(data / shard.file) for shard in manifest.splits[SPLIT].shards]
        for records in tf.data.TFRecordDataset(paths).batch(TOGETHER):
            inputs, expected = features.parse(records)
            outputs = np.asarray(network(scaled(inputs)), np.float64)
            scores.append(predictions(outputs, manifest)[:, 1])
            labels.append(expected.numpy() == 1)
    return np.concatenate(scores), np.concatenate(labels)
