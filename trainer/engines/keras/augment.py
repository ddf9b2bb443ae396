"""Image augmentation (`train.augment`) on the device, in Keras operations; the engines draw the random numbers.

An engine draws them from the run's seed, the step and the device, so a resumed run repeats them. They differ between
engines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from keras import ops

from slipway.core.errors import UserError
from slipway.trainer.augmentation import AugmentSettings

# A tensor of the backend: tf.Tensor, jax.Array or torch.Tensor.
Tensor: TypeAlias = Any
TRANSFORMATIONS = 9  # the last two are mixup's


def verify(settings: AugmentSettings, image_shape: tuple[int, int, int]) -> None:
    """Check the settings for images of `image_shape` (height, width, channels).

    Raises:
        UserError: `shift` is more than half of the image's smaller side.
    """
    most = min(image_shape[:2]) // 2
    if settings.shift > most:
        raise UserError(
            f"Images of {image_shape[0]} x {image_shape[1]} pixels cannot be shifted by up to {settings.shift}.",
            setting="train.augment.shift",
            value=settings.shift,
            allowed=f"at most {most} pixels, half of the images' smaller side",
            nearest=str(most),
            fix=f"--set train.augment.shift={most}",
        )


class Draw(Protocol):
    """Draws numbers in [low, high) for one of the transformations, 0 to `TRANSFORMATIONS` - 1.

    Each transformation has its own stream, enabled or not, so that switching one does not change the others' draws.
    """

    def __call__(self, transformation: int, shape: tuple[int, ...], low: Any, high: Any, /) -> Tensor: ...


@dataclass(frozen=True)
class Draws:
    """The random draws for a batch of n images; None for a disabled transformation.

    `flips` is float [n, 1, 1, 1] in [0, 1): an image is flipped if below 0.5. `shifts` is integer [n, 2] in
    [0, 2 x settings.shift], down and right. `brightness` (added) and `contrast` (a factor) are float [n, 1, 1, 1].
    `crops` is float [n, 3] in [0, 1): the fraction of settings.crop that is removed, and the crop's place from the top
    and from the left. `rotations` is float [n], in radians. `erasures` is float [n, 4] in [0, 1): the height and width
    as fractions of the largest, and the center from the top and from the left as fractions of the image.
    """

    flips: Tensor
    shifts: Tensor
    brightness: Tensor
    contrast: Tensor
    crops: Tensor
    rotations: Tensor
    erasures: Tensor


def draw(settings: AugmentSettings, examples: int, uniform: Draw, integers: Draw) -> Draws:
    """Return the draws for `examples` images.

    Args:
        settings: The enabled transformations.
        examples: The number of images.
        uniform: Draws floats.
        integers: Draws integers.
    """
    each = (examples, 1, 1, 1)
    most, brightness, contrast = settings.shift, settings.brightness, settings.contrast
    rotation = math.radians(settings.rotation)
    return Draws(
        flips=uniform(0, each, 0.0, 1.0) if settings.flip else None,
        shifts=integers(1, (examples, 2), 0, 2 * most + 1) if most else None,
        brightness=uniform(2, each, -brightness, brightness) if brightness else None,
        contrast=uniform(3, each, 1 - contrast, 1 + contrast) if contrast else None,
        crops=uniform(4, (examples, 3), 0.0, 1.0) if settings.crop else None,
        rotations=uniform(5, (examples,), -rotation, rotation) if rotation else None,
        erasures=uniform(6, (examples, 4), 0.0, 1.0) if settings.erase else None,
    )


def change(images: Tensor, settings: AugmentSettings, draws: Draws) -> Tensor:
    """Apply each image's draws; `images` are float32 in [0, 1], [n, height, width, channels]."""
    if draws.flips is not None:
        images = ops.where(draws.flips < 0.5, ops.flip(images, axis=2), images)
    if draws.shifts is not None:
        images = _shift(images, settings.shift, draws.shifts)
    if draws.crops is not None or draws.rotations is not None:
        images = _crop_and_rotate(images, settings.crop, draws)
    if draws.brightness is not None:
        images = images + draws.brightness
    if draws.contrast is not None:
        mean = ops.mean(images, axis=(1, 2, 3), keepdims=True)
        images = mean + (images - mean) * draws.contrast
    if draws.brightness is not None or draws.contrast is not None:
        images = ops.clip(images, 0.0, 1.0)
    if draws.erasures is not None:
        images = _erase(images, settings.erase, draws.erasures)
    return images


