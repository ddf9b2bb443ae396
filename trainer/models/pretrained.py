"""Backbones of keras.applications with a new head, for photographs; `model.weights` loads the backbone's weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras

from slipway.core.errors import UserError

# Their ImageNet weights need a layer that Keras adds only when it downloads them itself.
WITHOUT = "EfficientNetB"
BACKBONES = [
    name for name in vars(keras.applications) if name[0].isupper() and not name.startswith(WITHOUT)
]  # without its modules


def build(
    image_shape: tuple[int, int, int], classes: int, *, backbone: str = "MobileNetV3Small", dropout: float = 0.2
) -> keras.Model:
    """Return a backbone, global average pooling and a dense layer `head`; outputs logits.

    The backbone's own preprocessing is part of the network, which accepts images in [0, 1] of one or three channels.

    Args:
        image_shape: Height, width and channels of the images.
        classes: Number of outputs.
        backbone: The name of a network in keras.applications, such as ResNet50V2.
        dropout: Fraction of the pooled features that training drops.

    Raises:
        UserError: There is no such backbone, or it does not accept images of this size.
    """
    made = _backbone(backbone, image_shape)
    images = keras.Input(image_shape)
    pixels = keras.layers.Rescaling(255.0)(images)
    if image_shape[-1] == 1:
        pixels = keras.layers.Concatenate()([pixels] * 3)
    features = keras.layers.GlobalAveragePooling2D()(made(_preprocessing(backbone)(pixels)))
    return keras.Model(images, keras.layers.Dense(classes, name="head")(keras.layers.Dropout(dropout)(features)))


def _backbone(name: str, image_shape: tuple[int, int, int]) -> keras.Model:
    if name not in BACKBONES:
        raise UserError.unknown("backbone", name, BACKBONES, setting="model.arguments.backbone")
    try:
        return _function(name)(include_top=False, weights=None, input_shape=(*image_shape[:2], 3))
    except ValueError as error:
        raise UserError(
            f"{name} does not accept images of {image_shape[0]}x{image_shape[1]} pixels: {error}",
            setting="data.image_size",
            value=list(image_shape[:2]),
            fix="--set 'data.image_size=[224, 224]'",
        ) from None


def _preprocessing(name: str) -> Callable[[Any], Any]:
    """Return the function from pixels, 0 to 255, to what a backbone was trained on."""
    found: Callable[[Any], Any] = inspect.getmodule(_function(name)).preprocess_input  # type: ignore[union-attr]
    return found


def _function(name: str) -> Callable[..., keras.Model]:
    found: Callable[..., keras.Model] = getattr(keras.applications, name)
    return found
