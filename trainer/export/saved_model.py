"""Export of a SavedModel that classifies encoded images; it loads in plain TensorFlow, without Slipway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from slipway.core.manifest import Manifest
from slipway.trainer.data.images import decode_images, scale, traced


def write(
    folder: Path, logits: Callable[[tf.Tensor], tf.Tensor], variables: Sequence[tf.Variable], manifest: Manifest
) -> None:
    """Write a SavedModel to `folder`.

    The signature `serving_default` accepts `image_bytes`, string [batch] of PNG or JPEG images of any size, and returns
    `classes`, string [batch, classes], `probabilities`, float32 [batch, classes], and `label`, string [batch].

    Args:
        folder: An existing folder.
        logits: Maps float32 images in [0, 1], [batch, height, width, channels], to logits [batch, classes].
            Any function that TensorFlow can trace.
        variables: The tf.Variables that `logits` uses.
        manifest: Manifest of the data set, for class names and image shape.
    """
    module = tf.Module()
    module.weights = list(variables)  # saved because they are attributes of the module

    def serve(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        names = tf.constant(manifest.classes)
        pixels = scale(decode_images(image_bytes, manifest))
        probabilities = tf.nn.softmax(tf.cast(logits(pixels), tf.float32))
        return {
            "classes": tf.tile(names[tf.newaxis, :], [tf.shape(image_bytes)[0], 1]),
            "probabilities": probabilities,
            "label": tf.gather(names, tf.argmax(probabilities, axis=-1)),
        }

    function = traced(serve, input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    tf.saved_model.save(module, str(folder), signatures={"serving_default": function})
