"""The framing of TFRecord files: a record's length and its checksum, the message, and the message's checksum."""

from __future__ import annotations

import struct

import google_crc32c

LENGTH = struct.Struct("<Q")
CHECKSUM = struct.Struct("<I")
HEADER_BYTES = LENGTH.size + CHECKSUM.size
# Added to the rotated checksum.
MASK_DELTA = 0xA282EAD8
_crc32c = google_crc32c.value


def masked_crc32c(data: bytes) -> int:
    """Return TFRecord's checksum: a CRC-32C, rotated and offset so that data may itself contain CRCs."""
    return mask(_crc32c(data))


def mask(crc: int) -> int:
    """Return the masked form of a CRC-32C."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def record_length(header: bytes) -> int | None:
    """Return the length of the record that starts with `header`, or None if it is not a valid header."""
    if len(header) < HEADER_BYTES or CHECKSUM.unpack(header[LENGTH.size :])[0] != masked_crc32c(header[: LENGTH.size]):
        return None
    return int.from_bytes(header[: LENGTH.size], "little")
