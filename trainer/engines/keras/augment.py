"""Data augmentation (`train.augment`) in Keras operations, for engines that draw the random numbers themselves.

`slipway.trainer.data.augment` is the TensorFlow version; the random numbers differ between engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keras import ops

from slipway.trainer.config import AugmentSettings


@dataclass(frozen=True)
class Draws:
    """The random draws for a batch of n images; None for a disabled transformation.

    `flips` is float [n, 1, 1, 1] in [0, 1): an image is flipped if below 0.5. `shifts` is integer [n, 2] in
    [0, 2 x settings.shift], down and right. `brightness` (added) and `contrast` (a factor) are float [n, 1, 1, 1].
    """

    flips: Any
    shifts: Any
    brightness: Any
    contrast: Any


def draw(settings: AugmentSettings, examples: int, uniform: Any, integers: Any) -> Draws:
    """Return the draws for `examples` images.

    Args:
        settings: The enabled transformations.
        examples: The number of images.
        uniform: Function (transformation's number 0 to 3, shape, low, high) that draws floats in [low, high).
        integers: The same for integers.
    """
    each = (examples, 1, 1, 1)
    most, brightness, contrast = settings.shift, settings.brightness, settings.contrast
    return Draws(
        flips=uniform(0, each, 0.0, 1.0) if settings.flip else None,
        shifts=integers(1, (examples, 2), 0, 2 * most + 1) if most else None,
        brightness=uniform(2, each, -brightness, brightness) if brightness else None,
        contrast=uniform(3, each, 1 - contrast, 1 + contrast) if contrast else None,
    )


def change(images: Any, settings: AugmentSettings, draws: Draws) -> Any:
    """Apply each image's draws; `images` are float32 in [0, 1], [n, height, width, channels]."""
    if draws.flips is not None:
        images = ops.where(draws.flips < 0.5, ops.flip(images, axis=2), images)
    if draws.shifts is not None:
        images = _shift(images, settings.shift, draws.shifts)
    if draws.brightness is not None:
        images = images + draws.brightness
    if draws.contrast is not None:
        mean = ops.mean(images, axis=(1, 2, 3), keepdims=True)
        images = mean + (images - mean) * draws.contrast
    if draws.brightness is not None or draws.contrast is not None:
        images = ops.clip(images, 0.0, 1.0)
    return images


def _shift(images: Any, most: int, starts: Any) -> Any:
    """Shift images: pad each with `most` black pixels, then crop it from its own start."""
    _, height, width, channels = images.shape
    images = ops.pad(images, [[0, 0], [most, most], [most, most], [0, 0]])
    rows = starts[:, 0, None] + ops.arange(height, dtype=starts.dtype)
    columns = starts[:, 1, None] + ops.arange(width, dtype=starts.dtype)
    padded = (images.shape[0], height, images.shape[2], channels)
    images = ops.take_along_axis(images, ops.broadcast_to(rows[:, :, None, None], padded), axis=1)
    kept = (images.shape[0], height, width, channels)
    return ops.take_along_axis(images, ops.broadcast_to(columns[:, None, :, None], kept), axis=2)
