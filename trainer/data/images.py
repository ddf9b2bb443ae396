"""From an image's encoded bytes to pixels: one way for training, evaluation and the exported model."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from slipway.core.manifest import Manifest


def decode_images(encoded: Any, manifest: Manifest) -> Any:
    """Encoded PNG or JPEG images, string [n], as pixels uint8 [n, height, width, channels].

    An image of another size than `manifest.image_size` is resized (bilinear, with antialiasing); one with more or fewer
    channels is converted.
    """
    height, width, channels = manifest.image_shape

    def decode(image: Any) -> Any:
        pixels = _decode(image, channels)
        fits = tf.reduce_all(tf.equal(tf.shape(pixels)[:2], [height, width]))
        pixels = tf.cond(fits, lambda: pixels, lambda: _resize(pixels, height, width))
        return tf.ensure_shape(pixels, [height, width, channels])

    return tf.map_fn(decode, encoded, fn_output_signature=tf.TensorSpec([height, width, channels], tf.uint8))


def decode_prepared(encoded: Any, manifest: Manifest) -> Any:
    """The same pixels for images of the set's own shards, string [n] with n known when the graph is made.

    Where nothing is to be resized this is one operation an image, without the loop around it: small images decode
    twice as fast.
    """
    if manifest.resize:
        return decode_images(encoded, manifest)
    images = [_decode(image, manifest.channels) for image in tf.unstack(encoded)]
    return tf.stack([tf.ensure_shape(pixels, manifest.image_shape) for pixels in images])


def _decode(image: Any, channels: int) -> Any:
    pixels = tf.io.decode_image(image, channels=channels, expand_animations=False)
    pixels.set_shape([None, None, channels])
    return pixels


def _resize(pixels: Any, height: int, width: int) -> Any:
    """Pixels uint8 [any, any, channels] resized: what `tf.image.resize(…, antialias=True)` gives, rounded.

    The operation is quick where a row is long and slow where it is short, so rows are resized as [height, 1, width *
    channels], and columns the same way after transposing: the same numbers in half the time.
    """
    size, channels = tf.shape(pixels), pixels.shape[2]
    rows = _resize_first(tf.reshape(pixels, [size[0], size[1] * channels]), height)
    columns = tf.transpose(tf.reshape(rows, [height, size[1], channels]), [1, 0, 2])
    resized = _resize_first(tf.reshape(columns, [size[1], height * channels]), width)
    # An average of pixels is not beyond them.
    rounded = tf.cast(tf.round(resized), tf.uint8)
    return tf.transpose(tf.reshape(rounded, [width, height, channels]), [1, 0, 2])


def _resize_first(values: Any, length: int) -> Any:
    """[any, n] resized to float32 [length, n], bilinear with antialiasing."""
    factor = tf.cast(length, tf.float32) / tf.cast(tf.shape(values)[0], tf.float32)
    resized = tf.raw_ops.ScaleAndTranslate(
        images=values[tf.newaxis, :, tf.newaxis, :],
        size=[length, 1],
        scale=tf.stack([factor, 1.0]),
        translation=[0.0, 0.0],
        kernel_type="triangle",
        antialias=True,
    )
    return resized[0, :, 0, :]


def scale(pixels: Any) -> Any:
    """Pixels uint8 as float32 in [0, 1], what a model is given."""
    return tf.cast(pixels, tf.float32) * (1.0 / 255.0)
