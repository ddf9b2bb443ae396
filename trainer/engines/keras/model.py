"""Check and inspect the Keras network that a builder returns."""

from __future__ import annotations

import hashlib
import math

import keras
import numpy as np

from slipway.core.errors import UserError
from slipway.trainer.config import ModelSettings
from slipway.trainer.engines import builder
from slipway.trainer.engines.base import ModelSize


def build_classifier(settings: ModelSettings, image_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Return the builder's keras.Model, built, from images [batch, *image_shape] to logits [batch, classes].

    Raises:
        UserError: The builder failed (`builder.build`), or its network is not such a classifier.
    """
    model = checked(builder.build(settings, image_shape, classes), settings)
    return check_classifier(model, settings, image_shape, classes)


def checked(model: object, settings: ModelSettings) -> keras.Model:
    """Return `model` if it is a keras.Model.

    Raises:
        UserError: It is not.
    """
    if not isinstance(model, keras.Model):
        raise _wrong(settings, f"returned {type(model).__name__} instead of a keras.Model", "return a keras.Model")
    return model


def check_classifier(
    model: keras.Model, settings: ModelSettings, image_shape: tuple[int, int, int], classes: int
) -> keras.Model:
    """Build the keras.Model `model` and return it.

    Raises:
        UserError: It is not a classifier of such images.
    """
    try:
        outputs = model(keras.Input(image_shape))
    except Exception as error:
        size = " x ".join(map(str, image_shape))
        raise UserError(
            f"The network of {settings.builder} cannot process images of {size}: {type(error).__name__}: {error}",
            setting="model.builder",
            value=settings.builder,
            allowed=f"a network with the input shape [batch, {', '.join(map(str, image_shape))}]",
            fix="use image_shape in the builder: keras.Input(image_shape)",
        ) from error
    shape = getattr(outputs, "shape", None)
    _refuse_built_in_batch(model, settings, shape)
    if shape is None or list(shape) != [None, classes]:
        given = f"[batch, {', '.join(map(str, shape[1:]))}]" if shape is not None else f"a {type(outputs).__name__}"
        raise _wrong(
            settings, f"returns {given}; the data set has {classes} classes", f"end in keras.layers.Dense({classes})"
        )
    if getattr(model.layers[-1] if model.layers else None, "activation", None) is keras.activations.softmax:
        raise _wrong(settings, "ends in a softmax; it must return logits", "remove the last layer's activation")
    return model


def _refuse_built_in_batch(model: keras.Model, settings: ModelSettings, output: keras.KerasTensor) -> None:
    """Raise UserError if the network has a fixed batch size: the devices split a batch, and the last one is smaller."""
    shapes = [*(each.shape for each in model.inputs or []), *([output] if output is not None else [])]
    sizes = [shape[0] for shape in shapes if shape and shape[0] is not None]
    if sizes:
        raise _wrong(
            settings,
            f"has a fixed batch size of {sizes[0]}; each device processes a part of the batch",
            "use keras.Input(image_shape) without batch_size, and reshape with -1 for the batch",
        )


def size(model: keras.Model) -> ModelSize:
    """Return the size of the model's variables and of the trainable ones."""
    return ModelSize(_bytes(model.variables), _bytes(model.trainable_variables))


def output_elements(model: keras.Model, _image_shape: tuple[int, int, int]) -> int:
    """Return the number of elements in the outputs of all layers for one example."""
    count = 0
    for layer in model._flatten_layers(include_self=False):
        try:
            outputs = layer.output
        except (AttributeError, ValueError):  # a layer outside of the functional graph
            continue
        for output in outputs if isinstance(outputs, list | tuple) else [outputs]:
            count += math.prod(size for size in output.shape[1:] if size)
    return count


def _bytes(variables: list[keras.Variable]) -> int:
    return sum(int(np.prod(variable.shape)) * np.dtype(variable.dtype).itemsize for variable in variables)


def checksum(model: keras.Model) -> str:
    """Return the SHA-256 (hex) of all weights in order."""
    digest = hashlib.sha256()
    for weight in model.weights:
        digest.update(np.ascontiguousarray(weight.numpy()).tobytes())
    return digest.hexdigest()


def _wrong(settings: ModelSettings, what: str, fix: str) -> UserError:
    return UserError(
        f"The network of {settings.builder} {what}.",
        setting="model.builder",
        value=settings.builder,
        allowed="a keras.Model from images to logits [batch, classes]",
        fix=fix,
    )
