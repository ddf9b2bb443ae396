"""Image validation: accepted images, and reasons for rejecting others."""

from __future__ import annotations

import io
import random
import struct
import zlib

import pytest
import simplejpeg
from PIL import Image

from slipway.components.prepare_data.encoding.image import ImageInfo, Inspector
from slipway.components.prepare_data.examples import Unusable


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


def interlaced(width: int, height: int, depth: int, color: int) -> bytes:
    """An interlaced PNG of noise with random row filters, in two chunks; its palette, if it has one, is full."""
    draws, bits, rows = random.Random(width), depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color], b""
    for x, y, dx, dy in (
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    ):
        row = (len(range(x, width, dx)) * bits + 7) // 8
        rows += b"".join(bytes([draws.randrange(5)]) + draws.randbytes(row) for _ in range(y, height, dy) if row)
    whole, content = png(width, height, b"", depth=depth, color=color, interlace=1), zlib.compress(rows)
    palette = chunk(b"PLTE", draws.randbytes(3 << depth)) if color == 3 else b""
    return whole[:33] + palette + chunk(b"IDAT", content[:20]) + chunk(b"IDAT", content[20:]) + whole[-12:]


GOOD = {
    **{f"png {mode}": saved(noise(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA")},
    "png 16 bits": saved(Image.frombytes("I;16", (5, 4), bytes(40)), "PNG"),
    "png with text": saved(noise("L"), "PNG", optimize=True, dpi=(70, 70)),
    "png in many chunks": saved(noise("RGB", (300, 200)), "PNG"),
    "png interlaced": png(1, 1, zlib.compress(b"\0\x40"), interlace=1),
    "png interlaced with a palette": interlaced(23, 17, 4, 3),
    "png interlaced with 16 bits": interlaced(3, 9, 16, 6),
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
        offset = generator.randrange(len(data) - 12)
        if 0 <= ancillary - 4 <= offset < ancillary + 17:
            continue  # decoders skip this chunk
        flipped = bytearray(data)
        flipped[offset] ^= 1 << generator.randrange(8)
        with pytest.raises(Unusable):
            inspector.inspect(bytes(flipped))


BAD = {
    "empty": (b"", "empty"),
    "text": (b"no image at all", "not an image of a supported format"),
    "bomb": (png(10_000, 10_000, zlib.compress(b"\0")), "10000x10000 pixels"),
    "no pixels": (png(0, 5, b""), "not valid"),
    "too few rows": (png(4, 4, zlib.compress(b"\0aaaa" * 3)), "cut short"),
    "too many rows": (png(4, 4, zlib.compress(b"\0aaaa" * 5)), "more pixels"),
    "no zlib": (png(4, 4, b"garbage"), "inflated"),
    "wrong filter": (png(4, 4, zlib.compress(b"\7aaaa" * 4)), "damaged"),
    "wrong filter between others": (
        png(2, 2, zlib.compress(b"\0a\0a\5aa"), interlace=1),
        "damaged",
    ),
    "interlaced and cut": (png(2, 2, zlib.compress(b"\0a\0a\0a"), interlace=1), "cut short"),
    "two headers": (GOOD["png P"][:33] + GOOD["png P"][8:], "chunk IHDR is not valid"),
    "palette behind the pixels": (
        png(1, 1, zlib.compress(b"\0\0"), color=3)[:-12] + chunk(b"PLTE", bytes(3)) + chunk(b"IEND", b""),
        "chunk PLTE is not valid",
    ),
    "wide png": (png(1_000_001, 1, zlib.compress(bytes(1_000_002))), "no side may have more than 1,000,000"),
    "high jpeg": (
        GOOD["jpeg L"].replace(b"\x08\x00\x11\x00\x17\x01", b"\x08\xff\xff\x00\x17\x01"),
        "no side may have more than 65,500",
    ),
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
    assert info == ImageInfo("jpeg", 17, 23, False, orientation=orientation if orientation in (3, 6, 8) else 1)
    # The decoder of training and of the exported model does not apply the orientation.
    assert tensorflow.io.decode_image(data, channels=3).shape == (17, 23, 3)
    start = data.index(b"Exif") + 6
    for offset in range(start, start + len(exif.tobytes()) - 10):  # decoders ignore damage there
        Inspector(whole=False).inspect(data[:offset] + b"\xff" * 4 + data[offset + 4 :])


def refused_by_tensorflow(data: bytes, channels: int = 3) -> bool:
    import tensorflow

    try:
        tensorflow.io.decode_image(data, channels=channels, expand_animations=False)
    except tensorflow.errors.InvalidArgumentError:
        return True
    return False


def refused(data: bytes) -> bool:
    try:
        Inspector(whole=True).inspect(data)
    except Unusable:
        return True
    return False


@pytest.mark.parametrize(
    "name", [name for name in BAD if name not in ("gif", "bomb", "small zlib bomb", "too many rows")]
)
def test_tensorflow_refuses_the_bad_images_too(name: str) -> None:
    assert refused_by_tensorflow(BAD[name][0])


def photograph(**options: object) -> bytes:
    """A smooth image of 96x96 pixels as a JPEG file."""
    pixels = noise("RGB", (6, 6)).resize((96, 96), Image.Resampling.BICUBIC)
    return saved(pixels.convert(str(options.pop("mode", "RGB"))), "JPEG", **options)


JPEGS = {
    "baseline": photograph(quality=90),
    "no subsampling": photograph(subsampling=0),
    "optimized": photograph(subsampling=1, optimize=True, comment=b"of a camera" * 9),
    "not converted": photograph(keep_rgb=True),
    "gray": photograph(mode="L"),
    "progressive gray": photograph(mode="L", progressive=True),
    "four colors": photograph(mode="CMYK"),
    "progressive with four colors": photograph(mode="CMYK", progressive=True),
    "progressive": photograph(progressive=True),
    "restart markers": photograph(restart_marker_blocks=2),
}
PNGS = {name: data for name, data in GOOD.items() if name.startswith("png")}


def damaged(data: bytes, draws: random.Random) -> bytes:
    """Flip bits, overwrite bytes, cut off the end, or remove, zero or repeat a part."""
    result, offset, size = bytearray(data), draws.randrange(len(data)), draws.choice((1, 2, 8, 50, 300))
    match draws.choice(("bits", "bits", "header", "bytes", "cut", "end", "hole", "zeros", "repeat")):
        case "bits":
            for _ in range(draws.choice((1, 1, 3))):
                result[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
        case "header":
            result[draws.randrange(min(len(data), 600))] ^= 1 << draws.randrange(8)
        case "bytes":
            for _ in range(draws.choice((1, 3, 10))):
                result[draws.randrange(len(data))] = draws.choice((draws.randrange(256), 0xFF))
        case "cut":
            del result[offset:]
        case "end":
            result[offset:] = draws.choice((b"\xff\xd9", b"\xff\xda", data[-12:], data[-20:]))
        case "hole":
            del result[offset : offset + size]
        case "zeros":
            result[offset : offset + size] = bytes(len(data[offset : offset + size]))
        case "repeat":
            result[offset:offset] = data[draws.randrange(len(data)) :][:size]
    return bytes(result)


@pytest.mark.parametrize("name", [*JPEGS, *PNGS])
def test_a_damaged_image_is_refused_where_its_reader_refuses_it(name: str) -> None:
    data, draws = {**JPEGS, **PNGS}[name], random.Random(11)
    assert not refused(data) and not refused_by_tensorflow(data)
    count, inspector = (150 if name in JPEGS else 40), Inspector(whole=True)
    refusals, warned = [], 0
    for _ in range(count):
        image = damaged(data, draws)
        try:
            warned += bool(inspector.inspect(image).damage)
        except Unusable:
            refusals.append((True, refused_by_tensorflow(image)))
        else:
            refusals.append((False, refused_by_tensorflow(image)))
    assert (False, True) not in refusals
    assert refusals.count((True, False)) <= count // 30  # a decoder may continue after obvious damage
    assert refusals.count((True, True)) > count // 5
    assert warned > count // 10 or name in PNGS


@pytest.mark.parametrize("name", JPEGS)
def test_a_jpeg_with_which_libjpeg_finds_fault_is_damaged(name: str) -> None:
    """Whether libjpeg warns when it decodes all pixels, not only the grayscale image of an eighth of the size."""
    draws, found = random.Random(12), []
    for _ in range(100):
        image = damaged(JPEGS[name], draws)
        if not refused(image):
            try:
                simplejpeg.decode_jpeg(image, "CMYK" if "four" in name else "RGB")
                warns = False
            except ValueError:
                warns = True
            found.append((bool(Inspector(whole=True).inspect(image).damage), warns))
    assert set(found) == {(True, True), (False, False)}


def test_damage_is_found_only_in_full_and_named() -> None:
    data = JPEGS["baseline"]
    image = data[: len(data) // 2] + b"\xff\xd9"
    assert Inspector(whole=True).inspect(image).damage == "Corrupt JPEG data: premature end of data segment"
    assert not Inspector(whole=False).inspect(image).damage
    assert not Inspector(whole=False).inspect(image + b"and more").damage
    assert Inspector(whole=True).inspect(data) == Inspector(whole=False).inspect(data)


@pytest.mark.parametrize("name", JPEGS)
def test_what_tensorflow_cannot_convert_to_grayscale_is_known(name: str) -> None:
    assert Inspector(whole=False).inspect(JPEGS[name]).cmyk == refused_by_tensorflow(JPEGS[name], channels=1)
