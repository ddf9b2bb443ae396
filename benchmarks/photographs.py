"""Photographs to measure with: JPEG files cut from scikit-learn's two sample photographs, which have 640x427 pixels."""

from __future__ import annotations

from pathlib import Path

SIDE = 256
# Heights and widths that are drawn from: about 320x240.
VARIOUS = ((200, 281), (270, 371))


def make_jpegs(folder: Path, count: int) -> None:
    """Write so many files of 256x256 pixels below `folder/train`; see `_cut`."""
    _cut(folder, count, ((SIDE, SIDE + 1), (SIDE, SIDE + 1)))


def make_photographs(folder: Path, count: int) -> None:
    """Write so many files of various sizes below `folder/train`; see `_cut`."""
    _cut(folder, count, VARIOUS)


def _cut(folder: Path, count: int, sizes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """Write so many files, one class for each photograph, of sizes and cut at places drawn with seed 0."""
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
            place = [int(draws.integers(whole - part + 1)) for whole, part in zip(pixels.shape, size, strict=False)]
            cut = (*place, *size)
            if cut in drawn:  # equal files could not be in two splits
                continue
            top, left, height, width = cut
            file = path / f"{len(drawn):05d}.jpg"
            Image.fromarray(pixels[top : top + height, left : left + width]).save(file, quality=90)
            drawn.add(cut)
