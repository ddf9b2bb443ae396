"""Resizing images to the model's input size."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from slipway.core.manifest import Manifest

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_is_resized_as_tensorflow_does_it(channels: int) -> None:
    import tensorflow as tf

    from slipway.trainer.data.images import decode_images

    height, width = 45, 60
    manifest = Manifest(
        name="x", fingerprint="", source="", settings={}, classes=[], image_size=(height, width), channels=channels,
        resize=True, encodings=["png"], splits={},
    )  # fmt: skip
    generator = np.random.default_rng(3)
    for size in [(90, 120), (61, 60), (45, 60), (45, 23), (20, 300), (1, 1), (64, 1)]:
        pixels = generator.integers(0, 256, (*size, channels), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels if channels == 3 else pixels[:, :, 0]).save(file, "PNG")
        (found,) = decode_images(tf.constant([file.getvalue()]), manifest).numpy()
        wanted = tf.image.resize(pixels, [height, width], method="bilinear", antialias=True).numpy()
        np.testing.assert_array_equal(found, np.clip(np.round(wanted), 0, 255).astype(np.uint8), err_msg=str(size))
