"""The network and the loss of `benchmarks.cifar_accelerator`.

The network follows airbench94 (Keller Jordan, arXiv:2404.00498) as far as Slipway's settings go: a frozen convolution
that whitens patches of 2x2 pixels, six convolutions that start as the identity, and BatchNormalization whose offsets
learn 64 times as fast as the other weights. Outside of training, its logits are the mean over an image and its mirror
image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

PATCH = 2  # side of the whitened patches
SMOOTHING = 0.2
# With SGD, a variable that is multiplied by 8 makes steps 64 times as large.
OFFSET_SCALE = 8.0
LOGIT_SCALE = 1 / 9


def build(
    image_shape: tuple[int, int, int], classes: int, width: int = 64, whitening: Sequence[Sequence[float]] | None = None
) -> keras.Model:
    """Return the network.

    Args:
        image_shape: Height, width and channels.
        classes: Number of logits.
        width: Filters of the first of three groups; the others have four times as many.
        whitening: The first convolution's filters: a row for each, with its weights by row, column and channel of the
            patch, and its offset. None: it is not frozen and starts from random weights.
    """
    filters = 2 * PATCH**2 * image_shape[-1]
    inputs = keras.Input(image_shape)
    images = Mirrored()(inputs)
    # In float32, because whitening multiplies small differences between pixels, which bfloat16 would round away.
    first = keras.layers.Conv2D(filters, PATCH, use_bias=False, dtype="float32", trainable=whitening is None)
    images = Offset(dtype="float32")(first(images))
    if whitening is not None:
        rows = np.asarray(whitening, np.float32)
        first.kernel.assign(rows[:, :-1].T.reshape(PATCH, PATCH, image_shape[-1], filters))
        offset: Offset = images._keras_history.operation
        offset.offset.assign(rows[:, -1])
    images = keras.layers.Activation("gelu")(images)
    for filters in (width, 4 * width, 4 * width):
        images = _convolution(filters)(images)
        images = keras.layers.MaxPooling2D()(images)
        images = _normalized(images)
        images = _normalized(_convolution(filters)(images))
    images = keras.layers.Flatten()(keras.layers.MaxPooling2D(3)(images))
    logits = keras.layers.Dense(classes, use_bias=False, kernel_initializer=_uniform(), dtype="float32")(images)
    logits = keras.layers.Rescaling(LOGIT_SCALE, dtype="float32")(logits)
    return keras.Model(inputs, MirroredMean(dtype="float32")(logits))


def smoothed(outputs: Any, labels: Any) -> Any:
    """Cross-entropy of each example with label smoothing, for `train.loss`."""
    expected = ops.one_hot(labels, outputs.shape[-1], dtype="float32")
    return keras.losses.categorical_crossentropy(expected, outputs, from_logits=True, label_smoothing=SMOOTHING)


def _convolution(filters: int) -> keras.Layer:
    return keras.layers.Conv2D(filters, 3, padding="same", use_bias=False, kernel_initializer=Identity())


def _normalized(images: Any) -> Any:
    images = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-7, center=False, scale=False)(images)
    return keras.layers.Activation("gelu")(Offset(scale=OFFSET_SCALE)(images))


def _uniform() -> keras.initializers.Initializer:
    """Uniform between -1 and 1 over the square root of the number of inputs."""
    return keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")


@keras.saving.register_keras_serializable("benchmarks")
class Identity(keras.initializers.Initializer):  # type: ignore[misc]
    """The first filters pass a channel each on unchanged; the others are uniform."""

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        passed = np.arange(min(shape[-2:]))
        unit = np.zeros(shape, np.float32)
        unit[shape[0] // 2, shape[1] // 2, passed, passed] = 1
        drawn = np.arange(shape[-1]) >= len(passed)
        return ops.cast(unit, dtype) + _uniform()(shape, dtype) * ops.cast(drawn, dtype)


@keras.saving.register_keras_serializable("benchmarks")
class Offset(keras.Layer):  # type: ignore[misc]
    """Adds `scale` times a trained number to each channel."""

    def __init__(self, scale: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.scale = scale

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.offset = self.add_weight(shape=shape[-1:], initializer="zeros", name="offset")

    def call(self, images: Any) -> Any:
        return images + self.scale * ops.cast(self.offset, images.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}


@keras.saving.register_keras_serializable("benchmarks")
class Mirrored(keras.Layer):  # type: ignore[misc]
    """Appends each image's mirror image to the batch, except in training."""

    def call(self, images: Any, training: bool = False) -> Any:
        return images if training else ops.concatenate([images, ops.flip(images, axis=2)], axis=0)

    def compute_output_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return shape


@keras.saving.register_keras_serializable("benchmarks")
class MirroredMean(keras.Layer):  # type: ignore[misc]
    """The mean over the two halves of such a batch."""

    def call(self, logits: Any, training: bool = False) -> Any:
        return logits if training else ops.mean(ops.reshape(logits, (2, -1, logits.shape[-1])), axis=0)

    def compute_output_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return shape
