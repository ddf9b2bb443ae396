"""Export of a network that a custom program has trained, with the serving interface of Slipway's own models.

A Keras network is exported on the backend that the program runs it on, as the engines do; a torch.nn.Module as the
pytorch engine does.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipway.core import integrity
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.trainer.engines.table import ENGINES
from slipway.trainer.export.export import inputs_and_classes, replaced

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    # Maps the network's inputs to its outputs, [batch, outputs].
    Outputs = Callable[[Any], tf.Tensor]


def write(folder: Path, model: Any, manifest: Manifest, scale: float, *, from_logits: bool, steps: int | None) -> str:
    """Replace the content of `folder` by the served model and model.json; return the weights' checksum.

    Args:
        folder: The output folder (AIP_MODEL_DIR).
        model: A keras.Model or torch.nn.Module from images to one output per class. A Module receives the images
            channels first.
        manifest: Manifest of the data set, for class names and image shape.
        scale: Factor from pixels of 0 to 255 to the model's input.
        from_logits: Whether the outputs are logits rather than probabilities.
        steps: Number of trained steps for model.json, if known.

    Raises:
        UserError: The model's outputs do not match the data set's classes.
    """
    if not manifest.is_image_only or manifest.task != "classification":
        what = f"the task {manifest.task}" if manifest.is_image_only else "other inputs than an image"
        raise UserError(
            f"slipway.training.export is for classifiers of images; the data set has {what}.",
            allowed="a program that writes its model to AIP_MODEL_DIR in its own format, with evaluate.module",
            fix="save the model with its framework, such as model.save(…), and set evaluate.module",
        )
    on_torch = "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module)
    with replaced(folder) as place:
        if on_torch:
            engine, digest = "pytorch", _write_program(place, model, manifest, scale, from_logits=from_logits)
        else:
            engine, digest = _write_saved_model(place, model, manifest, scale, from_logits=from_logits)
        record = {
            **inputs_and_classes(manifest),
            "engine": engine,
            "weights_checksum": digest,
            "data_fingerprint": manifest.fingerprint,
        }
        record |= {} if steps is None else {"steps": steps}
        integrity.seal(place, record)
    return digest


def _write_saved_model(
    folder: Path, model: keras.Model, manifest: Manifest, scale: float, *, from_logits: bool
) -> tuple[str, str]:
    """Write a SavedModel and model.keras; return the engine's name and the weights' checksum."""
    import keras
    import tensorflow as tf

    from slipway.trainer.engines.keras.model import checksum
    from slipway.trainer.export import saved_model

    backend = keras.backend.backend()
    outputs, variables = {"tensorflow": on_tensorflow, "jax": on_jax}[backend](model, manifest)
    _check_outputs(outputs(tf.zeros([1, *manifest.image_shape])).shape, manifest)

    def logits(images: tf.Tensor) -> tf.Tensor:
        found = tf.cast(outputs(images * (255.0 * scale)), tf.float32)
        return found if from_logits else tf.math.log(found)

    saved_model.write(folder, logits, variables, manifest)
    model.save(folder / "model.keras")
    return next(name for name, row in ENGINES.items() if row.keras_backend == backend), checksum(model)


def on_tensorflow(model: keras.Model, _manifest: Manifest) -> tuple[Outputs, list[tf.Variable]]:
    """Return a Keras model's outputs as a function in TensorFlow, and copies of the weights that it uses.

    The model's own variables may belong to a tf.distribute strategy; saving them would require every process.
    """
    import tensorflow as tf

    with tf.device("CPU:0"):
        trained = [tf.Variable(variable.numpy()) for variable in model.trainable_variables]
        others = [tf.Variable(variable.numpy()) for variable in model.non_trainable_variables]

    def outputs(inputs: Any) -> tf.Tensor:
        return model.stateless_call(trained, others, inputs, training=False)[0]

    return outputs, [*trained, *others]


def on_jax(model: keras.Model, manifest: Manifest) -> tuple[Outputs, list[tf.Variable]]:
    """Return a Keras model's outputs as a function in TensorFlow, and copies of the weights that it uses."""
    import tensorflow as tf
    from jax.experimental import jax2tf

    from slipway.trainer.data.features import in_order, specs

    trained = [np.asarray(variable.value) for variable in model.trainable_variables]
    others = [np.asarray(variable.value) for variable in model.non_trainable_variables]
    inputs, _ = specs(manifest, None, decoded=False)

    def outputs(trained: Any, inputs: Any) -> Any:
        return model.stateless_call(trained, others, in_order(inputs, manifest), training=False)[0]

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
    import jax

    from slipway.trainer.data.features import each

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        trained = [np.asarray(variable.value) for variable in model.trainable_variables]
        others = [np.asarray(variable.value) for variable in model.non_trainable_variables]
        arrays = each(lambda one: one.numpy(), inputs)
        return np.asarray(model.stateless_call(trained, others, arrays, training=False)[0])


def _write_program(folder: Path, model: Any, manifest: Manifest, scale: float, *, from_logits: bool) -> str:
    """Write a torch.export program, and model.keras for a Keras network; return the weights' checksum."""
    import torch

    from slipway.trainer.engines.keras.model import checksum
    from slipway.trainer.engines.pytorch.network import Adapted

    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    network = Adapted(copy.deepcopy(model).to("cpu"), manifest, 255.0 * scale, from_logits=from_logits).eval()
    with torch.no_grad():
        _check_outputs(network(torch.zeros(1, *manifest.image_shape)).shape, manifest)
    importlib.import_module("slipway.trainer.engines.pytorch.export").write(folder, network, manifest)
    if network.is_keras:
        return checksum(network.inner)
    digest = hashlib.sha256()
    for tensor in network.variables().values():
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def _check_outputs(shape: Any, manifest: Manifest) -> None:
    classes = len(manifest.classes)
    if list(shape) != [1, classes]:
        raise UserError(
            f"The exported network returns [batch, {', '.join(map(str, list(shape)[1:]))}]; the data set has "
            f"{classes} classes.",
            allowed="a network from images to one output per class",
            fix=f"end in a layer of {classes} units",
        )
