"""Photographs as people have them: files of cameras, telephones and the web, in folders by class.

    python -m tests.photographs FOLDER

writes 600 of 200 to 3,000 pixels: JPEG files with all EXIF orientations, in CMYK and gray, PNG files with alpha, with
palettes and of 16 bits, WEBP, AVIF, HEIC (with pillow-heif), BMP, TIFF and GIF; 20 more are damaged. The classes differ
in their colors and stripes, and only in an upright image, so that a network that sees rotated ones confuses them.
"""

from __future__ import annotations

import argparse
import io
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, features
from PIL.Image import Transpose

ORIENTATIONS = range(1, 9)
ORIENTATION = 0x0112
# What a camera that is held in each way stores, from the upright image.
_STORED = (
    None, Transpose.FLIP_LEFT_RIGHT, Transpose.ROTATE_180, Transpose.FLIP_TOP_BOTTOM, Transpose.TRANSPOSE,
    Transpose.ROTATE_90, Transpose.TRANSVERSE, Transpose.ROTATE_270,
)  # fmt: skip
CLASSES = ("beach", "forest", "street")


def scene(height: int, width: int, kind: int = 0, seed: int = 0) -> Image.Image:
    """An image without symmetries: bright at the top, and stripes whose direction and color are those of its kind."""
    draws = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    stripes = np.sin(2 * np.pi * 4 * (y, x, x + y)[kind] + draws.uniform(0, 6))
    colors = np.array([(200, 170, 90), (60, 160, 70), (120, 120, 150)][kind]) * draws.uniform(0.9, 1.1)
    light = 1.2 - 0.9 * y * max(height, width) / height + 0.15 * x
    pixels = (colors * light[..., None] * (1 + 0.25 * stripes[..., None])) + draws.normal(0, 3, (height, width, 1))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def unlike(height: int, width: int, seed: int) -> Image.Image:
    """An image of random colors that no other seed has one like."""
    draws = np.random.default_rng(seed)
    coarse = Image.fromarray(draws.integers(40, 216, (6, 8, 3)).astype(np.uint8))
    pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)) + draws.normal(
        0, 4, (height, width, 1)
    )
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def stored(upright: Image.Image, orientation: int) -> Image.Image:
    """The pixels that a camera stores with an orientation."""
    method = _STORED[orientation - 1]
    return upright if method is None else upright.transpose(method)


def exif_of(orientation: int | None, order: str = "<") -> Image.Exif:
    """What a camera writes beside the pixels."""
    exif = Image.Exif()
    exif.endian = order
    exif[0x010F] = "a camera"
    if orientation is not None:
        exif[ORIENTATION] = orientation
    return exif


def saved(image: Image.Image, encoding: str, **options: object) -> bytes:
    """The image as a file."""
    file = io.BytesIO()
    image.save(file, encoding, **options)
    return file.getvalue()


def jpeg(image: Image.Image, orientation: int | None, *, order: str = "<", **options: object) -> bytes:
    """A JPEG file of a camera."""
    return saved(image, "JPEG", exif=exif_of(orientation, order), **{"quality": 95, **options})


def has_heic() -> bool:
    """Whether pillow-heif is installed, and can write."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return "x265" in str(pillow_heif.libheif_info())


def gray_of_16_bits(image: Image.Image) -> Image.Image:
    """A gray image of 16 bits."""
    return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 256 + 9)


def with_alpha(image: Image.Image) -> Image.Image:
    """An image that is transparent in places."""
    found = image.copy()
    found.putalpha(Image.linear_gradient("L").resize(image.size))
    return found


def heic(image: Image.Image, orientation: int) -> bytes:
    """A file of a telephone, whose container has the orientation, too."""
    return saved(stored(image, orientation), "HEIF", quality=90, exif=exif_of(orientation).tobytes())


# A file's extension and content by its kind; `of` receives an upright image and an orientation, which most ignore.
Make = Callable[[Image.Image, int], bytes]
KINDS: dict[str, tuple[str, Make]] = {
    "camera": ("jpg", lambda image, turn: jpeg(stored(image, turn), turn)),
    "web": ("jpg", lambda image, _: saved(image, "JPEG", quality=85, progressive=True)),
    "cmyk": ("jpg", lambda image, _: saved(image.convert("CMYK"), "JPEG", quality=92)),
    "gray": ("jpg", lambda image, _: saved(image.convert("L"), "JPEG", quality=92)),
    "png": ("png", lambda image, _: saved(image, "PNG")),
    "turned png": ("png", lambda image, turn: saved(stored(image, turn), "PNG", exif=exif_of(turn))),
    "alpha": ("png", lambda image, _: saved(with_alpha(image), "PNG")),
    "palette": ("png", lambda image, _: saved(image.quantize(128), "PNG")),
    "16 bits": ("png", lambda image, _: saved(gray_of_16_bits(image), "PNG")),
    "webp": ("webp", lambda image, turn: saved(stored(image, turn), "WEBP", quality=90, exif=exif_of(turn))),
    "lossless webp": ("webp", lambda image, _: saved(image, "WEBP", lossless=True)),
    "bmp": ("bmp", lambda image, _: saved(image, "BMP")),
    "tiff": ("tiff", lambda image, turn: saved(stored(image, turn), "TIFF", exif=exif_of(turn))),
    "gif": ("gif", lambda image, _: saved(image.quantize(128), "GIF")),
    **({"avif": ("avif", lambda image, turn: saved(stored(image, turn), "AVIF", quality=85, exif=exif_of(turn)))}
       if features.check("avif") else {}),
    **({"heic": ("heic", heic)} if has_heic() else {}),
}  # fmt: skip
# After one of each kind, most photographs are of cameras, and many of these are turned.
ORDER = [*KINDS, *["camera"] * 20, *["web"] * 6]


def damaged(data: bytes, draws: random.Random) -> bytes:
    """A file that was cut short, was never complete, or is something else."""
    return draws.choice((data[: len(data) // 3], data[:20], b"", b"<html>not found</html>"))


def write(folder: Path, count: int, sides: Sequence[int], damage: int = 0, seed: int = 0) -> dict[str, int]:
    """Write `count` photographs and `damage` damaged files; return the number of each kind.

    Args:
        folder: The folder of the classes' folders.
        count: The number of photographs; every kind is written for every class if it is large enough.
        sides: The smallest and the largest length of a longer side, in pixels.
        damage: The number of damaged files.
        seed: The seed of all draws.
    """
    draws = random.Random(seed)
    found: dict[str, int] = {}
    for number in range(count + damage):
        kind, name = number % len(CLASSES), ORDER[number // len(CLASSES) % len(ORDER)]
        longer = round(sides[0] * (sides[1] / sides[0]) ** draws.random())
        shape = (longer * 3 // 4, longer) if draws.random() < 0.6 else (longer, longer * 3 // 4)
        ending, make = KINDS[name]
        data = make(scene(*shape, kind, number), draws.choice(ORIENTATIONS))
        if number >= count:
            name, data = "damaged", damaged(data, draws)
        path = folder / CLASSES[kind] / f"{number:04d}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        found[name] = found.get(name, 0) + 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--sides", type=int, nargs=2, default=(200, 3000), metavar=("SMALLEST", "LARGEST"))
    parser.add_argument("--damaged", type=int, default=20)
    args = parser.parse_args()
    for name, count in write(args.folder, args.count, args.sides, args.damaged).items():
        print(f"{count:5} {name}")


if __name__ == "__main__":
    main()
