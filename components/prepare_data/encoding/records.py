"""Encoder and reader for TFRecord files of tf.train.Example, without TensorFlow.

A record holds an example's `image` (encoded bytes), `key` (bytes), `label` (int64) and any additional features: the
protocol buffer message, identical to TensorFlow's deterministic serialization, in TFRecord's framing (length, masked
CRC-32C of the length, message, masked CRC-32C of the message; all little-endian). Without additional features, most
records differ only in these lengths, so the bytes around image and key are cached by length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO

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

RECORD_OVERHEAD = 16
MOST_KEPT = 4096
LENGTH = struct.Struct("<Q")
CHECKSUM = struct.Struct("<I")
# Tags of the length-delimited fields 1 and 2.
ONE, TWO = b"\n", b"\x12"
_crc32c, _extend = google_crc32c.value, google_crc32c.extend


class DamagedRecord(Exception):
    """A TFRecord file is truncated or has a wrong checksum."""


def masked_crc32c(data: bytes) -> int:
    """Return TFRecord's checksum: a CRC-32C, rotated and offset so that data may itself contain CRCs."""
    crc = _crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


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
        after_key = self._labels.get(label) or self._label(label)
        lengths = (len(image), len(key), len(after_key))
        frame, before_image, before_key = self._layouts.get(lengths) or self._layout(lengths)
        # The checksum is computed incrementally, so that a large image is copied only once.
        crc = _extend(_extend(_crc32c(before_image), image), b"".join((before_key, key, after_key)))
        crc = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        return b"".join((frame, before_image, image, before_key, key, after_key, crc.to_bytes(4, "little")))

    def encode_with(self, image: bytes, key: bytes, label: int, further: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Encode an example with additional features (names and serialized Features) as a framed record."""
        own = ((b"image", bytes_feature([image])), (b"key", bytes_feature([key])), (b"label", integer_feature([label])))
        message = example((*own, *further))
        length = LENGTH.pack(len(message))
        checksums = (CHECKSUM.pack(masked_crc32c(part)) for part in (length, message))
        return b"".join((length, next(checksums), message, next(checksums)))

    def _label(self, label: int) -> bytes:
        self._labels[label] = _label_entry(label)
        return self._labels[label]

    def _layout(self, lengths: tuple[int, int, int]) -> tuple[bytes, bytes, bytes]:
        """Return the frame, the bytes before the image and the bytes before the key for these lengths."""
        if len(self._layouts) >= MOST_KEPT:
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


def read_records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the messages of a TFRecord file, in order.

    Raises:
        DamagedRecord: The file is truncated or a checksum is wrong.
    """
    while header := file.read(LENGTH.size + CHECKSUM.size):
        if len(header) < LENGTH.size + CHECKSUM.size:
            raise DamagedRecord("the file ends inside a record")
        if CHECKSUM.unpack(header[LENGTH.size :])[0] != masked_crc32c(header[: LENGTH.size]):
            raise DamagedRecord("the checksum of a record's length is wrong")
        (length,) = LENGTH.unpack(header[: LENGTH.size])
        message, checksum = file.read(length), file.read(CHECKSUM.size)
        if len(message) < length or len(checksum) < CHECKSUM.size:
            raise DamagedRecord("the file ends inside a record")
        if CHECKSUM.unpack(checksum)[0] != masked_crc32c(message):
            raise DamagedRecord("the checksum of a record is wrong")
        yield message


def example_parts(message: bytes) -> tuple[bytes, bytes, int]:
    """Return the image, key and label of an example encoded by `RecordEncoder`."""
    found = features_of(message)
    (image,), (key,), (label,) = (values(found[name]) for name in (b"image", b"key", b"label"))
    assert isinstance(image, bytes) and isinstance(key, bytes) and isinstance(label, int)
    return image, key, label
