"""Find images that are in more than one split by their bytes; reject or drop them.

The writer of a shard stores a hash of each image (checksum and length), the offset of its record and its key in a file,
partitioned into buckets by the first bits of the hash. All files have the same buckets, so candidates are found one
bucket at a time, and memory use grows only with the number of copies found. Images with equal hashes are read again and
compared by the SHA-256 of their bytes; computing the SHA-256 of every image would take as long as writing it.
"""

from __future__ import annotations

import hashlib
import itertools
import marshal
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from slipway.components.prepare_data.encoding.messages import features_of, values
from slipway.components.prepare_data.encoding.records import read_records
from slipway.components.prepare_data.sources.source import SPLITS, readable
from slipway.core.errors import UserError
from slipway.core.manifest import Shard

# An image's CRC-32C, its length, and the offset of its record in the shard; the key follows.
ROW = struct.Struct(">IIQ")
HASH_BYTES = 8
BUCKET_ROWS = 8192
# Splits in the order in which their copies are kept: evaluation data stays complete, training data loses the copy.
KEEPERS = tuple(reversed(SPLITS))
MOST_NAMED = 5


class Copy(NamedTuple):
    """An image that is also in another split: its key and split, and the key and split of the copy that is kept."""

    key: bytes
    split: str
    kept: bytes
    keeper: str

    @property
    def reason(self) -> str:
        """The reason for skipping it."""
        return f"it is the same image as {readable(self.kept)} in the split {self.keeper}"


def bucket_count(examples: int) -> int:
    """Return the number of buckets for the hashes of `examples` images."""
    return max(-(-examples // BUCKET_ROWS), 1)


def hash_row(image: bytes, place: int, key: bytes) -> bytes:
    """Return the row of an image whose record is at offset `place` in its shard."""
    return ROW.pack(google_crc32c.value(image), len(image), place) + key


def write_hashes(path: Path, rows: Iterable[bytes], buckets: int) -> Shard:
    """Write the `rows` of one shard's images; return the file's name, size and digest."""
    dealt: list[list[bytes]] = [[] for _ in range(buckets)]
    for row in rows:
        dealt[int.from_bytes(row[:4]) * buckets >> 32].append(row)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for found in dealt:
            data = marshal.dumps(found)
            digest.update(data)
            file.write(data)
        size = file.tell()
    return Shard(file=path.name, examples=sum(map(len, dealt)), bytes=size, sha256=digest.hexdigest())


class HashedShard:
    """Reads the hashes of a shard's images from the file `hashes`, bucket by bucket."""

    def __init__(self, shard: Path, hashes: Path) -> None:
        self._shard = shard
        self._hashes = hashes
        self._place = 0

    def next_bucket(self) -> list[bytes]:
        """Return the rows of the next bucket."""
        with self._hashes.open("rb") as file:
            file.seek(self._place)
            rows: list[bytes] = marshal.load(file)
            self._place = file.tell()
        return rows

    def digest(self, row: bytes) -> bytes:
        """Return the SHA-256 of a row's image."""
        with self._shard.open("rb") as file:
            features = features_of(next(read_records(file, ROW.unpack_from(row)[2])))
        (image,) = values(features[b"image"])
        assert isinstance(image, bytes)
        return hashlib.sha256(image).digest()


def find_copies(shards: Mapping[str, list[HashedShard]], buckets: int) -> Iterator[Copy]:
    """Yield the images whose copy in another split is kept: the test split's, else validation's.

    Several copies in one split, and in no other, do not count.

    Args:
        shards: The shards of each split.
        buckets: The number of buckets with which the hashes were written.
    """
    for _ in range(buckets):
        rows = {split: [(shard, shard.next_bucket()) for shard in found] for split, found in shards.items()}
        hashes = {split: {row[:HASH_BYTES] for _, part in parts for row in part} for split, parts in rows.items()}
        common = set().union(*(one & other for one, other in itertools.combinations(hashes.values(), 2)))
        kept: dict[bytes, tuple[bytes, str]] = {}
        for split in KEEPERS if common else ():
            candidates = ((shard, row) for shard, part in rows[split] for row in part if row[:HASH_BYTES] in common)
            for key, digest in sorted((row[ROW.size :], shard.digest(row)) for shard, row in candidates):
                stays, keeper = kept.setdefault(digest, (key, split))
                if keeper != split:
                    yield Copy(key, split, stays, keeper)


def refuse_copies(copies: Iterable[Copy]) -> None:
    """Check that no image is in several splits.

    Raises:
        UserError: There are copies; the message names the first by key.
    """
    first: list[Copy] = []
    count = 0
    for copy in copies:
        count += 1
        first = sorted([*first, copy])[:MOST_NAMED]
    if not count:
        return
    named = [f"{readable(copy.key)} ({copy.split}) = {readable(copy.kept)} ({copy.keeper})" for copy in first]
    more = [f"and {count - len(named):,} more"] if count > len(named) else []
    many = "1 image is" if count == 1 else f"{count:,} images are"
    raise UserError(
        f"{many} also in another split: {'; '.join(named + more)}.",
        setting="data.duplicates",
        value="refuse",
        allowed="refuse: reject copies; drop: keep one split's copy, preferably test's; keep: keep all copies",
        fix="remove the copies, or set data.duplicates to drop",
    )
