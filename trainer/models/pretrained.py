"""Backbones of keras.applications with a new head, for photographs; `model.weights` loads the backbone's weights.

`python -m slipway.trainer.models.pretrained MobileNetV3Small` downloads them to MobileNetV3Small.weights.h5.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from slipway.core.errors import UserError, lowered

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
    Its BatchNormalization layers are frozen: the statistics of a few photographs would undo what the weights learned.

    Args:
        image_shape: Height, width and channels of the images.
        classes: Number of outputs.
        backbone: The name of a network in keras.applications, such as ResNet50V2.
        dropout: Fraction of the pooled features that training drops.

    Raises:
        UserError: There is no such backbone, or it does not accept images of this size.
    """
    made = _backbone(backbone, image_shape)
    for layer in made.layers:
        # Called with training=False in place of this, they would be trained (https://github.com/keras-team/keras/issues/20285).
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
    images = keras.Input(image_shape)
    pixels = keras.layers.Rescaling(255.0)(images)
    if image_shape[-1] == 1:
        pixels = keras.layers.Concatenate()([pixels] * 3)
    features = keras.layers.GlobalAveragePooling2D()(made(_preprocessing(backbone)(pixels)))
    return keras.Model(images, keras.layers.Dense(classes, name="head")(keras.layers.Dropout(dropout)(features)))


def _backbone(name: str, image_shape: tuple[int, int, int]) -> keras.Model:
    _check(name, "model.arguments.backbone")
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
    function: Callable[[Any], Any] = inspect.getmodule(_function(name)).preprocess_input  # type: ignore[union-attr]
    return function


def _function(name: str) -> Callable[..., keras.Model]:
    function: Callable[..., keras.Model] = getattr(keras.applications, name)
    return function


def _check(name: str, setting: str) -> None:
    if name not in BACKBONES:
        raise UserError.unknown("backbone", name, BACKBONES, setting=setting)


def save_weights(name: str) -> Path:
    """Write the ImageNet weights of a backbone, which Keras downloads unless it has them, into the working directory.

    Raises:
        UserError: There is no such backbone, or Keras cannot download its weights.
    """
    _check(name, "BACKBONE")
    path = Path(f"{name}.weights.h5")
    try:
        made = _function(name)(include_top=False, weights="imagenet")
    except Exception as error:  # Keras has no class for it
        raise UserError(
            f"Keras cannot download the weights of {name}: {error}",
            setting="BACKBONE",
            value=name,
            fix=f"repeat the command on a machine with access to the internet, and copy {path}",
        ) from None
    made.save_weights(path)
    return path


def main() -> int:
    """Save the weights of the backbone that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m slipway.trainer.models.pretrained", description="Save a backbone's ImageNet weights in a file."
    )
    parser.add_argument("backbone", metavar="BACKBONE", help="a network of keras.applications, such as ResNet50V2")
    try:
        print(save_weights(parser.parse_args().backbone))
    except UserError as error:
        print(f"error: {lowered(str(error))}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
