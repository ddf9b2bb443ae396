"""Folders of small images for the tests of prepare_data."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from PIL import Image

from slipway.components.prepare_data.encoding.messages import features_of
from slipway.components.prepare_data.encoding.records import stored_parts
from slipway.components.prepare_data.settings import DataSettings


def encoded_image(seed: int, size: tuple[int, int] = (6, 5), mode: str = "L", encoding: str = "PNG") -> bytes:
    """Return an encoded image of random pixels; `size` is (height, width)."""
    height, width = size
    bands = len(Image.new(mode, (1, 1)).getbands())
    pixels = random.Random(seed).randbytes(height * width * bands)
    buffer = io.BytesIO()
    Image.frombytes(mode, (width, height), pixels).save(buffer, encoding)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def encoded() -> Callable[..., bytes]:
    """The function `encoded_image`."""
    return encoded_image


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Creates a source folder with the given number of images in each subfolder."""

    def make(folders: Mapping[str, int], name: str = "image_folder", **image: object) -> Path:
        root = tmp_path / name
        for index, (folder, count) in enumerate(folders.items()):
            (root / folder).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                (root / folder / f"image {number}.png").write_bytes(encoded_image(index * 10_000 + number, **image))  # type: ignore[arg-type]
        return root

    return make


@pytest.fixture
def make_settings(tmp_path: Path) -> Callable[..., DataSettings]:
    """Creates settings for a folder of images, with a store in the test's folder."""

    def make(source: Path | str, **settings: object) -> DataSettings:
        reference = source if isinstance(source, str) else f"images:{source}"
        return DataSettings.model_validate(
            {"source": reference, "store": str(tmp_path / "store"), "workers": 2, **settings}
        )

    return make


def example_parts(message: bytes) -> tuple[bytes, bytes, int]:
    """Return the image, key and class of an encoded example."""
    image, key, (label,) = stored_parts(features_of(message))
    assert isinstance(label, int)
    return image, key, label
