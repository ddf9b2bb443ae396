"""Encoder and reader for TFRecord files of tf.train.Example, without TensorFlow.

A record holds an example's `image` (encoded bytes, if it has one), `key` (bytes), `label` (see `slipway.core.manifest`)
and any additional features: the
protocol buffer message, identical to TensorFlow's deterministic serialization, in TFRecord's framing (length, masked
CRC-32C of the length, message, masked CRC-32C of the message; all little-endian). Without additional features, most
records differ only in these lengths, so the bytes around image and key are cached by length.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple, Protocol

import google_crc32c

from slipway.components.prepare_data.encoding.messages import (
    bytes_feature,
    example,
    features_of,
    field,
    integer_feature,
    values,
    varint,
)
from slipway.core.tfrecord import CHECKSUM, HEADER_BYTES, LENGTH, MASK_DELTA, mask, masked_crc32c, record_length

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_KEPT = 4096
# A message of up to this size is copied once more, which takes less time than computing its checksum in parts.
SMALL_BYTES = 1 << 14
SEARCH_BYTES = 1 << 20
# Of a sample, which is in memory several times.
SAMPLE_BYTES = 256 << 20
# Of a shard, of which many records are read at once.
PIECE_BYTES = 1 << 20
# Possible starts of a record: the 8-byte length is below 2**40.
POSSIBLE_LENGTH = re.compile(rb"(?=.{5}\0\0\0)", re.DOTALL)
# Tags of the length-delimited fields 1 and 2.
ONE, TWO = b"\n", b"\x12"
# Of a byte of a varint: the bits of the number. In all but the last byte, the other bit is set.
VARINT_BITS = 0x7F
Label = tuple[bytes | float | int, ...]

_crc32c, _extend, _packed = google_crc32c.value, google_crc32c.extend, CHECKSUM.pack


class ShardFile(Protocol):
    """The file of a shard: its path, or what has its content."""

    def open(self, mode: Literal["rb"], /) -> BinaryIO: ...


class DamagedRecord(Exception):
    """A TFRecord file is truncated or has a wrong checksum."""


def _bytes_entry(name: bytes, length: int) -> tuple[bytes, int]:
    """Return the bytes before a value of `length` bytes in Features.feature, and the total length."""
    # Field 1 in field 1 in field 2 in field 1; unrolled, because every distinct image length needs its own.
    before = ONE + varint(length)
    before = ONE + varint(len(before) + length) + before
    before = ONE + varint(len(name)) + name + TWO + varint(len(before) + length) + before
    before = ONE + varint(len(before) + length) + before
    return before, len(before) + length


def _label_entry(label: int) -> bytes:
    value = varint(label)
    integers = field(1, len(value)) + value
    feature = field(3, len(integers)) + integers
    entry = field(1, len(b"label")) + b"label" + field(2, len(feature)) + feature
    return field(1, len(entry)) + entry


class RecordEncoder:
    """Encodes records; create one per process."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[int, int, int], tuple[bytes, bytes, bytes]] = {}
        self._keys: dict[int, tuple[bytes, int]] = {}
        self._labels: dict[int, bytes] = {}

    def encode(self, image: bytes, key: bytes, label: int) -> bytes:
        """Encode an example as a framed record. `label` is not negative."""
        after_key = self._labels.get(label) or self._labels.setdefault(label, _label_entry(label))
        lengths = (len(image), len(key), len(after_key))
        frame, before_image, before_key = self._layouts.get(lengths) or self._layout(lengths)
        if lengths[0] <= SMALL_BYTES:
            message = b"".join((before_image, image, before_key, key, after_key))
            return b"".join((frame, message, _packed(mask(_crc32c(message)))))
        # The checksum is computed incrementally, so that a large image is copied only once.
        after_image = b"".join((before_key, key, after_key))
        crc = _extend(_extend(_crc32c(before_image), image), after_image)
        return b"".join((frame, before_image, image, after_image, _packed(mask(crc))))

    def encode_with(
        self, image: bytes | None, key: bytes, label: int | None, additional: Iterable[tuple[bytes, bytes]]
    ) -> bytes:
        """Encode an example with additional features (names and serialized Features) as a framed record.

        Args:
            image: The image; None if there is none.
            key: The key.
            label: The class; None if the additional features have the label.
            additional: The additional features.
        """
        features = [(b"key", bytes_feature([key]))]
        if image is not None:
            features.append((b"image", bytes_feature([image])))
        if label is not None:
            features.append((b"label", integer_feature([label])))
        message = example((*features, *additional))
        length = LENGTH.pack(len(message))
        checksums = (CHECKSUM.pack(masked_crc32c(part)) for part in (length, message))
        return b"".join((length, next(checksums), message, next(checksums)))

    def _layout(self, lengths: tuple[int, int, int]) -> tuple[bytes, bytes, bytes]:
        """Return the frame, the bytes before the image and the bytes before the key for these lengths."""
        if len(self._layouts) >= MAX_KEPT:
            self._layouts.clear()
            self._keys.clear()
        image, key, label = lengths
        before_image, image_length = _bytes_entry(b"image", image)
        if key not in self._keys:
            self._keys[key] = _bytes_entry(b"key", key)
        before_key, key_length = self._keys[key]
        features = image_length + key_length + label
        before_features = ONE + varint(features)
        before_image = before_features + before_image
        length = LENGTH.pack(len(before_features) + features)
        layout = (length + CHECKSUM.pack(masked_crc32c(length)), before_image, before_key)
        self._layouts[lengths] = layout
        return layout


