"""Resizing images to the model's input size."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from slipway.core.images import exif_orientation
from slipway.core.manifest import Manifest, ResizeMode
from tests.photographs import ORIENTATIONS, jpeg, scene, stored

Pixels = NDArray[np.uint8]

pytestmark = pytest.mark.usefixtures("tensorflow")


def decoded(pixels: Pixels, height: int, width: int, mode: str = "stretch") -> Pixels:
    """Return the pixels [height, width, channels] that a model receives for a PNG file of `pixels`."""
    import tensorflow as tf

    from slipway.trainer.data.images import decode_images

    channels = pixels.shape[2]
    manifest = Manifest(
        name="x", fingerprint="", source="", settings={}, classes=[], image_size=(height, width), channels=channels,
        resize=True, resize_mode=mode, encodings=["png"], splits={},
    )  # fmt: skip
    file = io.BytesIO()
    Image.fromarray(pixels if channels == 3 else pixels[:, :, 0]).save(file, "PNG")
    (found,) = decode_images(tf.constant([file.getvalue()]), manifest).numpy()
    return np.asarray(found)


def resized(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize with TensorFlow's own function."""
    import tensorflow as tf

    wanted = tf.image.resize(pixels, [height, width], method="bilinear", antialias=True).numpy()
    return np.clip(np.round(wanted), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_is_resized_as_tensorflow_does_it(channels: int) -> None:
    height, width = 45, 60
    generator = np.random.default_rng(3)
    for size in [(90, 120), (61, 60), (45, 60), (45, 23), (20, 300), (1, 1), (64, 1)]:
        pixels = generator.integers(0, 256, (*size, channels), np.uint8)
        np.testing.assert_array_equal(decoded(pixels, height, width), resized(pixels, height, width), str(size))


@pytest.mark.parametrize("channels", [1, 3])
def test_crop_and_pad_keep_the_aspect_ratio(channels: int) -> None:
    """Crop cuts off both ends of the longer side, pad adds black at both ends of the shorter one."""
    generator = np.random.default_rng(4)
    # (height, width) of the image, and after resizing with its aspect ratio: for crop, for pad.
    for size, whole, within in [
        ((40, 80), (20, 40), (10, 20)),
        ((60, 15), (80, 20), (20, 5)),
        ((8, 8), (20, 20), (20, 20)),
    ]:
        pixels = generator.integers(1, 256, (*size, channels), np.uint8)
        top, left = (whole[0] - 20) // 2, (whole[1] - 20) // 2
        cropped = resized(pixels, *whole)[top : top + 20, left : left + 20]
        np.testing.assert_array_equal(decoded(pixels, 20, 20, "crop"), cropped, str(size))
        top, left = -(-(20 - within[0]) // 2), -(-(20 - within[1]) // 2)
        padded = np.zeros((20, 20, channels), np.uint8)
        padded[top : top + within[0], left : left + within[1]] = resized(pixels, *within)
        np.testing.assert_array_equal(decoded(pixels, 20, 20, "pad"), padded, str(size))
    pixels = generator.integers(0, 256, (30, 20, channels), np.uint8)
    assert (decoded(pixels, 30, 20, "crop") == pixels).all()
    assert (decoded(pixels, 30, 20, "pad") == pixels).all()


@given(
    st.integers(0, 1 << 32), st.sampled_from([1, 3]), st.sampled_from(["stretch", "crop"]),
    *[st.integers(1, 90)] * 4,
)  # fmt: skip
def test_training_resizes_as_the_exported_model_to_one_level(
    seed: int, channels: int, mode: ResizeMode, height: int, width: int, to_height: int, to_width: int
) -> None:
    pytest.importorskip("cykooz_resizer")
    import tensorflow as tf

    from slipway.trainer.data import images

    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    found = np.empty((to_height, to_width, channels), np.uint8)
    images._resize_by_simd(pixels, found, mode)
    expected = images._resize(tf.constant(pixels), to_height, to_width, mode).numpy()
    assert abs(found.astype(int) - expected).max() <= 1


def manifest(height: int, width: int, channels: int = 3) -> Manifest:
    return Manifest(
        name="x", fingerprint="", source="", settings={}, classes=[], image_size=(height, width), channels=channels,
        resize=True, encodings=["jpeg"], splits={},
    )  # fmt: skip


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_orientation_of_a_jpeg_file_is_applied(channels: int, order: str) -> None:
    """The pixels are those of the upright file, before and after resizing."""
    import tensorflow as tf

    from slipway.trainer.data.images import decode_images

    upright = scene(48, 64)
    files = tf.constant([jpeg(stored(upright, each), each, order=order, subsampling=0) for each in ORIENTATIONS])
    for size in ((48, 64), (20, 20)):
        first, *others = decode_images(files, manifest(*size, channels)).numpy().astype(int)
        assert first.std() > 30
        for orientation, found in zip(ORIENTATIONS[1:], others, strict=True):
            assert abs(found - first).mean() < 2, orientation
    (as_stored,) = decode_images(files[5:6], manifest(64, 48, channels), upright=True).numpy()
    assert abs(as_stored.astype(int) - decode_images(files[:1], manifest(64, 48, channels)).numpy()).mean() > 10


def test_damaged_exif_data_have_the_orientation_that_preparation_reads() -> None:
    import tensorflow as tf

    from slipway.trainer.data.images import _orientation, traced

    orientation = traced(_orientation, input_signature=[tf.TensorSpec([], tf.string)])
    draws, found = random.Random(5), set()
    for number in range(400):
        file = bytearray(jpeg(scene(16, 16), draws.choice(ORIENTATIONS), order="<>"[number % 2]))
        start = file.index(b"Exif") + 6
        length = int.from_bytes(file[start - 8 : start - 6]) - 8
        for _ in range(draws.randrange(4)):
            file[start + draws.randrange(length)] = draws.choice((0, 1, 6, 8, 255, draws.randrange(256)))
        if number % 5 == 0:  # ends earlier
            length = draws.randrange(length)
            file[start - 8 : start - 6] = (length + 8).to_bytes(2)
        expected = exif_orientation(bytes(file[start : start + length]))
        assert orientation(tf.constant(bytes(file))).numpy() == expected, file[start : start + length]
        found.add(expected)
    assert found == set(ORIENTATIONS)
    for without in (b"", b"\xff\xd8\xff", jpeg(scene(9, 9), None), b"Exif\0\0MM", b"\xff\xd8\xff\xe1Exif\0\0"):
        assert orientation(tf.constant(without)).numpy() == 1
