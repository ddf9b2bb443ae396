"""Images that look the same but differ in their bytes: saved again, resized, or frames of one scene.

Whoever decodes an image to validate or to store it passes it to `Thumbnails`, which keeps 16x16 gray pixels of it;
`perceptual_hash` compares these.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.components.prepare_data.examples import readable
from slipway.components.prepare_data.validation.duplicates import Copy, Stored, copies_of
from slipway.core.images import plain, turned

if TYPE_CHECKING:
    from PIL import Image

SIDE = 16
PIXELS = SIDE * SIDE
COUNT_BYTES, LENGTH_BYTES = 8, 4
BILINEAR = 2  # Pillow's number
MAX_NAMED = 5


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


def find_groups(files: Sequence[Path]) -> list[list[bytes]]:
    """Return the keys of images that look the same, by files with `Thumbnails.encoded`; see `perceptual_hash`."""
    if all(file.stat().st_size == COUNT_BYTES for file in files):
        return []
    from slipway.components.prepare_data.validation import perceptual_hash  # imports NumPy and SciPy

    return perceptual_hash.find_groups(files)


def across_splits(groups: Sequence[Sequence[bytes]], split_of: dict[bytes, str]) -> list[Copy]:
    """Return the images that look the same as one in another split, sorted; see `copies_of`."""
    stored = ([Stored(key, split_of[key], ()) for key in group if key in split_of] for group in groups)
    return sorted(copy for group in stored if group for copy in copies_of(group))


def near_duplicate_notes(found: Sequence[Copy]) -> list[str]:
    """Return a note on images that look the same as one in another split, if there are any."""
    if not found:
        return []
    named = [f"{readable(each.key)} ({each.split}) ~ {readable(each.kept)} ({each.keeper})" for each in found]
    more = f"; and {len(found) - MAX_NAMED:,} more" if len(found) > MAX_NAMED else ""
    many = "1 image looks" if len(found) == 1 else f"{len(found):,} images look"
    return [
        f"{many} the same as one in another split: {'; '.join(named[:MAX_NAMED])}{more}. The evaluation metrics may be "
        "better than for new images; --set data.near_duplicates=group keeps such images in one split."
    ]