def read_records(file: BinaryIO, offset: int = 0) -> Iterator[bytes]:
    """Yield the messages of a TFRecord file from an offset on, in order.

    Raises:
        DamagedRecord: The file is truncated or a checksum is wrong.
    """
    for record in scan(file, offset):
        if record.reason is not None:
            raise DamagedRecord(record.reason)
        yield record.message


class Found(NamedTuple):
    """A record: its offset, its message, and the reason if it cannot be used (the message is then empty).

    If `is_cut`, nothing after the offset is readable, and how many records are lost is not known.
    """

    offset: int
    message: bytes
    reason: str | None
    is_cut: bool = False


def scan(file: BinaryIO, offset: int = 0) -> Iterator[Found]:
    """Yield all records from an offset on. Damaged bytes are reported and skipped up to the next intact record."""
    size = file.seek(0, os.SEEK_END)
    file.seek(offset)
    while offset < size:
        length = record_length(file.read(HEADER_BYTES))
        end = size + 1 if length is None else offset + HEADER_BYTES + length + CHECKSUM.size
        if length is None or end > size:
            following = _next_record(file, offset + 1, size)
            many = f"{following - offset:,} bytes from byte {offset:,} on"
            is_cut = following == size
            reason = "the file ends inside it" if is_cut else f"{many} are damaged; the records in them are lost"
            yield Found(offset, b"", reason, is_cut)
            offset = following
            file.seek(offset)
            continue
        message, checksum = file.read(length), file.read(CHECKSUM.size)
        good = CHECKSUM.unpack(checksum)[0] == masked_crc32c(message)
        yield Found(offset, message if good else b"", None if good else "its checksum is wrong")
        offset = end


def _next_record(file: BinaryIO, offset: int, size: int) -> int:
    """Return the offset of the next record at or after `offset`, or the file size if there is none."""
    while offset < size:
        file.seek(offset)
        data = file.read(SEARCH_BYTES + HEADER_BYTES)
        for match in POSSIBLE_LENGTH.finditer(data):
            start = match.start()
            length = record_length(data[start : start + HEADER_BYTES])
            if length is not None and offset + start + HEADER_BYTES + length + CHECKSUM.size <= size:
                return offset + start
        offset += SEARCH_BYTES
    return size


