"""Export of a Keras network on TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from slipway.core.manifest import Manifest
from slipway.trainer.export import saved_model
from slipway.trainer.export.saved_model import Outputs
from slipway.trainer.export.threshold import Decision


def write_custom(
    folder: Path, model: keras.Model, manifest: Manifest, scale: float, decide: Decision, *, from_logits: bool
) -> tuple[str, float | None]:
    """Write a custom program's network; see `saved_model.write_custom`."""
    return saved_model.write_custom(
        folder, model, manifest, scale, *as_function(model), decide, from_logits=from_logits
    )


def as_function(model: keras.Model) -> tuple[Outputs, list[tf.Variable]]:
    """Return a Keras model's outputs as a function in TensorFlow, and copies of the weights that it uses.

    The model's own variables may belong to a tf.distribute strategy; saving them would require every process.
    """
    with tf.device("CPU:0"):
        trained = [tf.Variable(variable.numpy()) for variable in model.trainable_variables]
        non_trainable = [tf.Variable(variable.numpy()) for variable in model.non_trainable_variables]

    def outputs(inputs: Any) -> tf.Tensor:
        return model.stateless_call(trained, non_trainable, inputs, training=False)[0]

    return outputs, [*trained, *non_trainable]
