"""Networks of named inputs."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers


def mixed(inputs: dict[str, Any], outputs: int, width: int = 16) -> keras.Model:
    """A functional network of inputs of any kind."""
    entries = {name: keras.Input(each.shape, dtype=each.dtype) for name, each in inputs.items()}
    parts = []
    for name, each in inputs.items():
        part = entries[name]
        if each.dtype == "int32":
            part = layers.Embedding(each.values, 4)(part)
        parts.append(layers.Flatten()(part) if part.ndim > 2 else layers.Reshape((-1,))(part))
    hidden = layers.Dense(width, activation="relu")(layers.Concatenate()(parts))
    return keras.Model(entries, layers.Dense(outputs)(hidden))


class InOrder(keras.Model):
    """Concatenates its inputs in the order in which they come, so that another order is another network.

    Keras cannot save it as model.keras.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.last = layers.Dense(outputs)

    def call(self, inputs: dict[str, Any], training: bool = False) -> Any:
        parts = [keras.ops.cast(each, "float32") for each in inputs.values()]
        return self.last(keras.ops.concatenate([keras.ops.reshape(each, (-1, _size(each))) for each in parts], axis=1))


def _size(tensor: Any) -> int:
    size = 1
    for length in tensor.shape[1:]:
        size *= length
    return size


def in_order(inputs: dict[str, Any], outputs: int) -> keras.Model:
    del inputs
    return InOrder(outputs)


def images_only(image_shape: tuple[int, int, int], classes: int) -> keras.Model:
    return keras.Sequential([keras.Input(image_shape), layers.Flatten(), layers.Dense(classes)])


def too_wide(inputs: dict[str, Any], outputs: int) -> keras.Model:
    return mixed(inputs, outputs + 1)


def squashed(inputs: dict[str, Any], outputs: int) -> keras.Model:
    network = mixed(inputs, outputs)
    network.layers[-1].activation = keras.activations.sigmoid
    return network


def without_age(inputs: dict[str, Any], outputs: int) -> keras.Model:
    return mixed({name: each for name, each in inputs.items() if name != "image"} | {"other": inputs["age"]}, outputs)
