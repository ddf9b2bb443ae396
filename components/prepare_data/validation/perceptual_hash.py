"""Find images that look the same by their thumbnails.

Two images look the same if the pixels of their thumbnails correlate. The perceptual hash of an image is the signs of 64
random projections of these: those of correlated ones differ in few bits, whatever they show (SimHash). Only images
whose hashes differ in at most `MAX_DISTANCE` bits are compared: with a correlation of 0.99, 2.9 bits differ on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from slipway.components.prepare_data.validation.thumbnails import COUNT_BYTES, LENGTH_BYTES, PIXELS

if TYPE_CHECKING:
    from numpy.typing import NDArray

HASH_BITS = 64
MAX_DISTANCE = 6
# The smallest correlation of the pixels of two thumbnails that are the same image, and the smallest contrast of a
# thumbnail (standard deviation, in levels): blank images are not compared.
CORRELATION = 0.99
CONTRAST = 2.0
# Images whose hashes differ in up to `MAX_DISTANCE` bits are equal in at least one of these parts (first bit, bits).
BANDS = ((0, 9), (9, 9), (18, 9), (27, 9), (36, 9), (45, 9), (54, 10))
# An image is compared with this many others of equal bits at most, so that a million takes seconds.
MAX_NEIGHBORS = 300
COMPARED_AT_ONCE = 1 << 16


def read_thumbnails(files: Iterable[Path]) -> tuple[NDArray[np.uint8], list[bytes]]:
    """Return the thumbnails, [images, pixels], and the keys in files of `Thumbnails.encoded`."""
    pixels, keys = [np.empty((0, PIXELS), np.uint8)], []
    for file in files:
        content = file.read_bytes()
        count = int.from_bytes(content[:COUNT_BYTES])
        start = COUNT_BYTES + count * PIXELS
        pixels.append(np.frombuffer(content[COUNT_BYTES:start], np.uint8).reshape(count, PIXELS))
        while start < len(content):
            key = start + LENGTH_BYTES
            end = key + int.from_bytes(content[start:key])
            keys.append(content[key:end])
            start = end
    return np.concatenate(pixels), keys


def find_groups(files: Iterable[Path]) -> list[list[bytes]]:
    """Return the keys of images that look the same, in groups of at least two; sorted.

    An image belongs to a group if it looks the same as any other image of it.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pixels, keys = read_thumbnails(files)
    parts = [pixels[start : start + COMPARED_AT_ONCE] for start in range(0, len(pixels), COMPARED_AT_ONCE)]
    usable = np.flatnonzero(np.concatenate([np.empty(0), *(part.std(axis=1) for part in parts)]) >= CONTRAST)
    pixels = pixels[usable]
    pairs = [np.empty((0, 2), np.int64), *(_same(pixels, candidates) for candidates in _candidates(_hashes(pixels)))]
    first, second = np.concatenate(pairs).T
    if not len(first):
        return []
    graph = coo_array((np.ones(len(first), bool), (first, second)), shape=(len(usable), len(usable)))
    groups: dict[int, list[bytes]] = {}
    labels = connected_components(graph, directed=False)[1]
    for index in np.flatnonzero(np.bincount(labels)[labels] > 1):
        groups.setdefault(int(labels[index]), []).append(keys[usable[index]])
    return sorted(sorted(group) for group in groups.values())


def _hashes(pixels: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the perceptual hashes of thumbnails: the signs of 64 random projections."""
    directions = np.random.RandomState(0).normal(size=(PIXELS, HASH_BITS)).astype(np.float32)  # the same everywhere
    hashes = np.empty(len(pixels), np.uint64)
    for start in range(0, len(pixels), COMPARED_AT_ONCE):
        some = pixels[start : start + COMPARED_AT_ONCE]
        bits = np.packbits(_normal(some) @ directions > 0, axis=1)
        hashes[start : start + len(some)] = bits.view(np.uint64)[:, 0]
    return hashes


def _candidates(hashes: NDArray[np.uint64]) -> Iterator[NDArray[np.int64]]:
    """Yield pairs of indices, [pairs, 2], whose hashes differ in at most `MAX_DISTANCE` bits; some more than once."""
    for bit, bits in BANDS if len(hashes) else ():
        band = (hashes >> np.uint64(bit)) & np.uint64((1 << bits) - 1)
        order = np.lexsort((hashes, band))
        ordered = hashes[order]
        for distance in range(1, min(MAX_NEIGHBORS, int(np.bincount(band.astype(np.int64)).max()) - 1) + 1):
            near = np.flatnonzero(np.bitwise_count(ordered[:-distance] ^ ordered[distance:]) <= MAX_DISTANCE)
            if len(near):
                yield np.stack([order[near], order[near + distance]], axis=1)


def _same(pixels: NDArray[np.uint8], pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of the pairs whose thumbnails correlate."""
    kept = []
    for start in range(0, len(pairs), COMPARED_AT_ONCE):
        some = pairs[start : start + COMPARED_AT_ONCE]
        first, second = (_normal(pixels[some[:, side]]) for side in (0, 1))
        kept.append(some[(first * second).sum(axis=1) >= CORRELATION])
    return np.concatenate(kept)


def _normal(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    centered = pixels - pixels.mean(axis=1, keepdims=True, dtype=np.float32)
    return centered / np.linalg.norm(centered, axis=1, keepdims=True)
