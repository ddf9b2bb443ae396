"""The network that `slipway run` trains: `model.builder` in slipway.yaml names it."""

from __future__ import annotations

import keras
from keras import layers


def build(image_shape: tuple[int, int, int], classes: int, *, width: int = 16) -> keras.Model:
    """Return a network for pixels between 0 and 1 that outputs one logit per class.

    `width` can be changed with `model.arguments.width` in slipway.yaml.
    """
    network = [keras.Input(image_shape)]
    for filters in reductions(min(image_shape[:2]), width):  # none for images of up to 31 pixels
        network += [
            layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
        ]
        width = filters
    network += [
        layers.Conv2D(width, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(2 * width, 3, padding="same", activation="relu"),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(classes),
    ]
    return keras.Sequential(network)


def reductions(side: int, width: int) -> list[int]:
    """Return the filters of convolutions that halve an image each, until it has fewer than 16 pixels."""
    found = []
    while side >= 32:
        found.append(width * 2 ** len(found))
        side //= 2
    return [min(filters, 8 * width) for filters in found]
