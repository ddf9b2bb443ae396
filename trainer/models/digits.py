"""A small convolutional network for small images such as scikit-learn's 8x8 digits; trains in seconds on a CPU."""

from __future__ import annotations

import keras


def build(image_shape: tuple[int, int, int], classes: int, width: int = 16, dropout: float = 0.3) -> keras.Model:
    """Return a network of two convolutions (`width` and 2 x `width` filters) and a dense layer; outputs logits."""
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Conv2D(width, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(2 * width, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(classes),
        ]
    )