def read_examples(shards: Iterable[Path]) -> Iterator[dict[bytes, bytes]]:
    """Yield the Features of each example in these files, by name.

    Raises:
        DamagedRecord: A file is truncated or a checksum is wrong.
    """
    yield from map(features_of, itertools.chain.from_iterable(map(_messages, shards)))


def read_sample(shards: Iterable[ShardFile], names: Iterable[str], count: int) -> dict[str, list[bytes]]:
    """Return the same as `read_columns`, of fewer examples if these have more than SAMPLE_BYTES."""
    return read_columns(shards, names, count, SAMPLE_BYTES)


def read_columns(
    shards: Iterable[ShardFile], names: Iterable[str], count: int, most: float = math.inf
) -> dict[str, list[bytes]]:
    """Return the Features of the first examples in these files by name, in an order that is the same for all names.

    Reading ends after `most` bytes.

    Raises:
        DamagedRecord: A file is truncated or a checksum is wrong.
    """
    import numpy as np

    columns: dict[str, list[bytes]] = {name: [] for name in names}
    for piece in _pieces(shards, count, most):
        located, is_alike = _located(piece)
        octets = np.frombuffer(piece.data, np.uint8)
        irregular = [(index, features_of(piece.message(index))) for index in np.flatnonzero(~is_alike).tolist()]
        for name, column in columns.items():
            key = name.encode()
            _, starts = _varints(octets, located[key].names + len(_name_of(key) + TWO))
            features = piece.slices(starts, located[key].ends)
            for index, parsed in irregular:
                features[index] = parsed[key]
            column += features
    return columns


def read_at(shard: ShardFile, numbers: Collection[int]) -> dict[int, dict[bytes, bytes]]:
    """Return the Features of the examples with these numbers in a file, by number and name.

    Raises:
        DamagedRecord: The file is truncated or a checksum is wrong.
    """
    examples: dict[int, dict[bytes, bytes]] = {}
    start = 0
    for piece in _pieces([shard], max(numbers, default=-1) + 1, math.inf):
        stop = start + len(piece.starts)
        inside = (number for number in numbers if start <= number < stop)
        examples |= {number: features_of(piece.message(number - start)) for number in inside}
        start = stop
    return examples


