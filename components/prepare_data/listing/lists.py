"""The lists of shards' examples: files to which lists of rows, or arrays of them, are appended."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from slipway.components.prepare_data.examples import Example

# A row: hash (8 bytes for the rank in the group, 4 for the order in the shard), size, offset, stamp, content, key
# length, key.
ROW = struct.Struct(">QQQQI")
RANK_BYTES = 8
LABEL_BYTES = 4
HASH_BYTES = 12
KEY_START = HASH_BYTES + ROW.size
ROW_AFTER_RANK = struct.Struct(">IQQQQI")


def list_path(folder: Path, split: str, shard: int) -> Path:
    """Return the path of the list of a shard's examples."""
    return folder / f"{split}-{shard:05d}.list"


def load_list(path: Path) -> list[Any]:
    """Return what was appended to a list: lists of examples, or arrays of rows."""
    parts = []
    with path.open("rb") as file:
        while file.peek(1):
            parts.append(pickle.load(file))
    return parts


def are_examples(parts: Sequence[Any]) -> bool:
    """Whether the parts of a list are lists of examples, rather than arrays of rows."""
    return all(isinstance(part, list) for part in parts)


def examples_of(parts: Sequence[list[bytes]]) -> Iterator[Example]:
    """Yield the examples of a list in the order in which they are written."""
    unpack, start, number = ROW_AFTER_RANK.unpack_from, ROW_AFTER_RANK.size, int.from_bytes
    for row in sorted(itertools.chain.from_iterable(parts)):
        _, size, offset, *_ = unpack(row)
        yield row[start:-LABEL_BYTES], number(row[-LABEL_BYTES:]), size, offset


def contents_of(parts: Sequence[list[bytes]]) -> dict[bytes, bytes]:
    """Return what examples with equal inputs and labels have in common, by key; the key where that is not known."""
    contents = {}
    for row in itertools.chain.from_iterable(parts):
        *_, content, _ = ROW_AFTER_RANK.unpack_from(row)
        key = row[ROW_AFTER_RANK.size : -LABEL_BYTES]
        contents[key] = content_key(content.to_bytes(8)) if content else key
    return contents


def content_key(content: bytes) -> bytes:
    """Return the key that an example has by its content, if it has no other one."""
    return b"row " + content.hex().encode()


def example_hash(key: bytes, seed: int) -> bytes:
    """Return the hash of a key by which examples are ordered."""
    return hashlib.blake2b(key, digest_size=HASH_BYTES, salt=struct.pack(">Q", seed)).digest()


def bundle_rank(bundle: bytes, seed: int) -> bytes:
    """Return the rank of the examples of a bundle."""
    return hashlib.blake2b(bundle, digest_size=RANK_BYTES, salt=struct.pack(">Q", seed)).digest()
