"""Arrays that are sharded over processes, each of which writes and reads only what it holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Indices = tuple[int, ...]


@dataclass(frozen=True)
class Parts:
    """Parts of an array: those that a process holds, or all that a checkpoint has.

    Attributes:
        shape: The whole array's.
        dtype: Its data type.
        parts: The parts' shapes and functions that return them, by the index of the first element.
    """

    shape: Indices
    dtype: np.dtype[Any]
    parts: Mapping[Indices, tuple[Indices, Callable[[], Array]]]

    @classmethod
    def held(cls, shape: Indices, arrays: Mapping[Indices, Array]) -> Parts:
        """Return the parts that a process holds in memory; at least one, which may be empty."""
        dtype = next(iter(arrays.values())).dtype
        return cls(shape, dtype, {start: (array.shape, partial(np.asarray, array)) for start, array in arrays.items()})

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        """Return a region of the whole array; reads the parts that it overlaps.

        Raises:
            ValueError: A part of it is missing.
        """
        every = itertools.chain(index, itertools.repeat(slice(None)))
        bounds = [axis_slice.indices(size)[:2] for axis_slice, size in zip(every, self.shape, strict=False)]
        region: Array = np.empty([stop - start for start, stop in bounds], self.dtype)
        copied = 0
        for first, (shape, load) in self.parts.items():
            ends = [start + size for start, size in zip(first, shape, strict=True)]
            common = [(max(a, c), min(b, d)) for (a, b), c, d in zip(bounds, first, ends, strict=True)]
            if all(start < stop for start, stop in common):
                target = tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(common, bounds, strict=True))
                source = tuple(slice(a - c, b - c) for (a, b), c in zip(common, first, strict=True))
                region[target] = load()[source]
                copied += region[target].size
        if copied != region.size:
            raise ValueError(f"{region.size - copied} of {region.size} elements are missing")
        return region

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[()]
