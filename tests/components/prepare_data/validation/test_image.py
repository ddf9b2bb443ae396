"""Image validation: accepted images, and reasons for rejecting others."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable

import pytest
from PIL import Image

from slipway.components.prepare_data.sources.source import Unusable
from slipway.components.prepare_data.validation.image import ImageInfo, Inspector


def saved(image: Image.Image, encoding: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, encoding, **options)
    return buffer.getvalue()


def noise(mode: str, size: tuple[int, int] = (23, 17)) -> Image.Image:
    image = Image.frombytes("RGB", size, random.Random(7).randbytes(size[0] * size[1] * 3))
    return image.convert(mode)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, content: bytes, *, depth: int = 8, color: int = 0, interlace: int = 0) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


GOOD = {
    **{f"png {mode}": saved(noise(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA")},
    "png 16 bits": saved(Image.frombytes("I;16", (5, 4), bytes(40)), "PNG"),
    "png with text": saved(noise("L"), "PNG", optimize=True, dpi=(70, 70)),
    "png in many chunks": saved(noise("RGB", (300, 200)), "PNG"),
    "png interlaced": png(1, 1, zlib.compress(b"\0\x40"), interlace=1),
    **{f"jpeg {mode}": saved(noise(mode), "JPEG") for mode in ("L", "RGB", "CMYK")},
    "jpeg progressive": saved(noise("RGB", (60, 40)), "JPEG", progressive=True),
    "jpeg and more": saved(noise("RGB"), "JPEG") + b"what a camera appends",
    "png and more": saved(noise("RGB"), "PNG") + b"what a tool appends",
}


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "header"])
@pytest.mark.parametrize("name", GOOD)
def test_good_images_are_accepted_as_what_they_are(name: str, whole: bool) -> None:
    data = GOOD[name]
    info = Inspector(whole=whole).inspect(data)
    with Image.open(io.BytesIO(data)) as image:
        assert (info.encoding.upper(), info.width, info.height) == (image.format, *image.size)
        assert info.gray == (image.mode in ("1", "L", "LA", "I;16"))


@pytest.mark.parametrize("name", GOOD)
def test_an_image_that_is_cut_short_is_refused(name: str) -> None:
    data = GOOD[name].removesuffix(b"what a camera appends").removesuffix(b"what a tool appends")
    inspector = Inspector(whole=True)
    inspector.inspect(data)
    for end in [*range(0, len(data), max(len(data) // 50, 1)), len(data) - 1]:
        with pytest.raises(Unusable):
            inspector.inspect(data[:end])
        with pytest.raises(Unusable):
            Inspector(whole=False).inspect(data[:end])


@pytest.mark.parametrize("name", [name for name in GOOD if name.startswith("png") and name != "png and more"])
def test_a_flipped_bit_in_a_png_is_found(name: str) -> None:
    data = GOOD[name]
    inspector = Inspector(whole=True)
    generator = random.Random(3)
    ancillary = data.find(b"pHYs")
    for _ in range(50):
        place = generator.randrange(len(data) - 12)
        if 0 <= ancillary - 4 <= place < ancillary + 17:
            continue  # decoders skip this chunk
        flipped = bytearray(data)
        flipped[place] ^= 1 << generator.randrange(8)
        with pytest.raises(Unusable):
            inspector.inspect(bytes(flipped))


BAD = {
    "empty": (b"", "empty"),
    "text": (b"no image at all", "neither PNG nor JPEG"),
    "gif": (saved(noise("P"), "GIF"), "neither PNG nor JPEG"),
    "bomb": (png(10_000, 10_000, zlib.compress(b"\0")), "10000x10000 pixels"),
    "no pixels": (png(0, 5, b""), "not valid"),
    "too few rows": (png(4, 4, zlib.compress(b"\0aaaa" * 3)), "cut short"),
    "too many rows": (png(4, 4, zlib.compress(b"\0aaaa" * 5)), "more pixels"),
    "no zlib": (png(4, 4, b"garbage"), "inflated"),
    "wrong filter": (png(4, 4, zlib.compress(b"\7aaaa" * 4)), "damaged"),
    "small zlib bomb": (png(4, 4, zlib.compress(bytes(10**7))), "more pixels"),
    "lossless jpeg": (GOOD["jpeg L"].replace(b"\xff\xc0\x00\x0b\x08", b"\xff\xc3\x00\x0b\x0c"), "12 bits"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_images_are_refused_with_the_reason(name: str) -> None:
    data, reason = BAD[name]
    with pytest.raises(Unusable, match=reason):
        Inspector(whole=True).inspect(data)


def test_a_bomb_is_refused_by_its_header() -> None:
    with pytest.raises(Unusable, match="pixels"):
        Inspector(whole=False).inspect(BAD["bomb"][0])


def test_an_equal_header_does_not_hide_damage() -> None:
    inspector = Inspector(whole=True)
    good = GOOD["png L"]
    inspector.inspect(good)
    with pytest.raises(Unusable):
        inspector.inspect(good[:-20])


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", [None, 0, 1, 3, 6, 8, 9])
def test_an_exif_orientation_is_found_and_changes_nothing_else(order: str, orientation: int | None) -> None:
    import tensorflow

    exif = Image.Exif()
    exif.endian = order
    exif[0x010F] = "a camera"
    if orientation is not None:
        exif[0x0112] = orientation
    data = saved(noise("RGB", (23, 17)), "JPEG", exif=exif)
    info = Inspector(whole=True).inspect(data)
    assert info == ImageInfo("jpeg", 17, 23, False, turned=orientation in (3, 6, 8))
    # The decoder of training and of the exported model does not apply the orientation.
    assert tensorflow.io.decode_image(data, channels=3).shape == (17, 23, 3)
    start = data.index(b"Exif") + 6
    for place in range(start, start + len(exif.tobytes()) - 10):  # decoders ignore damage there
        Inspector(whole=False).inspect(data[:place] + b"\xff" * 4 + data[place + 4 :])


def photograph(**options: object) -> bytes:
    """A smooth image of 96x96 pixels as a JPEG file."""
    pixels = noise("RGB", (6, 6)).resize((96, 96), Image.Resampling.BICUBIC)
    return saved(pixels.convert(str(options.pop("mode", "RGB"))), "JPEG", **options)


JPEGS = {
    "baseline": photograph(quality=90),
    "no subsampling": photograph(subsampling=0),
    "gray": photograph(mode="L"),
    "four colours": photograph(mode="CMYK"),
    "progressive": photograph(progressive=True),
    "restart markers": photograph(restart_marker_blocks=2),
}


@pytest.fixture(scope="module")
def refused_by_tensorflow() -> Callable[[bytes], bool]:
    import tensorflow

    def refused(data: bytes) -> bool:
        try:
            tensorflow.io.decode_image(data, channels=3, expand_animations=False)
        except tensorflow.errors.InvalidArgumentError:
            return True
        return False

    return refused


def refused(data: bytes) -> bool:
    try:
        Inspector(whole=True).inspect(data)
    except Unusable:
        return True
    return False


@pytest.mark.parametrize("name", JPEGS)
def test_a_damaged_jpeg_is_refused_where_its_reader_would_refuse_it(name: str, refused_by_tensorflow) -> None:
    """Bytes of the coded pixels are changed, some to the start of a marker; some files are truncated."""
    data = JPEGS[name]
    assert not refused(data) and not refused_by_tensorflow(data)
    generator = random.Random(11)
    scan = data.index(b"\xff\xda")
    refusals = []
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(generator.choice((1, 1, 3, 10))):
            damaged[generator.randrange(scan + 14, len(data))] = generator.choice((generator.randrange(256), 0xFF))
        if generator.random() < 0.2:
            damaged[generator.randrange(scan, len(data)) :] = generator.choice((b"", b"\xff\xd9", b"\xff\xda"))
        refusals.append((refused(bytes(damaged)), refused_by_tensorflow(bytes(damaged))))
    assert (False, True) not in refusals
    assert refusals.count((True, False)) <= 2  # a decoder may continue after obvious damage
    assert refusals.count((True, True)) > 20
    assert refusals.count((False, False)) > 20
