"""Photographs to measure with: JPEG files of 256x256 pixels, cut from scikit-learn's two sample photographs."""

from __future__ import annotations

from pathlib import Path

SIDE = 256


def make_jpegs(folder: Path, count: int) -> None:
    """Write so many files below `folder/train`, one class for each photograph, cut at places drawn with seed 0."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    draws = np.random.default_rng(0)
    for label, pixels in enumerate(photographs):
        path = folder / "train" / f"photograph_{label}"
        path.mkdir(parents=True)
        rows, columns = (size - SIDE + 1 for size in pixels.shape[:2])
        # No place twice: equal files could not be in two splits.
        places = draws.choice(rows * columns, len(range(label, count, len(photographs))), replace=False)
        for number, place in enumerate(places):
            top, left = divmod(int(place), columns)
            Image.fromarray(pixels[top : top + SIDE, left : left + SIDE]).save(path / f"{number:05d}.jpg", quality=90)
