"""Validate that an image can be decoded, and read its size.

Readers decode PNG and JPEG; images of other formats (`slipway.core.images`) are converted when they are written.

There are two levels: the header (and the end of the file), or a full decode. PNG chunks are checked and inflated with
zlib, which finds every error that libpng would (checksums, truncated or surplus data, filters) several times faster
than decoding pixels.

A JPEG's entropy-coded data is decoded in full by libjpeg-turbo, through simplejpeg, as a grayscale image of an eighth
of the size; this only saves the arithmetic from coefficients to pixels, which cannot fail. If libjpeg warns, the image
is damaged: decoders guess some of its pixels, or refuse it. Only then are its segments followed to the end marker,
which TensorFlow requires, and the image decoded with Pillow, which refuses what TensorFlow refuses otherwise.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from slipway.components.prepare_data.examples import Undecodable, Unusable
from slipway.core import images
from slipway.core.images import EXIF, JPEG_START, PNG_START, exif_orientation, png_orientation
from slipway.core.values import MAX_PIXELS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

# The decoders' limits of width and height.
MAX_SIDE = {"png": 1_000_000, "jpeg": 65_500}
# No image within the limit of pixels needs more.
MAX_IMAGE_BYTES = 1 << 29
PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
PNG_HEADER = struct.Struct(">IIBBBBB")
PNG_HEADER_END = 33
# The name of the second chunk, usually of the pixels: then no metadata precede them.
PNG_CHUNK, PNG_IMAGE_DATA = slice(37, 41), b"IDAT"
PNG_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
PNG_PALETTE = 3
PNG_MAX_PALETTE = 3 * 256
PNG_INTERLACE = 28
# The passes of an interlaced image: first row and column, and the distance between rows and columns.
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
LAST_FILTER = 4
JPEG_END = b"\xff\xd9"
# Markers that start a frame: its size follows. Markers without a length: TEM and the restart markers.
JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
JPEG_BARE = frozenset((0x01, *range(0xD0, 0xD8)))
# libjpeg decodes at a half, a quarter or an eighth of the size with less arithmetic.
JPEG_SCALES = (8, 4, 2, 1)
JPEG_ENDINGS = (b".jpg", b".jpeg")
TURBOJPEG_ERROR = "tj"
JPEG_LAST, JPEG_FIRST_SEGMENT, JPEG_APP1 = 0xD9, 0xC0, 0xE1
# A marker: 0xFF not followed by zero (an escaped 0xFF in entropy-coded data), a restart marker or a fill byte.
JPEG_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])", re.DOTALL)
MAX_KEPT = 4096
# Smaller images, such as digits and icons, look alike without being the same. Of JPEG images, at least this many pixels
# of a side are decoded for a comparison.
MIN_COMPARED_SIDE = 64
LEAST_SIDE = 16
# The EXIF orientations that exchange height and width.
SIDEWAYS = range(5, 9)

# Receives a decoded image and its EXIF orientation.
See: TypeAlias = "Callable[[Image.Image, int], None]"


class ImageInfo(NamedTuple):
    """Properties of an image.

    Attributes:
        encoding: The encoding in which it is stored: png or jpeg.
        height, width: The size in pixels, before it is turned upright.
        gray: Whether it is grayscale.
        orientation: Its EXIF orientation; 1 for an upright image.
        cmyk: Whether it is a JPEG of four color components.
        format: Its format, see `slipway.core.images.FORMATS`, if it is neither PNG nor JPEG; else "".
        resized: Whether it is stored smaller than it is in the source.
        damage: The last warning of libjpeg if it was decoded in full and can be used, but is damaged; else "".
    """

    encoding: str
    height: int
    width: int
    gray: bool
    orientation: int = 1
    cmyk: bool = False
    format: str = ""
    resized: bool = False
    damage: str = ""

    @property
    def is_converted(self) -> bool:
        """Whether it is stored otherwise than in the source: upright, with RGB colors, as PNG or JPEG."""
        return self.orientation != 1 or self.cmyk or self.format != ""

    @property
    def upright_size(self) -> tuple[int, int]:
        """The height and the width of the upright image."""
        return (self.width, self.height) if self.orientation in SIDEWAYS else (self.height, self.width)


def check_bytes(size: int) -> None:
    """Reject an encoded image that is too large, before it is read.

    Raises:
        Unusable: It has more bytes than `MAX_IMAGE_BYTES`.
    """
    if size > MAX_IMAGE_BYTES:
        raise Unusable(f"it has {size:,} bytes, more than {MAX_IMAGE_BYTES:,}")


def check_pixels(height: int, width: int) -> None:
    """Reject an image that has too many pixels.

    Raises:
        Unusable: It has more pixels than `MAX_PIXELS`.
    """
    if height * width > MAX_PIXELS:
        raise Unusable(f"it has {width}x{height} pixels, more than {MAX_PIXELS:,}")


class Inspector:
    """Validates images; create one per process. With `whole`, decodes them in full, otherwise checks the headers.

    `see` receives what is decoded, see `decode`.
    """

    def __init__(self, *, whole: bool, see: See | None = None) -> None:
        self._whole = whole
        self._see = see
        self._png_headers: dict[bytes, ImageInfo] = {}

    def inspect(self, data: bytes) -> ImageInfo:
        """Validate the image and return its properties.

        Raises:
            Unusable: Readers cannot decode the image; the text is the reason.
            Undecodable: The same, for an image whose header and end are valid.
        """
        return self.validate(data, self.header(data))

    def header(self, data: bytes) -> ImageInfo:
        """Return the properties of the image as its header has them.

        Raises:
            Unusable: The header is not valid, or its size is not supported.
        """
        info = self._png_headers.get(data[:PNG_HEADER_END]) or self._read_header(data)
        if info.encoding == "png" and not info.format and data[PNG_CHUNK] != PNG_IMAGE_DATA:
            orientation = png_orientation(data)
            return info if orientation == 1 else info._replace(orientation=orientation)
        return info

    def validate(self, data: bytes, info: ImageInfo) -> ImageInfo:
        """Validate the image whose header is `info`, in full or at its end; return `info` with its damage.

        Raises:
            Unusable: Readers cannot decode the image; the text is the reason.
            Undecodable: The same, for an image whose header and end are valid.
        """
        complete = bool(info.format) or data.endswith(PNG_END if info.encoding == "png" else JPEG_END)
        if complete and not self._whole:
            return info
        try:
            damage = decode(data, info, self._see)
        except Unusable as reason:
            raise Undecodable(str(reason)) if complete else reason from None
        return info._replace(damage=damage) if damage and self._whole else info

    def _read_header(self, data: bytes) -> ImageInfo:
        if data.startswith(PNG_START):
            info = png_header(data)
        elif data.startswith(JPEG_START):
            info = jpeg_header(data)
        else:
            info = other_header(data)
        check_pixels(info.height, info.width)
        if max(info.height, info.width) > MAX_SIDE[info.encoding]:
            raise Unusable(
                f"it has {info.width}x{info.height} pixels; no side may have more than {MAX_SIDE[info.encoding]:,}"
            )
        if data.startswith(PNG_START):
            # Most PNG files of a data set start with the same bytes.
            if len(self._png_headers) >= MAX_KEPT:
                self._png_headers.clear()
            self._png_headers[data[:PNG_HEADER_END]] = info
        return info


def other_header(data: bytes) -> ImageInfo:
    """Read the header of an image that is neither PNG nor JPEG, with Pillow.

    Raises:
        Unusable: The format is unknown, or the header is not valid.
    """
    format_name = images.format_of(data)
    if format_name is None:
        raise Unusable(images.no_format(data))
    try:
        image = images.opened(data)
        encoding = images.encoding_of(image, data)
        # Pillow itself turns images of TIFF and HEIC upright.
        orientation = image.getexif().get(images.EXIF_ORIENTATION, 1) if format_name in ("webp", "avif") else 1
    except images.BadImage as reason:
        raise Unusable(str(reason)) from None
    except Exception as error:  # of damaged metadata
        raise Unusable(f"its metadata cannot be read: {error}") from None
    gray = image.mode in images.GRAY_MODES
    orientation = orientation if orientation in images.ORIENTATIONS else 1
    return ImageInfo(encoding, image.height, image.width, gray, orientation, format=format_name)


def png_header(data: bytes) -> ImageInfo:
    """Read the first chunk of a PNG.

    Raises:
        Unusable: The chunk is truncated, damaged or invalid.
    """
    if len(data) < PNG_HEADER_END:
        raise Unusable("it is cut short")
    if data[8:16] != b"\0\0\0\x0dIHDR" or struct.pack(">I", zlib.crc32(data[12:29])) != data[29:33]:
        raise Unusable("its PNG header is damaged")
    width, height, depth, color, compression, filtering, interlace = PNG_HEADER.unpack_from(data, 16)
    if depth not in PNG_DEPTHS.get(color, ()) or compression or filtering or interlace > 1 or not width or not height:
        raise Unusable("its PNG header is not valid")
    return ImageInfo("png", height, width, color in (0, 4))


def jpeg_header(data: bytes) -> ImageInfo:
    """Read the frame header of a JPEG.

    Raises:
        Unusable: The frame header is missing, or readers do not support it.
    """
    position, orientation = 2, None
    while position + 4 <= len(data):
        if data[position] != 0xFF:
            raise Unusable("its JPEG header is damaged")
        marker = data[position + 1]
        if marker == 0xFF or marker in JPEG_BARE:
            position += 1 if marker == 0xFF else 2
            continue
        (length,) = struct.unpack_from(">H", data, position + 2)
        if marker in JPEG_FRAMES:
            if position + 10 > len(data):
                break
            depth, height, width, samples = struct.unpack_from(">BHHB", data, position + 4)
            if depth != 8 or samples not in (1, 3, 4) or not height or not width:
                raise Unusable(f"it is an unsupported kind of JPEG ({depth} bits, {samples} components)")
            return ImageInfo("jpeg", height, width, samples == 1, orientation or 1, samples == 4)
        if marker in (0xD9, 0xDA) or length < 2:
            raise Unusable("its JPEG header is damaged")
        if marker == JPEG_APP1 and orientation is None and data.startswith(EXIF, position + 4):
            orientation = exif_orientation(data[position + 4 + len(EXIF) : position + 2 + length])
        position += 2 + length
    raise Unusable("it is cut short")


def decode(data: bytes, info: ImageInfo, see: See | None = None) -> str:
    """Decode the image; return libjpeg's last warning if it is damaged, else "".

    `see` receives an image that is large enough to be compared and its EXIF orientation: a JPEG smaller and gray.

    Raises:
        Unusable: It cannot be decoded.
    """
    see = see if min(info.height, info.width) >= MIN_COMPARED_SIDE else None
    if info.format:
        image = load(data, info)
        if see:
            see(image, 1)
        return ""
    if info.encoding == "jpeg":
        scale = next(factor for factor in JPEG_SCALES if not see or min(info.height, info.width) >= factor * LEAST_SIDE)
        pixels, damage = decode_jpeg(data, info, "GRAY", scale)
        if see and pixels is not None:
            see(as_image(pixels), info.orientation)
        return damage
    sizes, bits = [(info.height, info.width)], PNG_SAMPLES[data[25]] * data[24]
    if data[PNG_INTERLACE]:
        sizes = [(-(-(info.height - y) // dy), -(-(info.width - x) // dx)) for y, x, dy, dx in ADAM7]
    _check_rows(_png_pixels(data), [(rows, (width * bits + 7) // 8 + 1) for rows, width in sizes if width > 0])
    if see:
        see(load(data, info), info.orientation)
    return ""


def _follow_segments(data: bytes) -> None:
    """Follow a JPEG's segments to its end marker, over the entropy-coded data of its scans.

    Raises:
        Unusable: There is no end marker, or damaged data looks like a segment that is longer than the rest of the file.
    """
    position = 2
    while marker := JPEG_MARKER.search(data, position):
        kind, position = marker[1][0], marker.end()
        if kind == JPEG_LAST:
            return
        if kind < JPEG_FIRST_SEGMENT:  # libjpeg rejects or skips it
            continue
        position += int.from_bytes(data[position : position + 2])
    raise Unusable("it is damaged or cut short")


def _png_pixels(data: bytes) -> bytes | memoryview:
    """Return the compressed pixels; verify the checksums of all critical chunks and the end of the file."""
    view = memoryview(data)
    parts: list[memoryview] = []
    position, palette = PNG_HEADER_END, data[25] != PNG_PALETTE
    while not data.startswith(PNG_END, position):
        end = position + 12 + int.from_bytes(data[position : position + 4])
        if end > len(data):
            raise Unusable("it is cut short")
        kind = data[position + 4 : position + 8]
        # A lower-case first letter marks ancillary chunks, which decoders may skip.
        if kind[0] & 0x20 == 0 and zlib.crc32(view[position + 4 : end - 4]).to_bytes(4) != data[end - 4 : end]:
            raise Unusable(f"the checksum of its PNG chunk {kind.decode('latin-1')} is wrong")
        if kind == b"IDAT":
            parts.append(view[position + 8 : end - 4])
        elif kind == b"PLTE" and not parts and 0 < end - position - 12 <= PNG_MAX_PALETTE:
            palette = True
        elif kind == b"IEND":
            raise Unusable("its end is damaged")
        elif kind[0] & 0x20 == 0:
            raise Unusable(f"its PNG chunk {kind.decode('latin-1')} is not valid there")
        position = end
    if not palette:
        raise Unusable("its palette is missing")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_rows(compressed: bytes | memoryview, passes: list[tuple[int, int]]) -> None:
    """Inflate the rows of all passes (rows, bytes of each); the first byte of each row is its filter type."""
    inflater = zlib.decompressobj()
    size = sum(height * row for height, row in passes)
    try:
        # The end of the zlib stream, with its checksum, follows the last row.
        rows = inflater.decompress(compressed, size + 1)
    except zlib.error:
        raise Unusable("its pixels cannot be inflated") from None
    if len(rows) > size:
        raise Unusable("it has more pixels than its header says")
    if len(rows) != size or not inflater.eof:
        raise Unusable("its pixels are cut short")
    start = 0
    for height, row in passes:
        end = start + height * row
        if height and max(rows[start:end:row]) > LAST_FILTER:
            raise Unusable("its pixels are damaged")
        start = end


def import_decoder(key: bytes) -> None:
    """Import what decodes the image `key`; workers forked afterwards need not import it each."""
    if key.lower().endswith(JPEG_ENDINGS):
        import simplejpeg  # noqa: F401


def decode_jpeg(data: bytes, info: ImageInfo, colors: str, scale: int) -> tuple[NDArray[np.uint8] | None, str]:
    """Decode a JPEG at 1/`scale` of its size.

    Args:
        data: The JPEG.
        info: Its properties.
        colors: GRAY or RGB.
        scale: One of `JPEG_SCALES`.

    Returns:
        The pixels [height, width, channels], or None if only Pillow can decode them; and libjpeg's last warning if the
        image is damaged, else "".

    Raises:
        Unusable: It cannot be decoded.
    """
    import simplejpeg

    height, width = -(-info.height // scale), -(-info.width // scale)
    try:
        return simplejpeg.decode_jpeg(data, colors, min_height=height, min_width=width), ""
    except ValueError as warning:
        # An error of TurboJPEG itself means that it does not support the image, such as its subsampling.
        damage = "" if str(warning).startswith(TURBOJPEG_ERROR) else str(warning)
    _follow_segments(data)
    load(data, info, JPEG_SCALES[0])
    try:
        return simplejpeg.decode_jpeg(data, colors, min_height=height, min_width=width, strict=False), damage
    except ValueError:
        return None, damage


def as_image(pixels: NDArray[np.uint8]) -> Image.Image:
    """Return pixels [height, width, 1 or 3] as Pillow's image."""
    from PIL import Image

    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def load(data: bytes, info: ImageInfo, scale: int = 1) -> Image.Image:
    """Decode the image with Pillow, a JPEG at 1/`scale` of its size; of other formats than PNG and JPEG, upright.

    Raises:
        Unusable: It cannot be decoded.
    """
    from PIL import JpegImagePlugin, PngImagePlugin

    try:
        if info.format:
            return images.upright(data)
        reader = JpegImagePlugin.JpegImageFile if info.encoding == "jpeg" else PngImagePlugin.PngImageFile
        image = reader(io.BytesIO(data))
        if info.encoding == "jpeg":
            image.draft(None, (max(info.width // scale, 1), max(info.height // scale, 1)))
        image.load()
    except images.BadImage as reason:
        raise Unusable(str(reason)) from None
    except Exception as error:  # Pillow raises nearly anything on damaged images
        raise Unusable(f"it cannot be decoded: {error}") from None
    return image


# PNG color type by number of channels.
COLORS = {1: 0, 2: 4, 3: 2, 4: 6}


def encode_png(pixels: bytes, height: int, width: int, channels: int = 1, *, level: int = 6) -> bytes:
    """Encode `pixels` [height, width, channels] as an 8-bit PNG; `level` is zlib's, where 0 does not compress."""
    row = width * channels
    rows = b"".join(b"\0" + pixels[start : start + row] for start in range(0, height * row, row))
    header = struct.pack(">IIBBBBB", width, height, 8, COLORS[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows, level)), _chunk(b"IEND", b""))
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
