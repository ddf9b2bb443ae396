"""Encode pixels as PNG, for images that are not files."""

from __future__ import annotations

import struct
import zlib

# PNG color type by number of channels.
COLORS = {1: 0, 2: 4, 3: 2, 4: 6}


def encode_png(pixels: bytes, height: int, width: int, channels: int = 1, *, level: int = 6) -> bytes:
    """Encode `pixels` [height, width, channels] as an 8-bit PNG; `level` is zlib's, where 0 does not compress."""
    row = width * channels
    rows = b"".join(b"\0" + pixels[start : start + row] for start in range(0, height * row, row))
    header = struct.pack(">IIBBBBB", width, height, 8, COLORS[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows, level)), _chunk(b"IEND", b""))
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
