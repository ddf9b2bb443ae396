"""Thumbnails of the images that are decoded, by which those that look the same are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipway.core.images import plain, turned

if TYPE_CHECKING:
    from PIL import Image

SIDE = 16
PIXELS = SIDE * SIDE
COUNT_BYTES, LENGTH_BYTES = 8, 4
BILINEAR = 2  # Pillow's number


class Thumbnails:
    """Collects thumbnails of the images that are decoded.

    `see` receives an image where it is decoded, `take` its key as soon as the image is known to be usable.
    """

    def __init__(self) -> None:
        self._last = b""
        self._pixels: list[bytes] = []
        self._keys: list[bytes] = []

    def see(self, image: Image.Image, orientation: int = 1) -> None:
        """Keep the thumbnail of an image that has an EXIF orientation."""
        self._last = thumbnail(image, orientation)

    def take(self, key: bytes) -> None:
        """Add the thumbnail of the image that was seen last, if there is one, as that of the image `key`."""
        if self._last:
            self._pixels.append(self._last)
            self._keys.append(key)
            self._last = b""

    def forget(self) -> None:
        """Forget the image that was seen last: it cannot be used."""
        self._last = b""

    def encoded(self) -> bytes:
        """Return all thumbnails, followed by the keys, each with its length before it."""
        keys = [len(key).to_bytes(LENGTH_BYTES) + key for key in self._keys]
        return b"".join([len(keys).to_bytes(COUNT_BYTES), *self._pixels, *keys])


def thumbnail(image: Image.Image, orientation: int = 1) -> bytes:
    """Return 16x16 gray pixels of an image, upright."""
    if image.mode not in ("L", "RGB"):
        image = plain(image)
    small = image.resize((SIDE, SIDE), BILINEAR, reducing_gap=2.0)
    if orientation != 1:
        small = turned(small, orientation)
    return (small if small.mode == "L" else small.convert("L")).tobytes()
