"""Image formats: recognized by content, and converted to the two that networks read, PNG and JPEG.

TensorFlow decodes PNG and JPEG. Preparation stores images of other formats as one of these, and `slipway predict` and
the prediction server convert them in the same way before the model receives them. Pillow decodes them: the first frame,
turned upright as its metadata say, with 8 bits and without transparency and color profile.
"""

from __future__ import annotations

import io
import struct
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipway.core.values import MAX_PIXELS, spoken

if TYPE_CHECKING:
    from PIL import Image

PNG, JPEG = "png", "jpeg"
PNG_START, JPEG_START = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
# The quality of JPEG images that replace other ones.
QUALITY = 95
# zlib's levels of PNG images: those that are stored, and those that only a model reads, where speed counts.
STORED_LEVEL, PASSED_LEVEL = 6, 1
# The start of EXIF data in a JPEG segment, and its entry for the orientation: tag and type.
EXIF = b"Exif\0\0"
EXIF_ORIENTATION, EXIF_SHORT = 0x0112, 3
ORIENTATIONS = range(1, 9)
HEIC_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"))
AVIF_BRANDS = frozenset((b"avif", b"avis"))
# Pillow's modes whose values have a known range, by whether they are gray.
GRAY_MODES = frozenset(("1", "L", "LA", "La", "I;16", "I;16L", "I;16B"))
COLOR_MODES = frozenset(("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"))


@dataclass(frozen=True)
class Format:
    """An image format.

    Attributes:
        name: What it is called.
        endings: The extensions of its files.
        media_types: Its media types.
        reader: Pillow's name of it.
        extra: Slipway's extra that is needed to decode it; "" if Pillow suffices.
    """

    name: str
    endings: tuple[str, ...]
    media_types: tuple[str, ...]
    reader: str
    extra: str = ""


FORMATS = {
    PNG: Format("PNG", ("png",), ("image/png",), "PNG"),
    JPEG: Format("JPEG", ("jpg", "jpeg", "jpe", "jfif"), ("image/jpeg",), "JPEG"),
    "webp": Format("WEBP", ("webp",), ("image/webp",), "WEBP"),
    "avif": Format("AVIF", ("avif",), ("image/avif",), "AVIF"),
    "heic": Format("HEIC", ("heic", "heif"), ("image/heic", "image/heif"), "HEIF", "heic"),
    "bmp": Format("BMP", ("bmp",), ("image/bmp",), "BMP"),
    "tiff": Format("TIFF", ("tif", "tiff"), ("image/tiff",), "TIFF"),
    "gif": Format("GIF", ("gif",), ("image/gif",), "GIF"),
}
NAMES = spoken(image_format.name for image_format in FORMATS.values())
ENDINGS = frozenset(ending for image_format in FORMATS.values() for ending in image_format.endings)
MEDIA_TYPES = tuple(kind for image_format in FORMATS.values() for kind in image_format.media_types)


# Formats whose files begin with the length of each part, so that it shows whether they are complete.
BOXES = ("heic", "avif")


class BadImage(ValueError):
    """An image that cannot be used; the text is the reason."""


def format_of(data: bytes) -> str | None:
    """Return the key in `FORMATS` of an image, by its first bytes; None if it is of no known format."""
    if data.startswith(PNG_START):
        return PNG
    if data.startswith(JPEG_START):
        return JPEG
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:8] == b"ftyp":
        brands = {data[start : start + 4] for start in range(8, min(int.from_bytes(data[:4]), 256), 4)}
        return "avif" if brands & AVIF_BRANDS else "heic" if brands & HEIC_BRANDS else None
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "tiff"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    return "bmp" if data[:2] == b"BM" and data[6:10] == bytes(4) else None


def no_format(data: bytes) -> str:
    """Return why data of no known format cannot be used."""
    return "it is not an image of a supported format" if data else "it is empty"


def exif_orientation(exif: bytes) -> int:
    """Return the orientation in EXIF data, which is a TIFF file: 1 for an upright image, up to 8.

    Viewers rotate or mirror an image that has another one than 1.
    """
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, start)
        for offset in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", exif, offset)
            if tag == EXIF_ORIENTATION and kind == EXIF_SHORT:
                return value if 2 <= value <= 8 else 1
    except struct.error:  # truncated EXIF data, which decoders ignore
        pass
    return 1


def png_orientation(data: bytes) -> int:
    """Return the orientation of a PNG image, from the chunk eXIf before its pixels."""
    start = 33
    while (kind := data[start + 4 : start + 8]) not in (b"IDAT", b"IEND", b""):
        length = int.from_bytes(data[start : start + 4])
        if kind == b"eXIf":
            return exif_orientation(data[start + 8 : start + 8 + length])
        start += 12 + length
    return 1


