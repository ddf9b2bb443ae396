"""Encode and parse tf.train.Example and tf.train.Feature without TensorFlow.

An Example is a map from names to Features; a Feature is a list of bytes, float32 or int64 values. Features that are
only passed through are not parsed, so their bytes do not change. Parsing is protobuf's, which is six times faster than
Python code. Encoding is not: protobuf copies the image more often, which takes seven times as long for large ones.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from slipway.components.prepare_data.examples import Unusable

BYTES, FLOATS, INTEGERS = 1, 2, 3
DELIMITED = 2
BITS_64 = 1 << 64
LARGEST_INTEGER = (1 << 63) - 1
# tensorflow/core/example/feature.proto, except that Features are the bytes of the messages and names may be any bytes.
SCHEMA = """
name: "slipway_example.proto" package: "slipway" syntax: "proto3"
message_type { name: "Bytes" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "Floats" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Integers" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes" number: 1 type: TYPE_MESSAGE type_name: ".slipway.Bytes" oneof_index: 0 }
  field { name: "floats" number: 2 type: TYPE_MESSAGE type_name: ".slipway.Floats" oneof_index: 0 }
  field { name: "integers" number: 3 type: TYPE_MESSAGE type_name: ".slipway.Integers" oneof_index: 0 } }
message_type { name: "Entry"
  field { name: "name" number: 1 type: TYPE_BYTES } field { name: "feature" number: 2 type: TYPE_BYTES } }
message_type { name: "Features"
  field { name: "feature" number: 1 type: TYPE_MESSAGE type_name: ".slipway.Entry" label: LABEL_REPEATED } }
message_type { name: "Example" field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".slipway.Features" } }
"""
# A Feature of one number, which most features of tables are: what is before it, and its bytes.
ONE_NUMBER, NUMBER = b"\x12\x06\x0a\x04", struct.Struct("<f")
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
    return _delimited(1, b"".join(example_entry(name, feature) for name, feature in sorted(features)))


def example_entry(name: bytes, feature: bytes) -> bytes:
    """Encode a name and its Feature, as an Example has them."""
    return _delimited(1, _delimited(1, name) + _delimited(2, feature))


def features_of(message: bytes) -> dict[bytes, bytes]:
    """Return the Features of an Example, by name.

    Raises:
        Unusable: The message is not a tf.train.Example.
    """
    return {entry.name: entry.feature for entry in _parsed("Example", message).features.feature}


def values(feature: bytes) -> list[bytes] | list[float] | list[int]:
    """Return the values of a Feature.

    Raises:
        Unusable: The Feature is damaged.
    """
    if len(feature) == len(ONE_NUMBER) + NUMBER.size and feature.startswith(ONE_NUMBER):
        return [*NUMBER.unpack_from(feature, len(ONE_NUMBER))]
    message = _parsed("Feature", feature)
    kind = message.WhichOneof("kind")
    return list(getattr(message, kind).value) if kind else []


def _parsed(name: str, message: bytes) -> Any:
    """Parse a message of `SCHEMA`; raise Unusable if it is none."""
    kind, decode_error = _kind(name)
    try:
        return kind.FromString(message)
    except decode_error:
        raise Unusable("it is not a tf.train.Example") from None


@cache
def _kind(name: str) -> tuple[Any, type[Exception]]:
    """Return the class of a message of `SCHEMA`, and the exception of a message that is damaged."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(SCHEMA, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"slipway.{name}")), DecodeError


def all_values(features: Sequence[bytes]) -> list[bytes | float | int]:
    """Return the values of many Features of a column, one after the other.

    Raises:
        Unusable: A Feature is damaged.
    """
    import numpy as np

    joined = b"".join(features)
    if len(joined) == (len(ONE_NUMBER) + NUMBER.size) * len(features):
        entries = np.frombuffer(joined, [("start", f"V{len(ONE_NUMBER)}"), ("number", "<f4")])
        if (entries["start"] == np.void(ONE_NUMBER)).all():
            return list(entries["number"].tolist())
    return [value for feature in features for value in values(feature)]
