"""Images that are in more than one split: found by the SHA-256 of their bytes, refused or dropped.

The writer of a shard leaves the hash and the key of each of its images in a file, dealt to buckets by the hash's first
bits. All files have the same buckets, so that one bucket at a time is enough to find what is in several splits: the
memory that it takes does not grow with the number of images, only with the number of copies that are found.
"""

from __future__ import annotations

import hashlib
import itertools
import marshal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from components.prepare_data.sources.source import SPLITS, readable
from trainer.errors import UserError
from trainer.manifest import Shard

HASH_BYTES = 32
BUCKET_ROWS = 8192
# Which split's copy stays: what a model is judged by is as it was, what it learns from does without.
KEEPERS = tuple(reversed(SPLITS))
MOST_NAMED = 5


class Copy(NamedTuple):
    """An image that another split has too: its key, its split, and the key and the split of what stays."""

    key: bytes
    split: str
    kept: bytes
    keeper: str

    @property
    def reason(self) -> str:
        """Why it is left out."""
        return f"it is the same image as {readable(self.kept)} in the split {self.keeper}"


def bucket_count(examples: int) -> int:
    """How many buckets hold the hashes of so many images."""
    return max(-(-examples // BUCKET_ROWS), 1)


def write_hashes(path: Path, rows: Iterable[bytes], buckets: int) -> Shard:
    """Write one shard's `rows`, each an image's SHA-256 and its key; the record of the file."""
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


def find_copies(files: Mapping[str, list[Path]], buckets: int) -> Iterator[Copy]:
    """The images that another split has too, whose copy there stays: the test split's, else validation's.

    What is several times in one split, and in no other, is no copy.

    Args:
        files: The hashes of each split's shards.
        buckets: As they were written.
    """
    places = {path: 0 for paths in files.values() for path in paths}
    for _ in range(buckets):
        rows = {split: _read_bucket(paths, places) for split, paths in files.items()}
        hashes = {split: {row[:HASH_BYTES] for row in found} for split, found in rows.items()}
        common = set().union(*(one & other for one, other in itertools.combinations(hashes.values(), 2)))
        kept: dict[bytes, tuple[bytes, str]] = {}
        for split in KEEPERS if common else ():
            for row in sorted(rows[split]):
                found, key = row[:HASH_BYTES], row[HASH_BYTES:]
                if found not in common:
                    continue
                stays, keeper = kept.setdefault(found, (key, split))
                if keeper != split:
                    yield Copy(key, split, stays, keeper)


def _read_bucket(paths: list[Path], places: dict[Path, int]) -> list[bytes]:
    """The next bucket of all these files, whose `places` are moved on."""
    rows: list[bytes] = []
    for path in paths:
        with path.open("rb") as file:
            file.seek(places[path])
            rows += marshal.load(file)
            places[path] = file.tell()
    return rows


def refuse_copies(copies: Iterable[Copy]) -> None:
    """Refuse images that are in several splits.

    Raises:
        UserError: There are some; it names the first, by key.
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
        f"{many} in another split too: {'; '.join(named + more)}.",
        setting="data.duplicates",
        value="refuse",
        allowed="refuse: no image in two splits; drop: one split's copy stays, test's first; keep: all stay",
        mend="remove the copies, or set data.duplicates to drop",
    )
