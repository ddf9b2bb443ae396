"""Encoder and parser for the protocol buffer messages tf.train.Example and tf.train.Feature, without TensorFlow.

An Example is a map from names to Features; a Feature is a list of bytes, float32 or int64 values. Features that are
only passed through are not parsed, so their bytes do not change.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from slipway.components.prepare_data.encoding.unusable import Unusable

BYTES, FLOATS, INTEGERS = 1, 2, 3
VARINT, FIXED_64, DELIMITED, FIXED_32 = 0, 1, 2, 5
BITS_64 = 1 << 64
LARGEST_INTEGER = (1 << 63) - 1
LONGEST_VARINT = 10


ONE_BYTE = [number.to_bytes() for number in range(0x80)]


def varint(number: int) -> bytes:
    """Encode a non-negative number as a protocol buffer varint."""
    # Fast paths for typical lengths, of which each record has several; the loop handles any number.
    if number < 0x80:
        return ONE_BYTE[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 0x200000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


def field(number: int, length: int) -> bytes:
    """Return the tag and length of a length-delimited field of `length` bytes; `number` is at most 15."""
    return ONE_BYTE[number << 3 | DELIMITED] + varint(length)


def _delimited(number: int, content: bytes) -> bytes:
    return field(number, len(content)) + content


def bytes_feature(values: Iterable[bytes]) -> bytes:
    """Encode a Feature of byte strings."""
    return _delimited(BYTES, b"".join(_delimited(1, value) for value in values))


def float_feature(values: Iterable[float]) -> bytes:
    """Encode a Feature of float32 numbers."""
    values = list(values)
    packed = struct.pack(f"<{len(values)}f", *values)
    return _delimited(FLOATS, _delimited(1, packed) if values else b"")


def integer_feature(values: Iterable[int]) -> bytes:
    """Encode a Feature of 64-bit integers."""
    packed = b"".join(varint(value % BITS_64) for value in values)
    return _delimited(INTEGERS, _delimited(1, packed) if packed else b"")


def example(features: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode an Example from names and Features, sorted by name like TensorFlow's deterministic serialization."""
    entries = (_delimited(1, _delimited(1, name) + _delimited(2, feature)) for name, feature in sorted(features))
    return _delimited(1, b"".join(entries))


def features_of(message: bytes) -> dict[bytes, bytes]:
    """Return the Features of an Example, by name.

    Raises:
        Unusable: The message is not a tf.train.Example.
    """
    found: dict[bytes, bytes] = {}
    for number, features in _fields(message):
        if number != 1 or isinstance(features, int):
            raise Unusable("it is not a tf.train.Example")
        for _, entry in _fields(features):
            if isinstance(entry, int):
                raise Unusable("it is not a tf.train.Example")
            parts = dict(_fields(entry))
            name, feature = parts.get(1, b""), parts.get(2, b"")
            if isinstance(name, int) or isinstance(feature, int):
                raise Unusable("it is not a tf.train.Example")
            found[name] = feature
    return found


def values(feature: bytes) -> list[bytes] | list[float] | list[int]:
    """Return the values of a Feature.

    Raises:
        Unusable: The Feature is damaged.
    """
    for kind, content in _fields(feature):
        if isinstance(content, int):
            break
        found = list(_fields(content))
        if kind == BYTES:
            return [value for _, value in found if isinstance(value, bytes)]
        if kind == FLOATS:
            return [number for _, value in found for number in _floats(value)]
        if kind == INTEGERS:
            return [number for _, value in found for number in _integers(value)]
    return []


def _floats(value: bytes | int) -> Iterable[float]:
    packed = value.to_bytes(4, "little") if isinstance(value, int) else value
    if len(packed) % 4:
        raise Unusable("its numbers are cut short")
    return struct.unpack(f"<{len(packed) // 4}f", packed)


def _integers(value: bytes | int) -> Iterator[int]:
    numbers = iter((value,)) if isinstance(value, int) else _varints(value)
    return (number - BITS_64 if number > LARGEST_INTEGER else number for number in numbers)


def _varints(packed: bytes) -> Iterator[int]:
    position = 0
    while position < len(packed):
        number, position = read_varint(packed, position)
        yield number


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield each field's number and its content: bytes, or an integer for the other wire types."""
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, position = read_varint(data, position)
            yield number, value
            continue
        if kind == DELIMITED:
            length, position = read_varint(data, position)
        elif kind in (FIXED_32, FIXED_64):
            length = 4 if kind == FIXED_32 else 8
        else:
            raise Unusable("it is not a tf.train.Example")
        end = position + length
        if end > len(data):
            raise Unusable("it is cut short")
        content = data[position:end]
        yield number, content if kind == DELIMITED else int.from_bytes(content, "little")
        position = end


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at `position` and the position after it."""
    number = 0
    for count in range(LONGEST_VARINT):
        if position + count >= len(data):
            raise Unusable("it is cut short")
        byte = data[position + count]
        number |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return number, position + count + 1
    raise Unusable("it is not a tf.train.Example")
