"""Export of a SavedModel that accepts raw values and encoded images; it loads in plain TensorFlow, without Slipway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from slipway.core.manifest import Manifest, SignatureName
from slipway.trainer.data.features import Features, scaled, statistics
from slipway.trainer.data.images import traced
from slipway.trainer.engines.keras.model import FILE_NAME, checksum
from slipway.trainer.export.threshold import Decision
from slipway.trainer.tasks import check_outputs

# Maps the network's inputs to its outputs, [batch, outputs].
Outputs: TypeAlias = Callable[[Any], tf.Tensor]


def write(
    folder: Path,
    network: Outputs,
    variables: Sequence[tf.Variable],
    manifest: Manifest,
    threshold: float | None = None,
) -> None:
    """Write a SavedModel to `folder`.

    The signature `serving_default` accepts the inputs by name (`Features.requests`): images as `image_bytes` or
    `NAME_bytes`, string [batch] of PNG or JPEG images of any size; numbers float32, integers int64 and categories
    string, [batch, *shape], as they are in the source. It returns, by task:

    - classification: `classes`, string [batch, classes], `probabilities`, float32 [batch, classes], and `label`,
      string [batch]
    - multilabel: `labels`, string [batch, labels], and `probabilities`, float32 [batch, labels]
    - regression: `prediction`, float32 [batch], in the target's own unit

    Args:
        folder: An existing folder.
        network: Maps the network's inputs to its outputs, [batch, outputs]. Any function that TensorFlow can trace.
        variables: The tf.Variables that `network` uses.
        manifest: Manifest of the data set, for the inputs with their statistics, and the names of the outputs.
        threshold: The probability of the second of two classes from which it is the label.
    """
    features = Features(manifest)
    module = tf.Module()
    # Saved because they are attributes of the module.
    module.weights, module.tables = list(variables), features.tables

    def serve(requests: dict[SignatureName, tf.Tensor]) -> dict[str, tf.Tensor]:
        outputs = tf.cast(network(scaled(features.decode(requests))), tf.float32)
        return _answers(outputs, manifest, threshold)

    function = traced(serve).get_concrete_function(features.requests())
    tf.saved_model.save(module, str(folder), signatures={"serving_default": function})


def write_custom(
    folder: Path, model: keras.Model, manifest: Manifest, scale: float,
    outputs: Outputs, variables: Sequence[tf.Variable], decide: Decision, *, from_logits: bool,
) -> tuple[str, float | None]:  # fmt: skip
    """Write a custom program's network as a SavedModel, and model.keras.

    Args:
        folder, variables: As in `write`.
        model: The Keras network.
        manifest: Manifest of a data set of images with classes.
        scale: Factor from pixels of 0 to 255 to the network's input.
        outputs: Maps the network's inputs to its outputs, [batch, classes].
        decide: Returns the decision threshold of a network.
        from_logits: Whether the outputs are logits rather than probabilities.

    Returns:
        The weights' checksum, and the decision threshold.
    """
    check_outputs(outputs(tf.zeros([1, *manifest.image_shape])).shape, manifest)

    def logits(images: tf.Tensor) -> tf.Tensor:
        values = tf.cast(outputs(images * (255.0 * scale)), tf.float32)
        return values if from_logits else tf.math.log(values)

    threshold = decide(logits)
    write(folder, logits, variables, manifest, threshold)
    model.save(folder / FILE_NAME)
    return checksum(model), threshold


def _answers(outputs: tf.Tensor, manifest: Manifest, threshold: float | None) -> dict[str, tf.Tensor]:
    if manifest.target is not None:
        mean, deviation = statistics(manifest.target)
        predicted = outputs[:, 0] * deviation + mean
        return {"prediction": tf.exp(predicted) if manifest.target.logarithmic else predicted}
    names = tf.constant(manifest.classes)
    of_each = tf.tile(names[tf.newaxis, :], [tf.shape(outputs)[0], 1])
    if manifest.task == "multilabel":
        return {"labels": of_each, "probabilities": tf.sigmoid(outputs)}
    probabilities = tf.nn.softmax(outputs)
    best = tf.argmax(probabilities, axis=-1)
    if threshold is not None:
        best = tf.cast(probabilities[:, 1] >= threshold, tf.int64)
    label = tf.gather(names, best)
    return {"classes": of_each, "probabilities": probabilities, "label": label}
