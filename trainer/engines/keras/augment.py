"""Image augmentation (`train.augment`) on the device, in Keras operations; the engines draw the random numbers.

An engine draws them from the run's seed, the step and the device, so a resumed run repeats them. They differ between
engines.

Mixup blends each image with another one, and the loss with the loss for its label: Zhang et al. 2018, "mixup: Beyond
Empirical Risk Minimization". Both images are of a device's part of a step's batch. Unlike in the paper's code, with one
factor for a batch, each image has its own, so that how a batch is split over devices does not change how it is blended.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from keras import ops

from slipway.core.errors import UserError
from slipway.trainer.augmentation import AugmentSettings
from slipway.trainer.data.features import with_image

# A tensor of the backend: tf.Tensor, jax.Array or torch.Tensor.
Tensor: TypeAlias = Any
# Labels [batch, …]; with mixup a dict of `own`, `partner` and `factor`, float32 [batch], the factor of the own label.
Labels: TypeAlias = Any
# Function (images, draw) -> images, where draw(n) is the n-th seed of a step on a device.
Custom = Callable[[Any, Callable[[int], Any]], Any]
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
        )


class Draw(Protocol):
    """Draws numbers in [low, high) for one of the transformations, 0 to `TRANSFORMATIONS` - 1.

    Each transformation has its own stream, enabled or not, so that switching one does not change the others' draws.
    """

    def __call__(self, transformation: int, shape: tuple[int, ...], low: Any, high: Any, /) -> Tensor: ...


def augmented(
    inputs: Any,
    labels: Tensor,
    settings: AugmentSettings,
    custom: Custom | None,
    drawing: tuple[Draw, Draw],
    seed: Callable[[int], Tensor],
) -> tuple[Any, Labels]:
    """Augment a device's part of a step's batch: the images of its inputs, and with mixup the labels.

    Args:
        inputs: The network's inputs: one tensor, or a dict by name.
        labels: [batch, …].
        settings: The enabled transformations.
        custom: The user's function, or None.
        drawing: Draw floats, and integers.
        seed: Returns the n-th seed for the user's function.
    """
    inputs = with_image(lambda images: apply(images, settings, *drawing), inputs)
    if custom is not None:
        inputs = with_image(lambda images: custom(images, seed), inputs)
    return mix(inputs, labels, settings.mixup, *drawing) if settings.mixup else (inputs, labels)


def apply(images: Tensor, settings: AugmentSettings, uniform: Draw, integers: Draw) -> Tensor:
    """Augment each image by its own draws.

    Args:
        images: Float32 in [0, 1], [n, height, width, channels].
        settings: The enabled transformations.
        uniform: Draws floats.
        integers: Draws integers.
    """
    examples, per_image = images.shape[0], (images.shape[0], 1, 1, 1)
    if settings.flip:
        images = ops.where(uniform(0, per_image, 0.0, 1.0) < 0.5, ops.flip(images, axis=2), images)
    if settings.shift:
        images = _shift(images, settings.shift, integers(1, (examples, 2), 0, 2 * settings.shift + 1))
    crops = uniform(4, (examples, 3), 0.0, 1.0) if settings.crop else None
    turn = math.radians(settings.rotation)
    rotations = uniform(5, (examples,), -turn, turn) if turn else None
    if crops is not None or rotations is not None:
        images = _crop_and_rotate(images, settings.crop, crops, rotations)
    if settings.brightness:
        images = images + uniform(2, per_image, -settings.brightness, settings.brightness)
    if settings.contrast:
        mean = ops.mean(images, axis=(1, 2, 3), keepdims=True)
        images = mean + (images - mean) * uniform(3, per_image, 1 - settings.contrast, 1 + settings.contrast)
    if settings.brightness or settings.contrast:
        images = ops.clip(images, 0.0, 1.0)
    if settings.erase:
        images = _erase(images, settings.erase, uniform(6, (examples, 4), 0.0, 1.0))
    return images


def _shift(images: Tensor, most: int, starts: Tensor) -> Tensor:
    """Pad with `most` black pixels; crop each image from its own start in [0, 2 x most], down and right, [n, 2]."""
    examples, height, width, channels = images.shape
    images = ops.pad(images, [[0, 0], [most, most], [most, most], [0, 0]])
    _, rows, columns, _ = images.shape
    row = starts[:, 0, None] + ops.arange(height, dtype=starts.dtype)
    column = starts[:, 1, None] + ops.arange(width, dtype=starts.dtype)
    row += rows * ops.arange(examples, dtype=starts.dtype)[:, None]
    pixels = ops.reshape(images, (examples * rows * columns, channels))
    return ops.take(pixels, row[:, :, None] * columns + column[:, None, :], axis=0)


def _crop_and_rotate(images: Tensor, crop: float, crops: Tensor | None, rotations: Tensor | None) -> Tensor:
    """Resample each image from its crop, which is rotated around its center.

    `crops` are, in [0, 1), [n, 3], the fraction of `crop` that is removed, and the crop's offset from the top and from
    the left; `rotations` are in radians, [n].
    """
    _, height, width, _ = images.shape
    center = ((height - 1) / 2, (width - 1) / 2)
    down = ops.reshape(ops.arange(height, dtype="float32") - center[0], (1, height, 1))
    right = ops.reshape(ops.arange(width, dtype="float32") - center[1], (1, 1, width))
    shift_down = shift_right = 0.0
    if rotations is not None:
        angles = rotations[:, None, None]
        cosine, sine = ops.cos(angles), ops.sin(angles)
        down, right = cosine * down - sine * right, sine * down + cosine * right
    if crops is not None:
        removed = crop * crops[:, 0, None, None]
        shift_down = (2 * crops[:, 1, None, None] - 1) * removed * center[0]
        shift_right = (2 * crops[:, 2, None, None] - 1) * removed * center[1]
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
            index = ops.clip(row, 0, height - 1) * width + ops.clip(column, 0, width - 1)
            corner = ops.take(pixels, first + ops.cast(index, "int32"), axis=0)
            total = total + ops.where(inside, weight, 0.0)[..., None] * corner
    return total


def _erase(images: Tensor, most: float, draws: Tensor) -> Tensor:
    """Blacken a rectangle of each image.

    `draws` are in [0, 1), [n, 4]: height and width as fractions of `most`, the center as fractions of the image.
    """
    _, height, width, _ = images.shape
    row = ops.reshape((ops.arange(height, dtype="float32") + 0.5) / height, (1, height, 1, 1))
    column = ops.reshape((ops.arange(width, dtype="float32") + 0.5) / width, (1, 1, width, 1))
    tall, wide, down, right = (draws[:, number, None, None, None] for number in range(4))
    erased = (ops.abs(row - down) < tall * most / 2) & (ops.abs(column - right) < wide * most / 2)
    return ops.where(erased, 0.0, images)


def mix(images: Tensor, labels: Tensor, alpha: float, uniform: Draw, integers: Draw) -> tuple[Tensor, Labels]:
    """Blend each example with the one that is a random distance after it, the same distance for all.

    Args:
        images: Float32 [n, height, width, channels], after all other augmentation.
        labels: [n, …].
        alpha: The parameter of the Beta distribution, above 0.
        uniform: Draws floats.
        integers: Draws integers.
    """
    examples = images.shape[0]
    drawn = uniform(7, (examples, 2), 0.0, 1.0)
    factor = factors(drawn[:, 0], drawn[:, 1], alpha)
    distance = integers(8, (1,), 1, examples)
    partner = (ops.arange(examples, dtype=distance.dtype) + distance) % examples
    weight = factor[:, None, None, None]
    blended = weight * images + (1 - weight) * ops.take(images, partner, axis=0)
    return blended, {"own": labels, "partner": ops.take(labels, partner, axis=0), "factor": factor}


def factors(first: Tensor, second: Tensor, alpha: float) -> Tensor:
    """Return max(x, 1 - x) for x from Beta(alpha, alpha), of two independent draws in [0, 1) each; float32.

    Student's t with 2 alpha degrees of freedom is sqrt(2 alpha (u ** (-1 / alpha) - 1)) cos(2 pi v) (Bailey 1994,
    "Polar generation of random variates with the t-distribution"), and 1/2 + t / (2 sqrt(2 alpha + t²)) has the
    distribution Beta(alpha, alpha). Here this is written so that no intermediate value overflows.
    """
    radius = -ops.expm1(ops.log(first) / alpha)  # 1 - u ** (1 / alpha)
    along = radius * ops.square(ops.cos(math.pi * second))
    return 0.5 + 0.5 * ops.sqrt(ops.minimum(along / (1 - radius + along), 1.0))


def losses(of: Callable[[Tensor], Tensor], labels: Labels) -> Tensor:
    """Return each example's loss, float32 [batch]; `of` returns it for labels that are not mixed."""
    if not isinstance(labels, dict):
        return of(labels)
    factor = labels["factor"]
    return factor * of(labels["own"]) + (1 - factor) * of(labels["partner"])


def dominant(labels: Labels) -> Tensor:
    """Return the label of which an example has at least half."""
    return labels["own"] if isinstance(labels, dict) else labels
