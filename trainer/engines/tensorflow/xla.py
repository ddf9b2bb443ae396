"""Decide whether XLA compiles the training step (`train.xla`) of a Keras network on TensorFlow."""

from __future__ import annotations

from typing import Any

import keras

from slipway.trainer.config import TrainSettings

# On a CPU, XLA's convolutions took more than twice as long as TensorFlow's own; networks of only these layers trained
# 1.8 times as fast. Other layers may contain operations that XLA cannot compile.
_DENSE = (
    "InputLayer", "Dense", "EinsumDense", "Flatten", "Reshape", "Permute", "Dropout", "Activation", "ReLU", "LeakyReLU",
    "PReLU", "ELU", "Softmax", "Add", "Subtract", "Multiply", "Average", "Concatenate", "Rescaling",
    "LayerNormalization", "BatchNormalization", "GroupNormalization", "UnitNormalization",
)  # fmt: skip
_CONVOLUTIONAL = (
    "Conv1D", "Conv2D", "Conv2DTranspose", "DepthwiseConv2D", "SeparableConv2D", "MaxPooling2D", "AveragePooling2D",
    "GlobalAveragePooling2D", "GlobalMaxPooling2D", "ZeroPadding2D", "Cropping2D", "UpSampling2D", "SpatialDropout2D",
)  # fmt: skip


def compiles(train: TrainSettings, model: Any, kind: str, devices: int) -> bool:
    """Whether to compile; "auto" compiles on a single device if all layers are known to benefit.

    Depends only on the settings, the network and the device kind, so a resumed run decides the same.
    """
    if kind == "TPU":  # TPUStrategy always compiles
        return False
    if train.xla != "auto":
        return train.xla
    known = _DENSE if kind == "CPU" else _DENSE + _CONVOLUTIONAL
    layers = [layer for layer in model._flatten_layers(include_self=False) if not isinstance(layer, keras.Model)]
    return devices == 1 and all(type(layer).__name__ in known and _is_keras(layer) for layer in layers)


def _is_keras(layer: Any) -> bool:
    """Whether the layer's class is from Keras, not a custom one of the same name."""
    return type(layer).__module__.split(".")[0] == "keras"
