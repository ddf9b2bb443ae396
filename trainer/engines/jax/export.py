"""Export of a Keras network on JAX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import tensorflow as tf
from jax.experimental import jax2tf

from slipway.core.manifest import Manifest
from slipway.trainer.data.features import each, in_order, specs
from slipway.trainer.export import saved_model
from slipway.trainer.export.saved_model import Outputs
from slipway.trainer.export.threshold import Decision


def write_custom(
    folder: Path, model: keras.Model, manifest: Manifest, scale: float, decide: Decision, *, from_logits: bool
) -> tuple[str, float | None]:
    """Write a custom program's network; see `saved_model.write_custom`."""
    function = as_function(model, manifest)
    return saved_model.write_custom(folder, model, manifest, scale, *function, decide, from_logits=from_logits)


def as_function(model: keras.Model, manifest: Manifest) -> tuple[Outputs, list[tf.Variable]]:
    """Return a Keras model's outputs as a function in TensorFlow, and copies of the weights that it uses."""
    trained, non_trainable = _arrays(model)
    inputs, _ = specs(manifest, None, decoded=False)

    def outputs(trained: Any, inputs: Any) -> Any:
        return model.stateless_call(trained, non_trainable, in_order(inputs, manifest), training=False)[0]

    converted = jax2tf.convert(
        outputs,
        polymorphic_shapes=[
            None,
            tf.nest.map_structure(lambda spec: f"({', '.join(['batch', *map(str, spec.shape[1:])])})", inputs),
        ],
        with_gradient=False,
        native_serialization_platforms=("cpu", "cuda", "tpu"),
    )
    variables = [tf.Variable(array) for array in trained]
    # Otherwise AutoGraph would convert all of JAX's Python code, which takes most of a minute to no effect.
    return tf.autograph.experimental.do_not_convert(lambda inputs: converted(variables, inputs)), variables


def on_cpu(model: keras.Model, inputs: Any) -> Any:
    """Return a Keras model's outputs, computed by JAX on the CPU, for inputs as tensors of TensorFlow."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        arrays = each(lambda tensor: tensor.numpy(), inputs)
        return np.asarray(model.stateless_call(*_arrays(model), arrays, training=False)[0])


def _arrays(model: keras.Model) -> tuple[list[Any], list[Any]]:
    groups = (model.trainable_variables, model.non_trainable_variables)
    trained, non_trainable = ([np.asarray(variable.value) for variable in group] for group in groups)
    return trained, non_trainable
