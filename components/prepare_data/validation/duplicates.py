"""Find images that are in more than one split by their bytes; reject or drop them.

The writer of a shard stores a hash of each image (checksum and length) and the offset of its record in a file,
partitioned into buckets by the first bits of the hash. All files have the same buckets, so candidates are found one
bucket at a time, and memory use grows only with the number of copies found. Records with equal hashes are read again
and compared by the SHA-256 of their images; computing it for every image would take as long as writing it.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import marshal
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from slipway.components.prepare_data.encoding.messages import features_of, values
from slipway.components.prepare_data.encoding.records import read_records
from slipway.components.prepare_data.sources.source import SPLITS, readable
from slipway.components.prepare_data.validation.problems import Problem
from slipway.core.manifest import Shard

BUCKET_ROWS = 8192
# Splits in the order in which their copies are kept: evaluation data stays complete, training data loses the copy.
KEEPERS = tuple(reversed(SPLITS))
MOST_NAMED = 5
_crc32c = google_crc32c.value


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


def image_hash(image: bytes) -> int:
    """Return the hash of an image: 32 bits of its CRC-32C, then 32 bits of its length."""
    return _crc32c(image) << 32 | len(image)


def write_hashes(path: Path, hashes: Sequence[int], places: Sequence[int], buckets: int) -> Shard:
    """Write the hashes of one shard's images and the offsets of their records; return the file's name, size and digest.

    Each bucket is a pair of arrays of 64-bit integers, sorted by hash; equal hashes keep their order.
    """
    order = sorted(range(len(hashes)), key=hashes.__getitem__)
    columns = [array("Q", [column[row] for row in order]) for column in (hashes, places)]
    ends = [bisect.bisect_left(columns[0], -(-(bucket << 64) // buckets)) for bucket in range(buckets + 1)]
    data = b"".join(
        marshal.dumps([column[start:end].tobytes() for column in columns]) for start, end in itertools.pairwise(ends)
    )
    path.write_bytes(data)
    return Shard(file=path.name, examples=len(hashes), bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


class HashedShard:
    """Reads the hashes of a shard's images from the file `hashes`, bucket by bucket."""

    def __init__(self, path: Path, hashes: Path) -> None:
        self.path = path
        self.hashes = hashes
        self._place = 0

    def next_bucket(self) -> tuple[array[int], array[int]]:
        """Return the hashes and offsets of the next bucket."""
        hashes, places = array("Q"), array("Q")
        with self.hashes.open("rb") as file:
            file.seek(self._place)
            for column, content in zip((hashes, places), marshal.load(file), strict=True):
                column.frombytes(content)
            self._place = file.tell()
        return hashes, places

    def key_and_digest(self, place: int) -> tuple[bytes, bytes]:
        """Return the key of the record at an offset, and the SHA-256 of its image."""
        return self.read(place)[:2]

    def read(self, place: int) -> tuple[bytes, bytes, tuple[bytes | float | int, ...]]:
        """Return the key of the record at an offset, the SHA-256 of its image, and its label's values."""
        with self.path.open("rb") as file:
            features = features_of(next(read_records(file, place)))
        (image,), (key,) = values(features[b"image"]), values(features[b"key"])
        assert isinstance(image, bytes) and isinstance(key, bytes)
        return key, hashlib.sha256(image).digest(), tuple(values(features[b"label"]))


def find_copies(shards: Mapping[str, list[HashedShard]], buckets: int) -> Iterator[Copy]:
    """Yield the images whose copy in another split is kept: the test split's, else validation's.

    Several copies in one split, and in no other, do not count.

    Args:
        shards: The shards of each split.
        buckets: The number of buckets with which the hashes were written.
    """
    for _ in range(buckets):
        found = {split: [(shard, *shard.next_bucket()) for shard in parts] for split, parts in shards.items()}
        distinct = {split: set[int]().union(*(part[1] for part in parts)) for split, parts in found.items()}
        common = set().union(*(one & other for one, other in itertools.combinations(distinct.values(), 2)))
        kept: dict[bytes, tuple[bytes, str]] = {}
        for split in KEEPERS if common else ():
            candidates = (
                shard.key_and_digest(place)
                for shard, hashes, places in found[split]
                for hashed, place in zip(hashes, places, strict=True)
                if hashed in common
            )
            for key, digest in sorted(candidates):
                stays, keeper = kept.setdefault(digest, (key, split))
                if keeper != split:
                    yield Copy(key, split, stays, keeper)


def conflict_notes(
    shards: Iterable[HashedShard], buckets: int, text_of: Callable[[Sequence[bytes | float | int]], str]
) -> list[str]:
    """Return a note on the images that have several labels, if there are any.

    Args:
        shards: The shards of all splits.
        buckets: The number of buckets with which the hashes were written.
        text_of: Returns a stored label as text.
    """
    named: list[str] = []
    count, shards = 0, list(shards)
    for _ in range(buckets):
        found = [(shard, *shard.next_bucket()) for shard in shards]
        several = {
            hashed for hashed, times in Counter(itertools.chain(*(each[1] for each in found))).items() if times > 1
        }
        alike: dict[bytes, dict[tuple[bytes | float | int, ...], bytes]] = {}
        for shard, hashes, places in found if several else ():
            for hashed, place in zip(hashes, places, strict=True):
                if hashed in several:
                    key, digest, label = shard.read(place)
                    keys = alike.setdefault(digest, {})
                    keys[label] = min(key, keys.get(label, key))
        conflicts = [labels for labels in alike.values() if len(labels) > 1]
        count += len(conflicts)
        named += [
            " = ".join(sorted(f"{readable(key)} ({text_of(label)})" for label, key in labels.items()))
            for labels in conflicts
        ]
        named = sorted(named)[:MOST_NAMED]
    if not count:
        return []
    more = f"; and {count - len(named):,} more" if count > len(named) else ""
    many = "1 image has" if count == 1 else f"{count:,} images have"
    return [f"{many} several labels: {'; '.join(named)}{more}. Correct the labels, or remove the copies."]


def in_several_splits(copies: Iterable[Copy]) -> list[Problem]:
    """Return the problem that images are in several splits, if there are any; it names the first by key."""
    first: list[Copy] = []
    count = 0
    for copy in copies:
        count += 1
        first = sorted([*first, copy])[:MOST_NAMED]
    if not count:
        return []
    named = [f"{readable(copy.key)} ({copy.split}) = {readable(copy.kept)} ({copy.keeper})" for copy in first]
    more = [f"and {count - len(named):,} more"] if count > len(named) else []
    many = "1 image is" if count == 1 else f"{count:,} images are"
    return [
        Problem(
            f"{many} also in another split: {'; '.join(named + more)}.",
            setting="data.duplicates",
            value="refuse",
            allowed="refuse: reject copies; drop: keep one split's copy, preferably test's; keep: keep all copies",
            accepting="drop",
            otherwise="remove the copies",
        )
    ]
