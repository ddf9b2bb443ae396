"""A Keras network as a builder gave it: whether it is a classifier of these images, what it is made of."""

from __future__ import annotations

import hashlib
from typing import Any

import keras
import numpy as np

from slipway.core.errors import UserError
from slipway.trainer.config import ModelSettings
from slipway.trainer.engines import builder
from slipway.trainer.engines.base import ModelSize
from slipway.trainer.engines.keras.normalization import KERAS_INSTEAD, BatchNormalization


def build_classifier(settings: ModelSettings, image_shape: tuple[int, int, int], classes: int) -> Any:
    """The builder's keras.Model, built, from images [batch, *image_shape] to logits [batch, classes].

    Raises:
        UserError: The builder's own mistakes (`builder.build`), or its network is not such a classifier.
    """
    model = checked(builder.build(settings, image_shape, classes), settings)
    return check_classifier(model, settings, image_shape, classes)


def checked(model: Any, settings: ModelSettings) -> Any:
    """`model` itself.

    Raises:
        UserError: It is no keras.Model.
    """
    if not isinstance(model, keras.Model):
        raise _wrong(settings, f"returned {type(model).__name__} instead of a keras.Model", "return a keras.Model")
    return model


def check_classifier(model: Any, settings: ModelSettings, image_shape: tuple[int, int, int], classes: int) -> Any:
    """The keras.Model `model` itself, built.

    Raises:
        UserError: It is not a classifier of such images.
    """
    try:
        outputs = model(keras.Input(image_shape))
    except Exception as error:
        size = " x ".join(map(str, image_shape))
        raise UserError(
            f"The network of {settings.builder} cannot take images of {size}: {type(error).__name__}: {error}",
            setting="model.builder",
            value=settings.builder,
            allowed=f"a network whose input has the shape [batch, {', '.join(map(str, image_shape))}]",
            fix="let the builder use image_shape for its input",
        ) from error
    shape = getattr(outputs, "shape", None)
    _refuse_built_in_batch(model, settings, shape)
    if shape is None or list(shape) != [None, classes]:
        given = f"[batch, {', '.join(map(str, shape[1:]))}]" if shape is not None else f"a {type(outputs).__name__}"
        raise _wrong(
            settings, f"gives {given}; the data set has {classes} classes", f"end in keras.layers.Dense({classes})"
        )
    if getattr(model.layers[-1] if model.layers else None, "activation", None) is keras.activations.softmax:
        raise _wrong(settings, "ends in a softmax; logits are wanted", "leave the last layer's activation out")
    return model


def _refuse_built_in_batch(model: Any, settings: ModelSettings, output: Any) -> None:
    """Raise UserError where the network takes batches of one size only: replicas share a batch, the last is smaller."""
    shapes = [*(each.shape for each in model.inputs or []), *([output] if output is not None else [])]
    sizes = [shape[0] for shape in shapes if shape and shape[0] is not None]
    if sizes:
        raise _wrong(
            settings,
            f"has a batch of {sizes[0]} built in; each replica takes its share of the batch",
            "keras.Input(image_shape) without a batch size, and reshape with -1 for the batch",
        )


def batch_normalization(model: Any) -> BatchNormalization:
    """Its layers that keep moving statistics of their own device's part of the batches."""
    layers = [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
    ]
    return BatchNormalization("BatchNormalization", layers, KERAS_INSTEAD)


def size(model: Any) -> ModelSize:
    """How many bytes its variables take, and those of them that are trained."""
    return ModelSize(_bytes(model.variables), _bytes(model.trainable_variables))


def _bytes(variables: list[Any]) -> int:
    return sum(int(np.prod(variable.shape)) * np.dtype(variable.dtype).itemsize for variable in variables)


def checksum(model: Any) -> str:
    """SHA-256 (hex) over all weights in order."""
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
