"""What the trained network itself predicts on a few examples of the test split, stored beside the exported model.

The step evaluate sends the same examples through the serving code and compares: a model that answers otherwise when it
is served is not promoted. The step deploy sends `instances`, the examples as a request has them, to the endpoint. The
predictions are computed on the CPU, as GPUs round differently.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway.core.manifest import Manifest
from slipway.core.values import JsonObject

FILE_NAME = "examples.json"
SPLIT = "test"
EXAMPLES = 4

logger = logging.getLogger(__name__)


def write(folder: Path, data: Path, manifest: Manifest, network: Callable[[Any], Any]) -> None:
    """Write the split's first examples, their keys and the network's predictions on them, to `folder`.

    A data set without the split has no such file. A network that fails here is reported in the log only.

    Args:
        folder: The exported model's folder.
        data: The data set's folder.
        manifest: Its manifest.
        network: Maps the inputs, as tensors of TensorFlow, to the network's outputs, [batch, outputs].
    """
    split = manifest.splits.get(SPLIT)
    if split is None or not split.shards:
        return
    try:
        keys, instances, outputs = _predicted(data / split.shards[0].file, manifest, network)
    except Exception as error:  # of any library; the training has succeeded
        logger.warning("no predictions to compare the served model with: %s", error, exc_info=True)
        return
    values = predictions(outputs, manifest).tolist()
    content = {"split": SPLIT, "keys": keys, "instances": instances, "values": values}
    (folder / FILE_NAME).write_text(json.dumps(content) + "\n")


def predictions(outputs: NDArray[np.float64], manifest: Manifest) -> NDArray[np.float64]:
    """Return the probabilities, [batch, names], or the predictions in the target's unit, [batch], of outputs."""
    if manifest.target is not None:
        predicted = outputs[:, 0] * manifest.target.deviation[0] + manifest.target.mean[0]
        return np.exp(predicted) if manifest.target.logarithmic else predicted
    if manifest.task == "multilabel":
        return 1 / (1 + np.exp(-outputs))
    exponentials = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _predicted(
    shard: Path, manifest: Manifest, network: Callable[[Any], Any]
) -> tuple[list[str], list[JsonObject], NDArray[np.float64]]:
    import tensorflow as tf

    from slipway.trainer.data.features import Features, scaled

    features = Features(manifest)
    with tf.device("CPU:0"):
        records = list(tf.data.TFRecordDataset(str(shard)).take(EXAMPLES))
        raw = tf.stack(records)
        key = tf.io.parse_example(raw, {"key": tf.io.FixedLenFeature([], tf.string)})["key"]
        inputs, _ = features.parse(raw)
        outputs = np.asarray(network(scaled(inputs)), np.float64)
        stored = {name: values.numpy() for name, values in features.raw(raw).items()}
    names: dict[str, str] = {**manifest.signature}
    instances = [
        {names[name]: in_json(feature.kind, stored[name][index]) for name, feature in manifest.all_inputs.items()}
        for index in range(len(records))
    ]
    return [encoded.decode(errors="replace") for encoded in key.numpy()], instances, outputs


def in_json(kind: str, value: Any) -> Any:
    """Return a record's value as a request has it: an image as {"b64": "…"}, a missing number as null."""
    if isinstance(value, np.ndarray):
        return [in_json(kind, element) for element in value]
    if kind == "image":
        return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, bytes):
        return value.decode()
    return None if np.isnan(value) else value.item()
