"""The network that `slipway run` trains: `model.builder` in slipway.yaml names it."""

from __future__ import annotations

import keras
from keras import layers


def build(image_shape: tuple[int, int, int], classes: int, *, width: int = 16) -> keras.Model:
    """Return a network for pixels between 0 and 1 that outputs one logit per class.

    `width` can be changed with `model.arguments.width` in slipway.yaml.
    """
    return keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Conv2D(width, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * width, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(classes),
        ]
    )
