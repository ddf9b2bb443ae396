"""Test images for the benchmarks: JPEG files cropped from scikit-learn's two 640x427 sample photographs."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

SIDE = 256
# Ranges of heights and widths: about 320x240.
VARIOUS = ((200, 281), (270, 371))
# CIFAR-10's image size and classes, and the sides of the squares that are scaled down to that size.
CIFAR_SIDE, CIFAR_CLASSES = 32, 10
CIFAR_SQUARES = (40, 161)
# Width and height of a photograph of 12 megapixels (every third is turned), and the standard deviation of its grain,
# with which a file has about three megabytes.
CAMERA_SIZE = (4000, 3000)
GRAIN = 5


def make_jpegs(folder: Path, count: int) -> None:
    """Write `count` files of 256x256 pixels below `folder/train`; see `_cut`."""
    _cut(folder, count, ((SIDE, SIDE + 1), (SIDE, SIDE + 1)))


def make_photographs(folder: Path, count: int) -> None:
    """Write `count` files of various sizes below `folder/train`; see `_cut`."""
    _cut(folder, count, VARIOUS)


def _cut(folder: Path, count: int, sizes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """Write `count` random crops (seed 0), one class per photograph, with random sizes from `sizes`."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    draws = np.random.default_rng(0)
    for label, pixels in enumerate(photographs):
        path = folder / "train" / f"photograph_{label}"
        path.mkdir(parents=True)
        drawn: set[tuple[int, ...]] = set()
        while len(drawn) < len(range(label, count, len(photographs))):
            size = [int(draws.integers(*ends)) for ends in sizes]
            offset = [int(draws.integers(whole - part + 1)) for whole, part in zip(pixels.shape, size, strict=False)]
            cut = (*offset, *size)
            if cut in drawn:  # equal files could not be in two splits
                continue
            top, left, height, width = cut
            file = path / f"{len(drawn):05d}.jpg"
            Image.fromarray(pixels[top : top + height, left : left + width]).save(file, quality=90)
            drawn.add(cut)


def make_pngs(folder: Path, train: int, test: int) -> None:
    """Write the images of `make_cifar` as PNG files."""
    make_cifar(folder, train, test, "png")


def make_cifar(folder: Path, train: int = 50_000, test: int = 10_000, encoding: str = "jpg") -> None:
    """Write a data set the size of CIFAR-10 to `folder`: train and test, 32x32 JPEG files in ten classes (seed 0).

    A class is a band of one photograph, from which squares of various sizes are cut and shrunk.
    """
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    bands = CIFAR_CLASSES // len(photographs)
    draws = np.random.default_rng(0)
    drawn: set[tuple[int, ...]] = set()
    for split, count in (("train", train), ("test", test)):
        for label in range(CIFAR_CLASSES):
            (folder / split / f"class_{label}").mkdir(parents=True)
        for number in range(count):
            label = number % CIFAR_CLASSES
            photograph = photographs[label % len(photographs)]
            cut: tuple[int, ...] = ()
            while not cut or cut in drawn:  # equal files could not be in two splits
                side = int(draws.integers(*CIFAR_SQUARES))
                band = (photograph.width - side) // bands
                left = label // len(photographs) * band + int(draws.integers(band + 1))
                top = int(draws.integers(photograph.height - side))
                cut = (label, left, top, side)
            drawn.add(cut)
            image = photograph.resize((CIFAR_SIDE, CIFAR_SIDE), box=(left, top, left + side, top + side))
            image.save(folder / split / f"class_{label}" / f"{number:05d}.{encoding}", quality=95)


def make_large(folder: Path, count: int) -> None:
    """Write `count` photographs of 12 megapixels below `folder/train`, one class per sample photograph.

    Each is a crop, drawn with its number as the seed, that is enlarged and covered with the grain of a camera's sensor.
    """
    with ProcessPoolExecutor() as pool:
        list(pool.map(_enlarge, [folder] * count, range(count), chunksize=8))


def _enlarge(folder: Path, number: int) -> None:
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    label = number % len(photographs)
    photograph, draws = Image.fromarray(photographs[label]), np.random.default_rng(number)
    size = CAMERA_SIZE if number % 3 else CAMERA_SIZE[::-1]
    width = draws.uniform(0.4, 0.6) * photograph.width
    height = width * size[1] / size[0]
    scale = min(1, photograph.height / height)
    width, height = width * scale, height * scale
    left, top = draws.uniform(0, photograph.width - width), draws.uniform(0, photograph.height - height)
    enlarged = photograph.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
    grain = np.rint(draws.normal(0, GRAIN, (*size[::-1], 1)).astype(np.float32)).astype(np.int16)
    pixels = np.clip(np.asarray(enlarged) + grain, 0, 255).astype(np.uint8)
    path = folder / "train" / f"photograph_{label}" / f"{number:05d}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=90)
