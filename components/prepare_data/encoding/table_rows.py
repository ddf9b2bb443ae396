"""The rows of a table, many at a time: in the spool file that a source writes, and as the records of a shard.

Each part of a table has a spool file. In it, rows are of one size: their numbers, and for every other column the
position of its Feature in a second file, which has equal Features once. Records are made of a template, into which the
numbers are copied.
"""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

import google_crc32c
import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.messages import bytes_feature, example_entry, field, integer_feature
from slipway.core.tfrecord import CHECKSUM, LENGTH, MASK_DELTA, masked_crc32c

PLAIN = Kind("number")
NUMBER, POSITION = np.dtype("<f4"), np.dtype("<u8")
LENGTH_OF_FEATURE = struct.Struct("<I")
# The number of a row, and the position of a Feature, have the number of their part in the upper bits.
PART_SHIFT = 40
PART_MASK = (1 << PART_SHIFT) - 1
# Features whose positions are held, so that equal ones are written once.
MAX_HELD = 1 << 16
# A spool file that may be in memory as a whole, and rows that are read at once.
MAX_MAPPED = 64 << 20
ROWS_TAKEN = 4096
# Of a record: the framing and the key, and the tags and lengths of an entry.
RECORD_BYTES, ENTRY_BYTES = 64, 8
# A part of many records: the same bytes in each, an array with an element for each, or texts of different lengths.
Part: TypeAlias = "bytes | NDArray[np.generic] | pyarrow.BinaryArray"


class Coded(NamedTuple):
    """A column in which values may repeat: the Features of the different ones, and the index of each row's."""

    features: Sequence[bytes]
    rows: NDArray[np.int64]

    def changed(self, change: Callable[[bytes], bytes]) -> Coded:
        """Return the column with other Features."""
        return Coded([*map(change, self.features)], self.rows)

    def counts(self) -> Iterator[tuple[bytes, int]]:
        """Yield the different Features, and the number of rows of each."""
        return zip(self.features, np.bincount(self.rows, minlength=len(self.features)).tolist(), strict=True)


class Rows(NamedTuple):
    """Rows of a table: their numbers by the names under which they are stored, and the Features of other columns."""

    numbers: Mapping[str, NDArray[np.float32]]
    coded: dict[str, Coded]


@dataclass(frozen=True)
class TableLayout:
    """What a row consists of: the kinds of all features by the names under which they are stored."""

    kinds: Mapping[str, Kind]

    @cached_property
    def numbers(self) -> list[str]:
        """The features that are one number."""
        return [name for name, kind in self.kinds.items() if kind == PLAIN]

    @cached_property
    def coded(self) -> list[str]:
        """The other features."""
        return [name for name, kind in self.kinds.items() if kind != PLAIN]

    @property
    def entry_bytes(self) -> int:
        """About the size of a record beside its Features."""
        return sum(len(name) + ENTRY_BYTES for name in self.kinds) + RECORD_BYTES

    @cached_property
    def row(self) -> np.dtype[np.void]:
        """A row in the spool file."""
        return np.dtype([("numbers", NUMBER, (len(self.numbers),)), ("coded", POSITION, (len(self.coded),))])


class RowSpool:
    """Appends the rows of a part of a table to its spool file in a folder, and their Features to the one beside it."""

    def __init__(self, folder: Path, layout: TableLayout, part: int = 0) -> None:
        self._path = folder / spool_name(part)
        self._layout = layout
        self._held: dict[bytes, int] = {}
        self._rows = self._end = part << PART_SHIFT

    def __enter__(self) -> Self:
        self._file, self._features = self._path.open("wb"), features_beside(self._path).open("wb")
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._features.close()

    def add(self, rows: int, numbers: Mapping[str, NDArray[np.float64]], coded: Mapping[str, Coded]) -> int:
        """Append rows; return the number of the first one."""
        entries = np.empty(rows, self._layout.row)
        with np.errstate(over="ignore"):
            for position, name in enumerate(self._layout.numbers):
                entries["numbers"][:, position] = numbers[name]
        for position, name in enumerate(self._layout.coded):
            places = np.array([*map(self._place, coded[name].features)], POSITION)
            entries["coded"][:, position] = places[coded[name].rows]
        self._file.write(entries.tobytes())
        self._rows += rows
        return self._rows - rows

    def _place(self, feature: bytes) -> int:
        place = self._held.get(feature)
        if place is None:
            if len(self._held) >= MAX_HELD:
                self._held.clear()
            place = self._held[feature] = self._end
            self._end += self._features.write(LENGTH_OF_FEATURE.pack(len(feature)) + feature)
        return place


