"""The network of Google's Vertex AI codelab on distributed training, for the flower photos (180x180, 5 classes)."""

from __future__ import annotations

import keras


def build(image_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Three convolutions with pooling, then a dense layer; logits.

    The codelab's own Resizing and Rescaling are left out: images arrive in their size, with pixels in [0, 1].
    """
    layers = [keras.Input(image_shape)]
    for filters in (16, 32, 64):
        layers += [keras.layers.Conv2D(filters, 3, padding="same", activation="relu"), keras.layers.MaxPooling2D()]
    layers += [keras.layers.Flatten(), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(classes)]
    return keras.Sequential(layers)
