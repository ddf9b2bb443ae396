"""Store images at training size (data.resize); called in the processes that write shards.

Pixels are decoded as TensorFlow's decoder does in training: EXIF orientation and color profiles are ignored, an alpha
channel is dropped, of 16 bits the upper 8 count. Pillow resizes with the filter of `trainer.data.images`: bilinear with
antialiasing. A JPEG is decoded at a half, a quarter or an eighth of its size if that is still at least twice the stored
size, which takes a third of the time and changes pixels by 0.3 levels on average. PNG stays PNG, and is lossless.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from slipway.components.prepare_data.encoding.image import (
    JPEG_SCALES,
    ImageInfo,
    decode,
    decode_jpeg,
    load,
)
from slipway.components.prepare_data.examples import Undecodable, Unusable
from slipway.components.prepare_data.settings import ResizeSettings

if TYPE_CHECKING:
    from PIL import Image

# The smallest size at which a JPEG is decoded, as a multiple of the stored size.
DECODED_AT_LEAST = 2
# Approximate size of a stored pixel: a JPEG of quality 95 has half a byte, a PNG photograph up to two.
BYTES_PER_PIXEL = 1.0
USUAL_ASPECT_RATIO = 4 / 3


def resized_info(info: ImageInfo, settings: ResizeSettings | None) -> ImageInfo:
    """Return the properties of a stored image; `turned` is that of the source's image."""
    if settings is None:
        return info
    height = width = size = settings.size
    if settings.mode == "shorter_side":
        shorter = min(info.height, info.width)
        size = min(size, shorter)
        height, width = round(info.height * size / shorter), round(info.width * size / shorter)
    return info if (height, width) == info[1:3] else info._replace(height=height, width=width, cmyk=False)


def stored_bytes(settings: ResizeSettings) -> int:
    """Return the approximate size of a stored image, if the source's is larger."""
    return round(settings.size**2 * USUAL_ASPECT_RATIO * BYTES_PER_PIXEL)


def resize(data: bytes, info: ImageInfo, settings: ResizeSettings) -> tuple[bytes, ImageInfo]:
    """Return the image as it is stored, and its properties; the image is decoded and thus validated in full.

    Raises:
        Undecodable: The image cannot be decoded, although its header is valid.
    """
    stored = resized_info(info, settings)
    try:
        if stored == info:
            return data, info._replace(damage=decode(data, info))
        image, damage = _load(data, info, (DECODED_AT_LEAST * stored.height, DECODED_AT_LEAST * stored.width))
    except Unusable as reason:
        raise Undecodable(str(reason)) from None
    resized = _resized(_plain(image, gray=info.gray), (stored.width, stored.height), settings)
    file = io.BytesIO()
    if info.encoding == "jpeg":
        resized.save(file, "JPEG", quality=settings.quality)
    else:
        resized.save(file, "PNG")
    return file.getvalue(), stored._replace(damage=damage)


def _load(data: bytes, info: ImageInfo, least: tuple[int, int]) -> tuple[Image.Image, str]:
    """Decode the image, a JPEG to no less than `least` (height, width); also return libjpeg's warning, see `decode`."""
    from PIL import Image

    fitting = max(min(info.height // least[0], info.width // least[1]), 1)
    scale = next(scale for scale in JPEG_SCALES if scale <= fitting)
    if info.encoding == "png" or info.cmyk:
        damage = decode(data, info)
        return load(data, info, scale), damage
    pixels, damage = decode_jpeg(data, info, "GRAY" if info.gray else "RGB", scale)
    if pixels is None:
        return load(data, info, scale), damage
    return Image.fromarray(pixels[:, :, 0] if info.gray else pixels), damage


def _plain(image: Image.Image, *, gray: bool) -> Image.Image:
    """Return the image with 8 bits and one channel or three, without its comment, color profile and transparency."""
    from PIL import Image

    image.info.clear()
    if image.mode == "I;16":  # Pillow would cut off large values
        image = Image.frombytes("L", image.size, image.tobytes()[1::2])
    return image.convert("L" if gray else "RGB")


def _resized(image: Image.Image, size: tuple[int, int], settings: ResizeSettings) -> Image.Image:
    from PIL import Image, ImageOps

    bilinear = Image.Resampling.BILINEAR
    if settings.mode == "shorter_side":
        return image.resize(size, bilinear)
    if settings.mode == "crop":
        return ImageOps.fit(image, size, bilinear)
    factor = settings.size / max(image.size)
    inner = image.resize((max(round(image.width * factor), 1), max(round(image.height * factor), 1)), bilinear)
    padded = Image.new(image.mode, size)
    padded.paste(inner, ((settings.size - inner.width) // 2, (settings.size - inner.height) // 2))
    return padded
