"""The bytes of a TFRecord file of tf.train.Example, written by hand.

One record is an example's `image` (encoded bytes), `key` (bytes) and `label` (int64): the protocol buffer message as
TensorFlow serializes it deterministically, framed as TFRecord frames it (length, masked CRC-32C of the length, the
message, masked CRC-32C of the message; all little-endian). Nothing but the lengths varies between most records, so
what surrounds the image and the key is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

import google_crc32c

RECORD_OVERHEAD = 16
MOST_KEPT = 4096
LENGTH = struct.Struct("<Q")
CHECKSUM = struct.Struct("<I")
_crc32c = google_crc32c.value


class DamagedRecord(Exception):
    """A TFRecord file is cut short, or a checksum in it is wrong."""


def masked_crc32c(data: bytes) -> int:
    """TFRecord's checksum: CRC-32C, rotated and offset so that checksums of checksums are no special case."""
    crc = _crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(number: int) -> bytes:
    """A protocol buffer's variable-length integer; `number` is not negative."""
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


def _field(tag: int, length: int) -> bytes:
    """What stands before a length-delimited field of `length` bytes."""
    return varint(tag << 3 | 2) + varint(length)


def _bytes_entry(name: bytes, length: int) -> tuple[bytes, int]:
    """What stands before a value of `length` bytes in Features.feature, and the length of both."""
    before = _field(1, length)
    before = _field(1, len(before) + length) + before
    before = _field(1, len(name)) + name + _field(2, len(before) + length) + before
    before = _field(1, len(before) + length) + before
    return before, len(before) + length


def _label_entry(label: int) -> bytes:
    value = varint(label)
    integers = _field(1, len(value)) + value
    feature = _field(3, len(integers)) + integers
    entry = _field(1, len(b"label")) + b"label" + _field(2, len(feature)) + feature
    return _field(1, len(entry)) + entry


class RecordEncoder:
    """Makes records; one for each process."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[int, int, int], tuple[bytes, bytes, bytes]] = {}
        self._labels: dict[int, bytes] = {}

    def encode(self, image: bytes, key: bytes, label: int) -> bytes:
        """One example as a framed record. `label` is not negative."""
        after_key = self._labels.get(label) or self._label(label)
        lengths = (len(image), len(key), len(after_key))
        frame, before_image, before_key = self._layouts.get(lengths) or self._layout(lengths)
        example = b"".join((before_image, image, before_key, key, after_key))
        crc = _crc32c(example)
        crc = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        return frame + example + crc.to_bytes(4, "little")

    def _label(self, label: int) -> bytes:
        self._labels[label] = _label_entry(label)
        return self._labels[label]

    def _layout(self, lengths: tuple[int, int, int]) -> tuple[bytes, bytes, bytes]:
        """The frame, what stands before the image, and what stands before the key, where these lengths are used."""
        if len(self._layouts) >= MOST_KEPT:
            self._layouts.clear()
        image, key, label = lengths
        before_image, image_length = _bytes_entry(b"image", image)
        before_key, key_length = _bytes_entry(b"key", key)
        features = image_length + key_length + label
        before_image = _field(1, features) + before_image
        length = LENGTH.pack(len(_field(1, features)) + features)
        layout = (length + CHECKSUM.pack(masked_crc32c(length)), before_image, before_key)
        self._layouts[lengths] = layout
        return layout


def read_records(file: BinaryIO) -> Iterator[bytes]:
    """The messages of a TFRecord file, in order.

    Raises:
        DamagedRecord: Where the file is cut short or a checksum is wrong.
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
    """The image, the key and the label of an example that `RecordEncoder` made."""
    _, position = _read_field(message, 0)
    values: list[bytes] = []
    while position < len(message):
        end, position = _read_field(message, position)
        entry = message[position:end]
        _, inner = _read_field(entry, _read_field(entry, 0)[0])  # past the name, into the feature
        _, inner = _read_field(entry, inner)  # into its list
        value_end, start = _read_field(entry, inner)
        values.append(entry[start:value_end])
        position = end
    image, key, label = values
    return image, key, _read_varint(label, 0)[0]


def _read_field(data: bytes, position: int) -> tuple[int, int]:
    """The end and the start of the content of the length-delimited field at `position`."""
    length, start = _read_varint(data, position + 1)
    return start + length, start


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at `position`, and the place after it."""
    number, shift = 0, 0
    while data[position] & 0x80:
        number |= (data[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return number | data[position] << shift, position + 1
