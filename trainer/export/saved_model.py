"""The SavedModel that serves a classifier from encoded images; plain TensorFlow loads it, without this code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from slipway.core.manifest import Manifest
from slipway.trainer.data.images import decode_images, scale
from slipway.trainer.data.tracing import traced


def write(folder: Path, logits: Callable[[Any], Any], variables: Sequence[Any], manifest: Manifest) -> None:
    """Write it at the root of `folder`.

    Its `serving_default` takes `image_bytes`, string [batch] of encoded PNG or JPEG (any size: resized), and gives
    `classes` string [batch, classes], `probabilities` float32 [batch, classes] and `label` string [batch].

    Args:
        folder: Where; it exists.
        logits: From float32 images in [0, 1], [batch, height, width, channels], to logits [batch, classes]. Anything
            that TensorFlow can trace.
        variables: The tf.Variables that it uses.
        manifest: The data set's, for the names of the classes and the images' shape.
    """
    module = tf.Module()
    module.weights = list(variables)  # saved, because it hangs on the module

    def serve(image_bytes: Any) -> dict[str, Any]:
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
