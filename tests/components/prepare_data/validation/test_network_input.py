"""Images in which the network sees nothing are refused or named; the documentation's program converts them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.validation.network_input import as_network_sees
from slipway.core.errors import UserError

# The mean of an image's levels, drawn on otherwise empty ground.
Draw = Callable[[int], Image.Image]


def drawn(number: int) -> np.ndarray:
    """A square of 20 pixels at a place of its own, 0 and 1."""
    shape = np.zeros((40, 40), np.uint8)
    shape[number % 20 :, number // 20 :][:20, :20] = 1
    return shape


def in_alpha(number: int) -> Image.Image:
    image = Image.new("RGBA", (40, 40))
    image.putalpha(Image.fromarray(drawn(number) * 255))
    return image


def of_12_bits(number: int) -> Image.Image:
    return Image.fromarray(drawn(number).astype(np.uint16) * 4095)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write 20 images: the first as `draw` has them, the others gray; return their folder."""

    def write(draw: Draw, count: int = 20, name: str = "{:02}.png", **saved: object) -> Path:
        for number in range(20):
            path = tmp_path / "images" / "ab"[number % 2] / name.format(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            image = draw(number) if number < count else Image.fromarray(drawn(number) * 200)
            image.save(path, **saved)
        return tmp_path / "images"

    return write


@pytest.mark.parametrize(("draw", "name"), [(in_alpha, "{:02}.png"), (lambda _: Image.new("L", (40, 40)), "{:02}.gif")])
def test_images_that_are_blank_for_the_network_are_refused(
    write: Callable[..., Path], make_settings: Callable[..., object], draw: Draw, name: str
) -> None:
    animated = {"save_all": True, "append_images": [Image.fromarray(drawn(5) * 255)]} if name.endswith("gif") else {}
    images = write(draw, name=name, **animated)
    with pytest.raises(UserError, match=r"same single color in all 1[0-9] training images compared") as caught:
        prepare(make_settings(images, duplicates="keep"), 1)
    assert ("alpha channel" in caught.value.message) == name.endswith("png")
    assert "Blank images" in str(caught.value.fix)


def test_images_with_few_levels_are_named_and_those_of_other_colors_are_not(
    write: Callable[..., Path], make_settings: Callable[..., object]
) -> None:
    notes = prepare(make_settings(write(of_12_bits, 10), duplicates="keep"), 1).manifest.notes
    (note,) = [note for note in notes if "network sees" in note]
    assert re.search(
        r"fewer than 24 of 256 levels in [5-9] of 1[0-9] .*\(of their 16 bits, decoders keep the upper 8\)", note
    )
    colors = write(lambda number: Image.new("RGB", (40, 40), (number * 10, 200 - number, 7)))
    assert not [
        note for note in prepare(make_settings(colors, duplicates="keep"), 1).manifest.notes if "network sees" in note
    ]


@pytest.mark.parametrize("draw", [in_alpha, of_12_bits])
def test_the_program_of_the_documentation_converts_them(
    write: Callable[..., Path], make_settings: Callable[..., object], draw: Draw, tmp_path: Path
) -> None:
    section = Path("docs/your-own-data.md").read_text().split("### Blank images")[1]
    program = section.split("```python\n")[1].split("```")[0]
    images = write(draw)
    subprocess.run([sys.executable, "-c", program, str(images)], check=True)
    notes = prepare(make_settings(images, duplicates="keep"), 1).manifest.notes
    assert not [note for note in notes if "network sees" in note]


@pytest.mark.parametrize("mode", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_page_shows_what_the_decoder_makes_of_an_image(mode: str, channels: int, tensorflow: object) -> None:
    import tensorflow as tf

    from slipway.trainer.data.images import decode_images
    from tests.photographs import saved, unlike

    manifest = mock.Mock(image_size=(24, 30), image_shape=(24, 30, channels), channels=channels, resize_mode=mode)
    photograph = unlike(6, 9, 3).resize((90, 61), Image.Resampling.BICUBIC)  # smooth: crops may begin a pixel apart
    photograph.putalpha(128)
    image = saved(photograph, "PNG")
    shown = np.asarray(as_network_sees(image, manifest), np.float32).reshape(24, 30, channels)
    expected = decode_images(tf.constant([image]), manifest).numpy()[0]
    assert np.abs(shown - expected).mean() < 5
    assert np.abs(shown - expected[::-1]).mean() > 10
