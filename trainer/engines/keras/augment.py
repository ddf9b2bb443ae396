"""Image augmentation (`train.augment`) on the device, in Keras operations; the engines draw the random numbers.

An engine draws them from the run's seed, the step and the device, so a resumed run repeats them. They differ between
engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from keras import ops

from slipway.core.errors import UserError
from slipway.trainer.config import AugmentSettings

# A tensor of the backend: tf.Tensor, jax.Array or torch.Tensor.
Tensor: TypeAlias = Any


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
    """Draws numbers in [low, high) for one of the four transformations, 0 to 3.

    Each transformation has its own stream, enabled or not, so that switching one does not change the others' draws.
    """

    def __call__(self, transformation: int, shape: tuple[int, ...], low: Any, high: Any, /) -> Tensor: ...


@dataclass(frozen=True)
class Draws:
    """The random draws for a batch of n images; None for a disabled transformation.

    `flips` is float [n, 1, 1, 1] in [0, 1): an image is flipped if below 0.5. `shifts` is integer [n, 2] in
    [0, 2 x settings.shift], down and right. `brightness` (added) and `contrast` (a factor) are float [n, 1, 1, 1].
    """

    flips: Tensor
    shifts: Tensor
    brightness: Tensor
    contrast: Tensor


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
    return Draws(
        flips=uniform(0, each, 0.0, 1.0) if settings.flip else None,
        shifts=integers(1, (examples, 2), 0, 2 * most + 1) if most else None,
        brightness=uniform(2, each, -brightness, brightness) if brightness else None,
        contrast=uniform(3, each, 1 - contrast, 1 + contrast) if contrast else None,
    )


def change(images: Tensor, settings: AugmentSettings, draws: Draws) -> Tensor:
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
