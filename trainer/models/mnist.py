"""Networks for MNIST (28x28 grayscale images)."""

from __future__ import annotations

import keras


def tpu_guide(image_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """The network of TensorFlow's TPU guide: two convolutions with 256 filters. For accelerators; slow on a CPU."""
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Conv2D(256, 3, activation="relu"),
            keras.layers.Conv2D(256, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(classes),
        ]
    )


def small(image_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Two convolutions with pooling; over 100 times fewer operations: two epochs take a minute on two CPU cores."""
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.25),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(classes),
        ]
    )
