"""Whether XLA is to compile the training step of a Keras network on TensorFlow: `train.xla` on the devices at hand."""

from __future__ import annotations

from typing import Any

import keras

from slipway.trainer.config import TrainSettings

# On a CPU, XLA's convolutions took more than twice as long as TensorFlow's own; networks of these layers only were
# trained 1.8 times as fast. What is not named here could also be something that XLA cannot compile.
_DENSE = (
    "InputLayer", "Dense", "EinsumDense", "Flatten", "Reshape", "Permute", "Dropout", "Activation", "ReLU", "LeakyReLU",
    "PReLU", "ELU", "Softmax", "Add", "Subtract", "Multiply", "Average", "Concatenate", "Rescaling",
    "LayerNormalization", "BatchNormalization", "GroupNormalization", "UnitNormalization",
)  # fmt: skip
_CONVOLUTIONAL = (
    "Conv1D", "Conv2D", "Conv2DTranspose", "DepthwiseConv2D", "SeparableConv2D", "MaxPooling2D", "AveragePooling2D",
    "GlobalAveragePooling2D", "GlobalMaxPooling2D", "ZeroPadding2D", "Cropping2D", "UpSampling2D", "SpatialDropout2D",
)  # fmt: skip


def compiles(train: TrainSettings, model: Any, device: str, replicas: int) -> bool:
    """Whether to compile; "auto" does where it pays: on one device, for networks of layers that it is known for.

    The answer follows from the settings, the network and the kind of device alone, so a resumed run has the same.
    """
    if device == "TPU":  # its strategy compiles by itself
        return False
    if train.xla != "auto":
        return train.xla
    known = _DENSE if device == "CPU" else _DENSE + _CONVOLUTIONAL
    layers = [layer for layer in model._flatten_layers(include_self=False) if not isinstance(layer, keras.Model)]
    return replicas == 1 and all(type(layer).__name__ in known and _is_keras(layer) for layer in layers)


def _is_keras(layer: Any) -> bool:
    """Whether it is one of Keras' own, not one of the same name."""
    return type(layer).__module__.split(".")[0] == "keras"