def _shift(images: Tensor, most: int, starts: Tensor) -> Tensor:
    """Shift images: pad each with `most` black pixels, then crop it from its own start."""
    examples, height, width, channels = images.shape
    images = ops.pad(images, [[0, 0], [most, most], [most, most], [0, 0]])
    _, rows, columns, _ = images.shape
    row = starts[:, 0, None] + ops.arange(height, dtype=starts.dtype)
    column = starts[:, 1, None] + ops.arange(width, dtype=starts.dtype)
    row += rows * ops.arange(examples, dtype=starts.dtype)[:, None]
    pixels = ops.reshape(images, (examples * rows * columns, channels))
    return ops.take(pixels, row[:, :, None] * columns + column[:, None, :], axis=0)


def _crop_and_rotate(images: Tensor, crop: float, draws: Draws) -> Tensor:
    """Resample each image from its crop, which is rotated around its center."""
    _, height, width, _ = images.shape
    center = ((height - 1) / 2, (width - 1) / 2)
    down = ops.reshape(ops.arange(height, dtype="float32") - center[0], (1, height, 1))
    right = ops.reshape(ops.arange(width, dtype="float32") - center[1], (1, 1, width))
    shift_down = shift_right = 0.0
    if draws.rotations is not None:
        angles = draws.rotations[:, None, None]
        cosine, sine = ops.cos(angles), ops.sin(angles)
        down, right = cosine * down - sine * right, sine * down + cosine * right
    if draws.crops is not None:
        removed = crop * draws.crops[:, 0, None, None]
        shift_down = (2 * draws.crops[:, 1, None, None] - 1) * removed * center[0]
        shift_right = (2 * draws.crops[:, 2, None, None] - 1) * removed * center[1]
        down, right = down * (1 - removed), right * (1 - removed)
    zeros = ops.zeros(images.shape[:3], dtype="float32")
    return _sampled(images, zeros + down + shift_down + center[0], zeros + right + shift_right + center[1])


def _sampled(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the pixels at fractional positions, float32 [n, height, width], bilinear; black outside of the image."""
    examples, height, width, channels = images.shape
    pixels = ops.reshape(images, (examples * height * width, channels))
    first = ops.reshape(ops.arange(examples, dtype="int32") * (height * width), (examples, 1, 1))
    top, left = ops.floor(rows), ops.floor(columns)
    total = 0.0
    for row in (top, top + 1):
        for column in (left, left + 1):
            weight = (1 - ops.abs(rows - row)) * (1 - ops.abs(columns - column))
            inside = (row >= 0) & (row <= height - 1) & (column >= 0) & (column <= width - 1)
            place = ops.clip(row, 0, height - 1) * width + ops.clip(column, 0, width - 1)
            found = ops.take(pixels, first + ops.cast(place, "int32"), axis=0)
            total = total + ops.where(inside, weight, 0.0)[..., None] * found
    return total


def _erase(images: Tensor, most: float, draws: Tensor) -> Tensor:
    _, height, width, _ = images.shape
    row = ops.reshape((ops.arange(height, dtype="float32") + 0.5) / height, (1, height, 1, 1))
    column = ops.reshape((ops.arange(width, dtype="float32") + 0.5) / width, (1, 1, width, 1))
    tall, wide, down, right = (draws[:, number, None, None, None] for number in range(4))
    erased = (ops.abs(row - down) < tall * most / 2) & (ops.abs(column - right) < wide * most / 2)
    return ops.where(erased, 0.0, images)
