"""Encode many rows of a table of numbers and texts at once, and read them back.

A row in the spool file is what a shard's writer needs of it: its inputs that are numbers and categories, for
statistics, and its features as an Example has them, sorted by name; the writer adds the key and the class.
"""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.messages import example_entry

# The number of bytes of a row's categories, and of its features before the key, between key and class, and after.
HEADER = struct.Struct("<4I")
NUMBER = np.dtype("<f4")
# Separates the categories of a row: no cell has a zero byte.
SEPARATOR = "\0"
# A part of each row: a matrix of bytes with a line for each, or a list.
Pieces: TypeAlias = "NDArray[np.uint8] | list[bytes]"


class EncodedRows(NamedTuple):
    """Rows for the spool file, the bytes of each, and the size of its Features."""

    data: bytes
    lengths: NDArray[np.int64]
    sizes: NDArray[np.int64]


@dataclass(frozen=True)
class TableLayout:
    """What a row consists of.

    Attributes:
        kinds: The kinds of all features by the names under which they are stored: numbers, categories and texts.
        numbers: The inputs, and the target, that are numbers.
        categories: The inputs that are categories.
        gaps: Whether inputs that are numbers may be missing, as NaN.
    """

    kinds: Mapping[str, Kind]
    numbers: Sequence[str]
    categories: Sequence[str]
    gaps: bool

    def encode(
        self, numbers: Mapping[str, NDArray[np.float64]], texts: Mapping[str, pyarrow.StringArray], rows: int
    ) -> EncodedRows:
        """Encode rows from the columns of all features."""
        with np.errstate(over="ignore"):
            stored = {name: values.astype(NUMBER) for name, values in numbers.items()}
        lengths, sizes = np.zeros((rows, HEADER.size // 4), "<u4"), np.zeros(rows, np.int64)
        counted: list[Pieces] = [stored[name].view(np.uint8).reshape(rows, NUMBER.itemsize) for name in self.numbers]
        if self.categories:
            columns = [texts[name] for name in self.categories]
            joined = pyarrow.compute.binary_join_element_wise(*columns, SEPARATOR).cast(pyarrow.binary())
            counted.append(joined.to_pylist())
            lengths[:, 0] = pyarrow.compute.binary_length(joined).to_numpy()
        parts: list[list[Pieces]] = [[], [], []]
        for name in sorted(self.kinds, key=str.encode):
            part = (name.encode() > b"key") + (name.encode() > b"label")
            kind = self.kinds[name]
            found = _numbers(name, kind, stored[name]) if name in stored else _texts(name, kind, texts[name])
            parts[part].append(found.entries)
            lengths[:, 1 + part] += found.lengths
            sizes += found.sizes
        data = _join([lengths.view(np.uint8), *counted, *itertools.chain(*parts)])
        fixed = HEADER.size + len(self.numbers) * NUMBER.itemsize
        return EncodedRows(data, fixed + lengths.sum(axis=1, dtype=np.int64), sizes)

    def decode(
        self, data: mmap.mmap, offsets: Sequence[int]
    ) -> tuple[NDArray[np.float32], list[list[str]], list[tuple[bytes, bytes, bytes]]]:
        """Return the rows at these offsets of the spool file: their numbers, their categories and their features."""
        unpack, own = HEADER.unpack_from, len(self.numbers) * NUMBER.itemsize
        numbers, categories, features = [], [], []
        for start in offsets:
            texts, before, between, after = unpack(data, start)
            start += HEADER.size
            numbers.append(data[start : (start := start + own)])
            categories.append(data[start : (start := start + texts)])
            parts = data[start : (start := start + before)], data[start : (start := start + between)]
            features.append((*parts, data[start : start + after]))
        matrix = np.frombuffer(b"".join(numbers), NUMBER).reshape(len(offsets), len(self.numbers))
        texts_of = [each.decode().split(SEPARATOR) for each in categories] if self.categories else []
        return matrix, texts_of, features


class Column(NamedTuple):
    """The entries of a column's Features in Examples, their lengths, and those of the Features."""

    entries: Pieces
    lengths: NDArray[np.uint32] | int
    sizes: NDArray[np.int64] | int


def _numbers(name: str, kind: Kind, numbers: NDArray[np.float32]) -> Column:
    feature = kind.encode(0.0)
    entry = example_entry(name.encode(), feature)  # its last bytes are the number
    lines = np.empty((len(numbers), len(entry)), np.uint8)
    lines[:, : -NUMBER.itemsize] = np.frombuffer(entry[: -NUMBER.itemsize], np.uint8)
    lines[:, -NUMBER.itemsize :] = numbers.view(np.uint8).reshape(-1, NUMBER.itemsize)
    return Column(lines, len(entry), len(feature))


def _texts(name: str, kind: Kind, column: pyarrow.StringArray) -> Column:
    found = column.dictionary_encode()
    index = found.indices.to_numpy()
    features = [kind.encode(text) for text in found.dictionary.to_pylist()]
    entries = [example_entry(name.encode(), feature) for feature in features]
    lengths, sizes = (np.array([*map(len, each)], np.int64)[index] for each in (entries, features))
    return Column([entries[each] for each in index.tolist()], lengths.astype(np.uint32), sizes)


def _join(pieces: Sequence[Pieces]) -> bytes:
    """Return the pieces of one row after the other."""
    merged: list[Pieces] = []
    for is_matrix, found in itertools.groupby(pieces, key=lambda each: isinstance(each, np.ndarray)):
        run = list(found)
        merged += [np.hstack(run)] if is_matrix else run
    if len(merged) == 1 and isinstance(merged[0], np.ndarray):
        return merged[0].tobytes()
    columns = [_lines(each) if isinstance(each, np.ndarray) else each for each in merged]
    return b"".join(itertools.chain.from_iterable(zip(*columns, strict=True)))


def _lines(matrix: NDArray[np.uint8]) -> list[bytes]:
    data, width = matrix.tobytes(), matrix.shape[1]
    return [data[start : start + width] for start in range(0, len(data), width)] if width else [b""] * len(matrix)
