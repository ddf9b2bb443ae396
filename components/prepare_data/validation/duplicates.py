"""Find images that are in more than one split by their bytes; reject or drop them.

The writer of a shard stores a hash of each image (checksum and length) and the offset of its record. SQLite, which
sorts on disk, finds the equal hashes, so memory use grows only with the number of copies. Their records
are read again and compared by the SHA-256 of their images; computing it for every image would take as long as writing
it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from slipway.components.prepare_data.encoding.messages import features_of
from slipway.components.prepare_data.encoding.records import Label, read_records, stored_parts
from slipway.components.prepare_data.examples import SPLITS, Problem, readable
from slipway.components.prepare_data.sorting import database

# Splits in the order in which their copies are kept: evaluation data stays complete, training data loses the copy.
KEEPERS = tuple(reversed(SPLITS))
MAX_NAMED = 5
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


def image_hash(image: bytes) -> int:
    """Return the hash of an image: 32 bits of its CRC-32C, then 32 bits of its length."""
    return _crc32c(image) << 32 | len(image)


class HashedShard(NamedTuple):
    """A shard, and its file with the hashes of all images, followed by the offsets of their records."""

    split: str
    path: Path
    file: Path

    def columns(self) -> tuple[array[int], array[int]]:
        """Return the hashes and the offsets."""
        content = self.file.read_bytes()
        half = len(content) // 2
        return array("q", content[:half]), array("q", content[half:])


class Stored(NamedTuple):
    """One of several equal images: its key, its split and its label's values."""

    key: bytes
    split: str
    label: Label


def equal_images(shards: Sequence[HashedShard], path: Path) -> Iterator[list[Stored]]:
    """Yield all examples of each image that several examples have.

    Args:
        shards: The shards of all splits.
        path: A path for a temporary file.
    """
    with database(path) as hashes:
        hashes.execute("CREATE TABLE hashes (hash INTEGER)")
        for shard in shards:
            hashes.executemany("INSERT INTO hashes VALUES (?)", zip(shard.columns()[0], strict=True))
        repeated = hashes.execute("SELECT hash FROM hashes GROUP BY hash HAVING count(*) > 1")
        records: dict[int, list[tuple[HashedShard, int]]] = {number: [] for (number,) in repeated}
    path.unlink()
    for shard in shards if records else ():
        for number, offset in zip(*shard.columns(), strict=True):
            if number in records:
                records[number].append((shard, offset))
    for locations in records.values():
        equal: dict[bytes, list[Stored]] = {}
        for shard, offset in locations:
            with shard.path.open("rb") as file:
                image, key, label = stored_parts(features_of(next(read_records(file, offset))))
            equal.setdefault(hashlib.sha256(image).digest(), []).append(Stored(key, shard.split, label))
        yield from (examples for examples in equal.values() if len(examples) > 1)


def copies_of(equal: list[Stored]) -> Iterator[Copy]:
    """Yield the examples of one image whose copy in another split is kept: the test split's, else validation's.

    Several copies in one split, and in no other, do not count.
    """
    keeper = min((stored.split for stored in equal), key=KEEPERS.index)
    kept = min(stored.key for stored in equal if stored.split == keeper)
    for example in equal:
        if example.split != keeper:
            yield Copy(example.key, example.split, kept, keeper)


def find_copies(
    shards: Sequence[HashedShard], path: Path, text_of: Callable[[Label], str]
) -> tuple[list[Copy], list[str]]:
    """Return the images that are also in another split, and a note on those with several labels, if there are any.

    Args:
        shards: The shards of all splits.
        path: A path for a temporary file.
        text_of: Returns a stored label as text.
    """
    copies: list[Copy] = []
    named: list[str] = []
    count = 0
    for equal in equal_images(shards, path):
        copies += copies_of(equal)
        keys: dict[Label, bytes] = {}
        for example in equal:
            keys[example.label] = min(example.key, keys.get(example.label, example.key))
        if len(keys) > 1:
            count += 1
            text = " = ".join(sorted(f"{readable(key)} ({text_of(label)})" for label, key in keys.items()))
            named = sorted([*named, text])[:MAX_NAMED]
    if not count:
        return copies, []
    more = f"; and {count - len(named):,} more" if count > len(named) else ""
    many = "1 image has" if count == 1 else f"{count:,} images have"
    return copies, [f"{many} several labels: {'; '.join(named)}{more}. Correct the labels, or remove the copies."]


def in_several_splits(copies: Sequence[Copy]) -> list[Problem]:
    """Return the problem that images are in several splits, if there are any; it names the first by key."""
    count = len(copies)
    if not count:
        return []
    first = sorted(copies)[:MAX_NAMED]
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
