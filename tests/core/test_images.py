"""Image formats: recognized by their content, and converted to upright PNG and JPEG."""

from __future__ import annotations

import io
import struct
import sys

import numpy as np
import pytest
from PIL import Image

from slipway.core import images
from slipway.core.images import BadImage
from tests.photographs import KINDS, ORIENTATIONS, gray_of_16_bits, has_heic, heic, saved, scene, with_alpha

UPRIGHT = scene(48, 64)


def pixels(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB")).astype(int)


@pytest.mark.parametrize("name", KINDS)
def test_a_format_is_recognized_by_its_content(name: str) -> None:
    ending, make = KINDS[name]
    key = images.format_of(make(UPRIGHT, 1))
    assert key and ending in images.FORMATS[key].endings


@pytest.mark.parametrize("data", [b"", b"BM", b"a text", b"RIFF____WAVE", b"\0\0\0\x18ftypmp42\0\0\0\0isom", b"8BPS"])
def test_other_content_is_no_image(data: bytes) -> None:
    assert images.format_of(data) is None
    with pytest.raises(BadImage, match="not an image" if data else "empty"):
        images.converted(data)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("name", KINDS)
def test_a_converted_image_is_upright(name: str, orientation: int) -> None:
    """And has the pixels of the upright image, up to what its format loses."""
    data = images.converted(KINDS[name][1](UPRIGHT, orientation))
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == ("JPEG" if name in ("camera", "web", "cmyk", "gray", "webp", "avif", "heic") else "PNG")
        assert (image.size, image.mode) == (UPRIGHT.size, "L" if name in ("gray", "16 bits") else "RGB")
        assert not image.getexif()
    expected = UPRIGHT.convert("L") if name in ("gray", "16 bits") else UPRIGHT
    difference = abs(pixels(data) - np.asarray(expected.convert("RGB")).astype(int)).mean()
    assert difference < (12 if name == "gif" else 6)


def test_what_is_stored_without_loss_is_converted_without_loss() -> None:
    exact = {
        "turned png": UPRIGHT, "lossless webp": UPRIGHT, "bmp": UPRIGHT, "tiff": UPRIGHT, "alpha": UPRIGHT,
    }  # fmt: skip
    for name, image in exact.items():
        assert (pixels(images.converted(KINDS[name][1](image, 6))) == np.asarray(image)).all(), name
    of_16_bits = pixels(images.converted(saved(gray_of_16_bits(UPRIGHT), "TIFF")))
    assert (of_16_bits[:, :, 0] == np.asarray(UPRIGHT.convert("L"))).all()


def test_the_first_frame_of_an_animation_counts() -> None:
    frames = [UPRIGHT, UPRIGHT.transpose(Image.Transpose.ROTATE_180)]
    for encoding in ("GIF", "WEBP", "TIFF", "AVIF"):
        data = saved(frames[0], encoding, save_all=True, append_images=frames[1:])
        found = abs(pixels(images.converted(data)) - np.asarray(UPRIGHT)).mean()
        assert found < 12, encoding


def test_transparency_is_dropped_as_tensorflow_drops_it() -> None:
    for encoding in ("WEBP", "TIFF", "PNG"):
        data = saved(with_alpha(UPRIGHT), encoding, lossless=True, exact=True)
        assert (pixels(images.converted(data)) == np.asarray(UPRIGHT)).all(), encoding


def test_pixels_without_a_known_range_are_refused() -> None:
    depths = Image.fromarray(np.ones((4, 5), np.float32))
    with pytest.raises(BadImage, match=r"unsupported type .Pillow's mode F"):
        images.converted(saved(depths, "TIFF"))


@pytest.mark.parametrize("name", [name for name in KINDS if name != "bmp"])
def test_a_damaged_image_is_refused_with_the_reason(name: str) -> None:
    data = KINDS[name][1](UPRIGHT, 1)
    for end in (13, len(data) // 2):
        with pytest.raises(BadImage, match=r"cut short|cannot be decoded|not an image"):
            images.converted(data[:end])


def test_an_image_with_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    size = (20_000).to_bytes(2, "little")
    data = bytearray(saved(Image.new("L", (8, 8)), "GIF"))
    data[6:10] = size * 2
    with pytest.raises(BadImage, match="more than 89,478,485"):
        images.converted(bytes(data))


def test_heic_without_its_package_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(BadImage, match=r"is a HEIC image, which needs pillow-heif: pip install 'slipway-ml\[heic\]'"):
        images.converted(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))


def test_a_heic_image_that_ends_within_a_box_is_cut() -> None:
    boxes = [
        struct.pack(">I4s", 24, b"ftyp") + b"heic" + bytes(4) + b"mif1heic",
        struct.pack(">I4s", 108, b"mdat") + bytes(100),
    ]
    whole = b"".join(boxes)
    assert images.format_of(whole) == "heic"
    assert not images.is_cut(whole)
    assert not images.is_cut(whole + bytes(8))  # a box up to the end of the file
    long = struct.pack(">I4sQ", 1, b"mdat", 116) + bytes(100)
    assert not images.is_cut(boxes[0] + long)
    for size in (4, 20, 30, 36, 60, len(whole) - 1):
        assert images.is_cut(whole[:size])
        assert images.is_cut((boxes[0] + long)[:size])


@pytest.mark.skipif(not has_heic(), reason="pillow-heif is not installed, or cannot write")
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95])
def test_a_cut_heic_image_says_so(kept: float) -> None:
    data = heic(Image.effect_noise((64, 64), 50).convert("RGB"), 1)
    with pytest.raises(BadImage, match=r"^it is cut short$"):
        images.upright(data[: int(len(data) * kept)])
