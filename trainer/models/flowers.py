"""The network of Google's Vertex AI codelab on distributed training, for the flower photos (180x180, 5 classes)."""

from __future__ import annotations

import keras


def build(image_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Return a network of three convolutions with pooling and a dense layer; outputs logits.

    The codelab's Resizing and Rescaling layers are omitted, since images are already resized and scaled to [0, 1].
    """
    layers = [keras.Input(image_shape)]
    for filters in (16, 32, 64):
        layers += [keras.layers.Conv2D(filters, 3, padding="same", activation="relu"), keras.layers.MaxPooling2D()]
    layers += [keras.layers.Flatten(), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(classes)]
    return keras.Sequential(layers)
