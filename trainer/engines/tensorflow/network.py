"""A Keras network on TensorFlow: whether XLA compiles it, and the largest fitting batch."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.trainer.config import TrainSettings
from slipway.trainer.data.features import Tensors, blank, scaled
from slipway.trainer.data.images import traced
from slipway.trainer.engines.keras import normalization

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


def compiles(train: TrainSettings, model: keras.Model, kind: str, devices: int) -> bool:
    """Whether to compile; "auto" compiles on a single device if all layers are known to benefit.

    Depends only on the settings, the network and the device kind, so a resumed run decides the same.

    Raises:
        UserError: `train.xla` is true, and the devices exchange statistics of BatchNormalization, which XLA cannot
            compile on CPUs and GPUs.
    """
    if kind == "TPU":  # TPUStrategy always compiles
        return False
    if train.xla is True and devices > 1 and normalization.layers(model):
        raise UserError(
            f"XLA cannot compile BatchNormalization whose statistics cover {devices} devices.",
            setting="train.xla",
            value=True,
            allowed="auto, false",
            nearest="auto",
        )
    if train.xla != "auto":
        return train.xla
    if train.has_functions_in_step:  # they may contain operations that XLA cannot compile
        return False
    known = _DENSE if kind == "CPU" else _DENSE + _CONVOLUTIONAL
    layers = [layer for layer in model._flatten_layers(include_self=False) if not isinstance(layer, keras.Model)]
    # Not a custom layer of the same name.
    custom = [type(layer) for layer in layers if type(layer).__module__.split(".")[0] != "keras"]
    return devices == 1 and not custom and all(type(layer).__name__ in known for layer in layers)


def largest_batch_that_fits(gradients: Callable[[Tensors, tf.Tensor], object], manifest: Manifest, below: int) -> int:
    """Return the largest batch below `below` that fits in a device's memory, found by bisection on the device.

    Args:
        gradients: The gradient computation, from inputs and labels; called with zeros.
        manifest: The data set's manifest.
        below: A batch size that does not fit.
    """

    def fits(examples: int) -> bool:
        try:
            inputs, labels = (tf.nest.map_structure(tf.constant, part) for part in blank(manifest, examples))
            traced(gradients)(scaled(inputs), labels)
        except tf.errors.ResourceExhaustedError:
            return False
        return True

    fitting = 0
    while below - fitting > 1:
        middle = (fitting + below) // 2
        if fits(middle):
            fitting = middle
        else:
            below = middle
    return fitting