def is_lossless(image: Image.Image, data: bytes) -> bool:
    """Return whether an image that Pillow opened is stored without loss."""
    match image.format:
        case "WEBP":
            return data[12:16] == b"VP8L" or (data[12:16] == b"VP8X" and b"VP8L" in data[30 : 1 << 16])
        case "TIFF":
            return image.info.get("compression") not in ("jpeg", "tiff_jpeg", "webp")
        case name:
            return name in ("PNG", "BMP", "GIF")


def opened(data: bytes) -> Image.Image:
    """Open an image with Pillow, which reads only its header.

    Raises:
        BadImage: It is of no known format, or damaged, or has too many pixels, or its decoder is not installed.
    """
    from PIL import Image

    key = format_of(data)
    if key is None:
        raise BadImage(no_format(data))
    form = FORMATS[key]
    if form.extra:
        _add_heic(form)
    # Pillow warns of damaged metadata, and of large images, which are refused below.
    warnings.filterwarnings("ignore", module="PIL")
    try:
        image = Image.open(io.BytesIO(data), formats=(form.reader,))
    except Image.DecompressionBombError:
        raise BadImage(f"it has more than {MAX_PIXELS:,} pixels") from None
    except Exception:  # Pillow raises nearly anything on damaged images
        cut = key in BOXES and is_cut(data)
        raise BadImage("it is cut short" if cut else f"its {form.name} header is damaged or cut short") from None
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise BadImage(f"it has {width}x{height} pixels, more than {MAX_PIXELS:,}")
    if image.mode not in GRAY_MODES | COLOR_MODES:
        raise BadImage(f"its pixels have an unsupported type (Pillow's mode {image.mode})")
    return image


def is_cut(data: bytes) -> bool:
    """Return whether a HEIC or AVIF image ends before its last box (ISO/IEC 14496-12: size and type, 4 bytes each)."""
    start = 0
    while start + 8 <= len(data):
        size = int.from_bytes(data[start : start + 4])
        if size == 0:  # up to the end of the file
            return False
        if size == 1:  # the length follows the type
            if start + 16 > len(data):
                return True
            size = int.from_bytes(data[start + 8 : start + 16])
        start += max(size, 8)
    return start != len(data)


def _add_heic(form: Format) -> None:
    """Let Pillow decode HEIC.

    Raises:
        BadImage: pillow-heif is not installed.
    """
    try:
        import pillow_heif
    except ImportError:
        raise BadImage(
            f"it is a {form.name} image, which needs pillow-heif: pip install 'slipway-ml[{form.extra}]'"
        ) from None
    pillow_heif.register_heif_opener()


def upright(data: bytes) -> Image.Image:
    """Decode an image of any format: its first frame, upright, with the mode L or RGB.

    Raises:
        BadImage: It cannot be decoded.
    """
    from PIL import ImageOps

    image = opened(data)
    try:
        image.load()
        turned = ImageOps.exif_transpose(image)
        return plain(turned)
    except Exception as error:
        cut = "truncated" in str(error) or (format_of(data) in BOXES and is_cut(data))
        raise BadImage("it is cut short" if cut else f"it cannot be decoded: {error}") from None


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """Return an image upright that has an EXIF orientation."""
    from PIL.Image import Transpose

    methods = (
        None, Transpose.FLIP_LEFT_RIGHT, Transpose.ROTATE_180, Transpose.FLIP_TOP_BOTTOM, Transpose.TRANSPOSE,
        Transpose.ROTATE_270, Transpose.TRANSVERSE, Transpose.ROTATE_90,
    )  # fmt: skip
    method = methods[orientation - 1]
    return image if method is None else image.transpose(method)


def plain(image: Image.Image) -> Image.Image:
    """Return an image with 8 bits and one channel or three, without comment, color profile and transparency."""
    from PIL import Image

    gray = image.mode in GRAY_MODES
    image.info.clear()
    if image.mode.startswith("I;16"):  # Pillow would cut off large values
        upper = 0 if image.mode.endswith("B") else 1
        image = Image.frombytes("L", image.size, image.tobytes()[upper::2])
    return image.convert("L" if gray else "RGB")


def encoded(image: Image.Image, encoding: str, *, quality: int = QUALITY, level: int = STORED_LEVEL) -> bytes:
    """Encode an image as PNG or JPEG."""
    file = io.BytesIO()
    if encoding == JPEG:
        image.save(file, "JPEG", quality=quality)
    else:
        image.save(file, "PNG", compress_level=level)
    return file.getvalue()


def encoding_of(image: Image.Image, data: bytes) -> str:
    """Return the format in which an image that Pillow opened is stored: JPEG if it is compressed with loss."""
    return PNG if is_lossless(image, data) else JPEG


def converted(data: bytes) -> bytes:
    """Return an image of any format as a model reads it: upright, as PNG or JPEG.

    Raises:
        BadImage: It cannot be decoded.
    """
    return encoded(upright(data), encoding_of(opened(data), data), level=PASSED_LEVEL)
