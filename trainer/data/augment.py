"""Image augmentation on the device; reproducible from seed, step and replica."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from slipway.core.errors import UserError
from slipway.trainer.config import AugmentSettings


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


def augment(images: Any, settings: AugmentSettings, seed: int, step: Any, replica: Any) -> Any:
    """Augment each image independently: float32 in [0, 1], [batch, height, width, channels], to the same.

    Args:
        images: The replica's examples of a step's batch.
        settings: The augmentations; those that are off cost nothing.
        seed: Seed of the run.
        step: Number of the step (from 0) in the run, an integer scalar tensor.
        replica: Number of the replica in the run, an integer scalar.
    """
    draws = tf.stack([tf.constant(seed, tf.int32), tf.cast(step, tf.int32)])
    draws = tf.random.fold_in(draws, tf.cast(replica, tf.int32))
    # One seed for each augmentation, on or off, so that switching one does not change the others' draws.
    flips, shifts, brightness, contrast = tf.unstack(tf.random.split(draws, 4))
    if settings.flip:
        images = _flip(images, flips)
    if settings.shift:
        images = _shift(images, settings.shift, shifts)
    if settings.brightness:
        images += _per_image(images, -settings.brightness, settings.brightness, brightness)
    if settings.contrast:
        mean = tf.reduce_mean(images, axis=[1, 2, 3], keepdims=True)
        images = mean + (images - mean) * _per_image(images, 1 - settings.contrast, 1 + settings.contrast, contrast)
    if settings.brightness or settings.contrast:
        images = tf.clip_by_value(images, 0.0, 1.0)
    return images


def _flip(images: Any, seed: Any) -> Any:
    """Mirror half of the images horizontally."""
    return tf.where(_per_image(images, 0.0, 1.0, seed) < 0.5, tf.reverse(images, [2]), images)


def _shift(images: Any, most: int, seed: Any) -> Any:
    """Shift each image by up to `most` pixels in both directions, filling with black."""
    _, height, width, _ = images.shape
    starts = tf.random.stateless_uniform([tf.shape(images)[0], 2], seed, 0, 2 * most + 1, tf.int32)
    images = tf.pad(images, [[0, 0], [most, most], [most, most], [0, 0]])
    images = tf.gather(images, starts[:, :1] + tf.range(height), axis=1, batch_dims=1)
    return tf.gather(images, starts[:, 1:] + tf.range(width), axis=2, batch_dims=1)


def _per_image(images: Any, low: float, high: float, seed: Any) -> Any:
    """Draw a uniform number for each image, float32 [batch, 1, 1, 1]."""
    return tf.random.stateless_uniform([tf.shape(images)[0], 1, 1, 1], seed, low, high)
