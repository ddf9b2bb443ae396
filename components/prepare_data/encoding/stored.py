"""Images as they are stored, where these differ from the source's; called in the processes that write shards.

Images are converted to what readers decode: upright (EXIF orientation), PNG or JPEG, gray or RGB. With data.resize, and
by default where they are much larger than data.image_size, they are stored at training size.

Pixels are decoded as TensorFlow's decoder does in training: color profiles are ignored, an alpha channel is dropped, of
16 bits the upper 8 count. Pillow resizes with the filter of `trainer.data.images`: bilinear with antialiasing. A JPEG
is decoded at a half, a quarter or an eighth of its size if that is still at least twice the stored size, which takes a
third of the time and changes pixels by 0.3 levels on average. PNG stays PNG, and is lossless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipway.components.prepare_data.encoding.image import (
    JPEG_SCALES,
    MIN_COMPARED_SIDE,
    SIDEWAYS,
    ImageInfo,
    See,
    as_image,
    decode,
    decode_jpeg,
    load,
)
from slipway.components.prepare_data.examples import Undecodable, Unusable
from slipway.components.prepare_data.settings import ResizeSettings
from slipway.core.images import QUALITY, encoded, plain, turned

if TYPE_CHECKING:
    from PIL import Image

# The smallest size at which a JPEG is decoded, as a multiple of the stored size.
DECODED_AT_LEAST = 2
# Approximate size of a stored pixel: a JPEG of quality 95 has half a byte, a PNG photograph up to two.
BYTES_PER_PIXEL = 1.0
USUAL_ASPECT_RATIO = 4 / 3


def is_changed(info: ImageInfo, settings: ResizeSettings | None) -> bool:
    """Return whether an image of the source is stored otherwise than it is."""
    return info.is_converted or _stored_size(info, settings) != (info.height, info.width)


def stored_info(info: ImageInfo, settings: ResizeSettings | None) -> ImageInfo:
    """Return the properties of a stored image, which still say how the source's differs."""
    height, width = _stored_size(info, settings)
    return info._replace(height=height, width=width, resized=(height, width) != info.upright_size)


def _stored_size(info: ImageInfo, settings: ResizeSettings | None) -> tuple[int, int]:
    """Return the height and the width of a stored image."""
    height, width = info.upright_size
    shorter = min(height, width)
    if settings is None or shorter <= settings.above:
        return height, width
    if settings.mode != "shorter_side":
        return settings.size, settings.size
    size = min(settings.size, shorter)
    return round(height * size / shorter), round(width * size / shorter)


def stored_bytes(settings: ResizeSettings) -> int:
    """Return the approximate size of a stored image, if the source's is larger."""
    side = max(settings.size, settings.above)
    return round(side**2 * USUAL_ASPECT_RATIO * BYTES_PER_PIXEL)


def store(
    data: bytes, info: ImageInfo, settings: ResizeSettings | None, see: See | None = None
) -> tuple[bytes, ImageInfo]:
    """Return the image as it is stored, and its properties; it is decoded and thus validated in full.

    `see` receives what is decoded, see `image.decode`.

    Raises:
        Undecodable: The image cannot be decoded, although its header is valid.
    """
    stored = stored_info(info, settings)
    try:
        if not is_changed(info, settings):
            return data, stored._replace(damage=decode(data, info, see))
        image, damage = _load(data, info, (DECODED_AT_LEAST * stored.height, DECODED_AT_LEAST * stored.width))
    except Unusable as reason:
        raise Undecodable(str(reason)) from None
    image = plain(image)
    if not info.format:  # which `load` turns upright
        image = turned(image, info.orientation)
    if settings and stored.resized:
        image = resized(image, (stored.width, stored.height), settings.mode)
    if see and min(info.height, info.width) >= MIN_COMPARED_SIDE:
        see(image, 1)
    content = encoded(image, info.encoding, quality=settings.quality if settings else QUALITY)
    return content, stored._replace(damage=damage)


def _load(data: bytes, info: ImageInfo, least: tuple[int, int]) -> tuple[Image.Image, str]:
    """Decode the image, a JPEG to at least `least` (upright height, width); also return its damage, see `decode`."""
    height, width = reversed(least) if info.orientation in SIDEWAYS else least
    fitting = max(min(info.height // height, info.width // width), 1)
    scale = next(scale for scale in JPEG_SCALES if scale <= fitting)
    if info.format:
        return load(data, info), ""
    if info.encoding == "png" or info.cmyk:
        damage = decode(data, info)
        return load(data, info, scale), damage
    pixels, damage = decode_jpeg(data, info, "GRAY" if info.gray else "RGB", scale)
    if pixels is None:
        return load(data, info, scale), damage
    return as_image(pixels), damage


def resized(image: Image.Image, size: tuple[int, int], mode: str) -> Image.Image:
    """Return an image of another size (width, height): cropped, padded with black or, in any other mode, stretched."""
    from PIL import Image, ImageOps

    bilinear = Image.Resampling.BILINEAR
    if mode == "crop":
        return ImageOps.fit(image, size, bilinear)
    if mode != "pad":
        return image.resize(size, bilinear)
    factor = min(size[0] / image.width, size[1] / image.height)
    inner = image.resize((max(round(image.width * factor), 1), max(round(image.height * factor), 1)), bilinear)
    padded = Image.new(image.mode, size)
    padded.paste(inner, ((size[0] - inner.width) // 2, (size[1] - inner.height) // 2))
    return padded