class _Piece(NamedTuple):
    """Many messages in memory: their bytes, and the offsets at which each of them starts and ends."""

    data: bytes
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def message(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.ends[index]]

    def slices(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[bytes]:
        """Return the bytes between these offsets."""
        data, sizes = self.data, ends - starts
        if len(sizes) and sizes[0] > 0 and (sizes == sizes[0]).all():  # as of numbers: this is faster
            slices: list[bytes] = self.views(int(sizes[0]))[starts].tolist()
            return slices
        return [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def views(self, size: int) -> NDArray[np.void]:
        """Return the `size` bytes at each offset."""
        import numpy as np

        return np.ndarray(len(self.data) - size + 1, f"V{size}", self.data, 0, (1,))

    def verify(self) -> None:
        """Raise DamagedRecord if a checksum is wrong."""
        import numpy as np

        messages = self.slices(self.starts, self.ends)
        crcs = np.fromiter(map(_crc32c, messages), np.uint32, len(messages))
        stored = self.views(CHECKSUM.size)[self.ends].view("<u4")
        headers = {*self.slices(self.starts - HEADER_BYTES, self.starts)}
        if (stored != (crcs >> 15 | crcs << 17) + MASK_DELTA).any() or None in map(record_length, headers):
            raise DamagedRecord("a checksum is wrong")


class _Entries(NamedTuple):
    """The offsets of a Feature in many messages: of the name in its entry, and of the entry's end."""

    names: NDArray[np.int64]
    ends: NDArray[np.int64]


def _pieces(shards: Iterable[ShardFile], count: int, most: float) -> Iterator[_Piece]:
    """Yield the first `count` messages of these files, those of about PIECE_BYTES at a time; end after `most` bytes.

    Raises:
        DamagedRecord: A file is truncated or a checksum is wrong.
    """
    import numpy as np

    for shard in shards:
        with shard.open("rb") as file:
            data = b""
            while count > 0 and most > 0 and (block := file.read(max(PIECE_BYTES, len(data)))):
                data += block
                offsets = _offsets(data, count)
                starts, ends = offsets[:-1] + HEADER_BYTES, offsets[1:] - CHECKSUM.size
                sizes = np.cumsum(ends - starts)
                enough = int(np.searchsorted(sizes, most)) + 1
                piece = _Piece(data, starts[:enough], ends[:enough])
                data = data[offsets[-1] :]
                if not len(starts):
                    continue
                piece.verify()
                yield piece
                count -= len(piece.starts)
                most -= int(sizes[:enough][-1])
            if data and count > 0 and most > 0:
                raise DamagedRecord("the file ends inside a record")


def _offsets(data: bytes, count: int) -> NDArray[np.int64]:
    """Return the offsets of the first `count` records that are whole, and of the end of the last one."""
    import numpy as np

    frame, offsets = HEADER_BYTES + CHECKSUM.size, [0]
    size = min(LENGTH.unpack_from(data)[0] + frame, len(data) + 1) if len(data) >= frame else frame
    lengths = np.ndarray(min(count, len(data) // size), "<u8", data, 0, (size,))
    if (lengths == size - frame).all():  # as of rows of numbers: this is faster
        offsets = [*range(0, len(lengths) * size + 1, size)]
    while len(offsets) <= count and (start := offsets[-1]) + frame <= len(data):
        end = start + LENGTH.unpack_from(data, start)[0] + frame
        if end > len(data):
            break
        offsets.append(end)
    return np.array(offsets)


def _located(piece: _Piece) -> tuple[dict[bytes, _Entries], NDArray[np.bool_]]:
    """Return where each Feature of the first message is in all messages, by name, and which have the same Features."""
    import numpy as np

    octets = np.frombuffer(piece.data, np.uint8)
    located: dict[bytes, _Entries] = {}
    is_alike = np.ones(len(piece.starts), np.bool_)
    _, end = _varints(octets, piece.starts + 1)
    for name in features_of(piece.message(0)):
        length, content = _varints(octets, end + 1)
        end = content + length
        located[name] = _Entries(content, end)
        expected = _name_of(name)
        views = piece.views(len(expected))
        names = views[np.clip(content, 0, len(views) - 1)]
        if names.tobytes() != expected * len(names):
            is_alike &= np.array([name == expected for name in names.tolist()])
    return located, is_alike & (end == piece.ends)


def _name_of(name: bytes) -> bytes:
    """Return a name as an entry has it."""
    return ONE + varint(len(name)) + name


def _varints(octets: NDArray[np.uint8], offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the varints at these offsets, and the offsets after them; an offset may be outside of the octets."""
    last = octets.take(offsets, mode="clip")
    numbers, after, shift = (last & VARINT_BITS).astype("i8"), offsets + 1, 7
    while (continues := last > VARINT_BITS).any() and shift < LENGTH.size * 8 - 1:
        last = octets.take(after, mode="clip") * continues
        numbers |= (last & VARINT_BITS).astype("i8") << shift
        after = after + continues
        shift += 7
    return numbers, after


def _messages(shard: Path) -> Iterator[bytes]:
    with shard.open("rb") as file:
        yield from read_records(file)


def stored_parts(features: Mapping[bytes, bytes]) -> tuple[bytes, bytes, Label]:
    """Return the image, the key and the values of the label of an example encoded by `RecordEncoder`."""
    (image,), (key,) = values(features[b"image"]), values(features[b"key"])
    assert isinstance(image, bytes) and isinstance(key, bytes)
    return image, key, tuple(values(features[b"label"]))