class RowFile:
    """The rows that the `RowSpool` of each part has written to a folder."""

    def __init__(self, folder: Path, layout: TableLayout, parts: int) -> None:
        self._layout = layout
        paths = [folder / spool_name(part) for part in range(parts)]
        self._maps = [_mapped(path) for path in paths]
        # To copy rows without looking at their fields, which is several times as fast.
        self._whole = np.dtype(f"V{layout.row.itemsize}")
        self._rows = [np.frombuffer(mapped, self._whole) for mapped in self._maps]
        self._features = [_mapped(features_beside(path)) for path in paths]
        self._is_large = sum(map(len, self._maps)) > MAX_MAPPED

    def entries(self, numbers: NDArray[np.int64]) -> NDArray[np.void]:
        """Return the entries of the rows with these numbers, such as all of a shard: they may be anywhere in the files.

        The files are read in order: the kernel maps 64 KB at once, which may have many of the rows.
        """
        entries = np.empty(len(numbers), self._whole)
        order = np.argsort(numbers)
        starts = np.arange(len(self._rows) + 1) << PART_SHIFT
        for part, (first, last) in enumerate(itertools.pairwise(np.searchsorted(numbers[order], starts).tolist())):
            of_part = order[first:last]
            for start in range(0, len(of_part), ROWS_TAKEN):
                taken = of_part[start : start + ROWS_TAKEN]
                entries[taken] = self._rows[part][numbers[taken] & PART_MASK]
                mapped = self._maps[part]
                if self._is_large and isinstance(mapped, mmap.mmap):  # in the end, all of the file would be in memory
                    mapped.madvise(mmap.MADV_DONTNEED)
        return entries.view(self._layout.row)

    def rows(self, entries: NDArray[np.void]) -> Rows:
        """Return the rows of some entries."""
        coded = {name: self._coded(entries["coded"][:, position]) for position, name in enumerate(self._layout.coded)}
        return Rows(dict(zip(self._layout.numbers, np.ascontiguousarray(entries["numbers"].T), strict=True)), coded)

    def features(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the features of a row: names and serialized Features."""
        row = self._rows[number >> PART_SHIFT].view(self._layout.row)[number & PART_MASK]
        for name, value in zip(self._layout.numbers, row["numbers"].tolist(), strict=True):
            yield name.encode(), PLAIN.encode(value)
        for name, position in zip(self._layout.coded, row["coded"].tolist(), strict=True):
            yield name.encode(), self._feature(position)

    def _coded(self, places: NDArray[np.uint64]) -> Coded:
        encoded = pyarrow.array(places).dictionary_encode()
        return Coded([*map(self._feature, encoded.dictionary.to_pylist())], encoded.indices.to_numpy())

    def _feature(self, place: int) -> bytes:
        features, start = self._features[place >> PART_SHIFT], place & PART_MASK
        (length,) = LENGTH_OF_FEATURE.unpack_from(features, start)
        return features[start + LENGTH_OF_FEATURE.size : start + LENGTH_OF_FEATURE.size + length]


def _mapped(path: Path) -> mmap.mmap | bytes:
    if not path.stat().st_size:
        return b""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def spool_name(part: int) -> str:
    """Return the name of the spool file of a part."""
    return f"columns-{part:03d}"


def spooled_names(parts: int) -> list[str]:
    """Return the names of all files that the parts' rows are in."""
    paths = [Path(spool_name(part)) for part in range(parts)]
    return [name for path in paths for name in (path.name, features_beside(path).name)]


def features_beside(path: Path) -> Path:
    """Return the path of the Features of the rows in a spool file."""
    return path.with_name(f"{path.name}.features")


class Records(NamedTuple):
    """The framed records of rows, one after the other, and their lengths."""

    data: bytes
    lengths: NDArray[np.int64]


def records(layout: TableLayout, rows: Rows, keys: Sequence[bytes], labels: NDArray[np.int64] | None) -> Records:
    """Return rows as records of a shard, as `RecordEncoder.encode_with` encodes them one at a time.

    Args:
        layout: The features.
        rows: The rows.
        keys: Their keys.
        labels: Their classes; None if the label is a feature.
    """
    entries: dict[bytes, list[Part]] = {b"key": _key_entry(keys)}
    if labels is not None:
        classes, index = np.unique(labels, return_inverse=True)
        features = [integer_feature([label]) for label in classes.tolist()]
        entries[b"label"] = [_coded_entry("label", Coded(features, index))]
    for name in layout.numbers:
        entry = example_entry(name.encode(), PLAIN.encode(0.0))  # its last bytes are the number
        entries[name.encode()] = [entry[: -NUMBER.itemsize], rows.numbers[name]]
    for name in layout.coded:
        entries[name.encode()] = [_coded_entry(name, rows.coded[name])]
    parts = [*itertools.chain.from_iterable(entries[name] for name in sorted(entries))]
    if any(isinstance(part, pyarrow.BinaryArray) for part in parts):
        return _framed(_joined(parts, len(keys)))
    return _framed_alike(parts, len(keys))


def _framed_alike(parts: Sequence[bytes | NDArray[np.generic]], rows: int) -> Records:
    """Return the records of messages of one size, whose Features are made of these parts."""
    size = sum(map(_size, parts))
    start = field(1, size)
    length = LENGTH.pack(len(start) + size)
    frame = length + CHECKSUM.pack(masked_crc32c(length))
    framed = _filled([frame, start, *parts, bytes(CHECKSUM.size)], rows)
    messages = np.ndarray(rows, f"V{len(start) + size}", framed, len(frame), framed.strides)
    np.ndarray(rows, "<u4", framed, framed.itemsize - CHECKSUM.size, framed.strides)[:] = _checksums(messages.tolist())
    return Records(framed.tobytes(), _lengths(framed))


def _framed(features: pyarrow.BinaryArray) -> Records:
    """Return the records of messages with these Features."""
    sizes, index = np.unique(_lengths(features), return_inverse=True)
    starts = [field(1, size) for size in sizes.tolist()]
    messages: pyarrow.BinaryArray = _joined([_spread(starts, index), features], len(features))
    lengths = [LENGTH.pack(size + len(start)) for size, start in zip(sizes.tolist(), starts, strict=True)]
    frames = [length + CHECKSUM.pack(masked_crc32c(length)) for length in lengths]
    framed = _joined([_spread(frames, index), messages, _checksums(messages.to_pylist())], len(features))
    return Records(_content(framed), _lengths(framed))


def _checksums(messages: Sequence[bytes]) -> NDArray[np.uint32]:
    crcs = np.fromiter(map(google_crc32c.value, messages), np.uint32, len(messages))
    return ((crcs >> 15 | crcs << 17) + MASK_DELTA).astype("<u4")


def _key_entry(keys: Sequence[bytes]) -> list[Part]:
    entries = [example_entry(b"key", bytes_feature([key])) for key in {len(key): key for key in keys}.values()]
    if len(entries) > 1:  # some are copies
        return [pyarrow.array([example_entry(b"key", bytes_feature([key])) for key in keys], pyarrow.binary())]
    size = len(keys[0])
    return [entries[0][:-size], np.frombuffer(b"".join(keys), f"V{size}")]


def _coded_entry(name: str, column: Coded) -> Part:
    return _spread([example_entry(name.encode(), feature) for feature in column.features], column.rows)


def _spread(values: Sequence[bytes], index: NDArray[np.int64]) -> Part:
    """Return the value of each row."""
    if len(values) == 1:
        return values[0]
    size = len(values[0])
    if all(len(value) == size for value in values):
        return np.frombuffer(b"".join(values), f"V{size}")[index]
    return pyarrow.array(values, pyarrow.binary()).take(pyarrow.array(index))


def _joined(parts: Sequence[Part], rows: int) -> NDArray[np.void] | pyarrow.BinaryArray:
    """Return the parts of each row one after the other."""
    merged: list[NDArray[np.void] | pyarrow.BinaryArray] = []
    for is_text, run in itertools.groupby(parts, key=lambda part: isinstance(part, pyarrow.BinaryArray)):
        run_parts = list(run)
        merged += run_parts if is_text else [_filled(run_parts, rows)]
    if len(merged) == 1:
        return merged[0]
    texts = [part if isinstance(part, pyarrow.BinaryArray) else _as_texts(part) for part in merged]
    return pyarrow.compute.binary_join_element_wise(*texts, b"")


def _filled(parts: Sequence[bytes | NDArray[np.generic]], rows: int) -> NDArray[np.void]:
    """Return a template of the parts that are the same in all rows, filled with the others."""
    template = b"".join(part if isinstance(part, bytes) else bytes(part.itemsize) for part in parts)
    result = np.full(rows, np.frombuffer(template, f"V{len(template)}"))
    start = 0
    for part in parts:
        if isinstance(part, np.ndarray):
            np.ndarray(rows, part.dtype, result, start, result.strides)[:] = part
        start += _size(part)
    return result


def _size(part: bytes | NDArray[np.generic]) -> int:
    return len(part) if isinstance(part, bytes) else part.itemsize


def _as_texts(lines: NDArray[np.void]) -> pyarrow.BinaryArray:
    offsets = np.arange(len(lines) + 1, dtype=np.int32) * np.int32(lines.itemsize)
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(lines.tobytes())]
    return pyarrow.Array.from_buffers(pyarrow.binary(), len(lines), buffers)


def _content(texts: pyarrow.BinaryArray) -> bytes:
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :]
    return bytes(memoryview(texts.buffers()[2])[offsets[0] : offsets[len(texts)]])


def _lengths(column: NDArray[np.void] | pyarrow.BinaryArray) -> NDArray[np.int64]:
    if isinstance(column, np.ndarray):
        return np.full(len(column), column.itemsize, np.int64)
    lengths: NDArray[np.int64] = pyarrow.compute.binary_length(column).to_numpy().astype(np.int64)
    return lengths
