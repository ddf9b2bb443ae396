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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import google_crc32c

from slipway.components.prepare_data.encoding.messages import (
    bytes_feature,
    example,
    example_entry,
    features_of,
    field,
    integer_feature,
    values,
    varint,
)
from slipway.core.tfrecord import CHECKSUM, HEADER_BYTES, LENGTH, mask, masked_crc32c, record_length

MAX_KEPT = 4096
# A message of up to this size is copied once more, which takes less time than computing its checksum in parts.
SMALL_BYTES = 1 << 14
SEARCH_BYTES = 1 << 20
# Of a sample, which is in memory several times.
SAMPLE_BYTES = 256 << 20
# Possible starts of a record: the 8-byte length is below 2**40.
POSSIBLE_LENGTH = re.compile(rb"(?=.{5}\0\0\0)", re.DOTALL)
# Tags of the length-delimited fields 1 and 2.
ONE, TWO = b"\n", b"\x12"
Label = tuple[bytes | float | int, ...]

_crc32c, _extend, _packed = google_crc32c.value, google_crc32c.extend, CHECKSUM.pack


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
        own = [(b"key", bytes_feature([key]))]
        if image is not None:
            own.append((b"image", bytes_feature([image])))
        if label is not None:
            own.append((b"label", integer_feature([label])))
        message = example((*own, *additional))
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
    for found in scan(file, offset):
        if found.reason is not None:
            raise DamagedRecord(found.reason)
        yield found.message


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


def read_sample(shards: Iterable[Path], names: Iterable[str], count: int) -> dict[str, list[bytes]]:
    """Return the same as `read_columns`, of fewer examples if these have more than SAMPLE_BYTES."""
    return read_columns(shards, names, count, SAMPLE_BYTES)


def read_columns(
    shards: Iterable[Path], names: Iterable[str], count: int, most: float = math.inf
) -> dict[str, list[bytes]]:
    """Return the Features of the first examples in these files by name, in an order that is the same for all names.

    Reading ends after `most` bytes. Of the examples that have the same bytes beside their Features, one
    is parsed.

    Raises:
        DamagedRecord: A file is truncated or a checksum is wrong.
    """
    import numpy as np

    found: dict[str, list[bytes]] = {name: [] for name in names}
    by_length: dict[int, list[bytes]] = {}
    size = 0
    for message in itertools.islice(itertools.chain.from_iterable(map(_messages, shards)), count):
        by_length.setdefault(len(message), []).append(message)
        size += len(message)
        if size >= most:
            break
    for length, messages in by_length.items():
        bounds, end, is_fixed = {}, length, np.ones(length, np.bool_)
        for name, feature in reversed(features_of(messages[0]).items()):
            bounds[name] = slice(end - len(feature), end)
            is_fixed[bounds[name]] = False
            end -= len(example_entry(name, feature))
        table = np.frombuffer(b"".join(messages), np.uint8).reshape(-1, length)
        is_alike = (table[:, is_fixed] == table[0, is_fixed]).all(axis=1)
        alike = [*itertools.compress(messages, is_alike)]
        others = [*map(features_of, itertools.compress(messages, ~is_alike))]
        for column, features in found.items():
            key = column.encode()
            features += [message[bounds[key]] for message in alike]
            features += [each[key] for each in others]
    return found


def _messages(shard: Path) -> Iterator[bytes]:
    with shard.open("rb") as file:
        yield from read_records(file)


def stored_parts(features: Mapping[bytes, bytes]) -> tuple[bytes, bytes, Label]:
    """Return the image, the key and the values of the label of an example encoded by `RecordEncoder`."""
    (image,), (key,) = values(features[b"image"]), values(features[b"key"])
    assert isinstance(image, bytes) and isinstance(key, bytes)
    return image, key, tuple(values(features[b"label"]))
