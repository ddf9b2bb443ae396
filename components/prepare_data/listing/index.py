"""The list of all examples, on disk: sorted by a hash, divided among splits, dealt to shards.

However many examples there are, few of them are in memory at once. Each part of a source is listed by one process
into a file: a group's (split of its own, class) examples as runs sorted by the hash of seed and key, merged to one.
An example's rank in its group says its split and its shard, so neither depends on the order in which a folder lists
its files, nor on the number of workers. Within a shard, other bits of the same hash say the order.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import marshal
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel

from slipway.components.prepare_data.listing.split import Amount
from slipway.components.prepare_data.sources.source import Group, Ignored, Source

# A row is hash (12 bytes: 8 rank it in its group, 4 in its shard), size, place, stamp, the key's length, and the key.
ROW = struct.Struct(">QQQI")
RANK_BYTES = 8
HASH_BYTES = 12
LABEL_BYTES = 4
ROW_SIZE = struct.Struct(">Q").unpack_from
ROW_AFTER_RANK = struct.Struct(">IQQQI")
# How many rows are in memory: while a part is listed, in a piece of a file, and before shards' lists are appended to.
MOST_ROWS_LISTED = 8192
PIECE_ROWS = 1024
MOST_ROWS_DEALT = 8192

# The bundle of an example, by its key and by what its source says of it; see `bundles`.
BundleOf = Callable[[bytes, bytes], bytes]

# One example as a shard's writer sees it: its key, its label, its bytes, its place; see `Entry`.
Example = tuple[bytes, int, int, int]


@dataclass(frozen=True)
class Run:
    """Sorted rows in a part's file: where their pieces begin, and their SHA-256 (hex)."""

    places: list[int]
    digest: str


@dataclass
class GroupList:
    """One group's examples in one part: their amount, and their rows: several runs, or, when it is listed, one."""

    examples: int = 0
    bytes: int = 0
    runs: list[Run] = field(default_factory=list)


@dataclass
class PartList:
    """One part of a source, listed: its file, its groups, what was ignored, and a digest of keys, sizes and stamps."""

    path: Path
    groups: dict[Group, GroupList]
    ignored: Ignored
    digest: str


def list_part(source: Source, part: Any, seed: int, path: Path, bundle_of: BundleOf | None = None) -> PartList:
    """List one part into the file `path`; the digest is the same in whatever order the source gives the entries.

    `bundle_of` finds what an example has to stay together with: then that says the rank, which all of it shares.
    """
    salt = struct.pack(">Q", seed)
    ignored = Ignored()
    rows: dict[Group, list[bytes]] = {}
    groups: dict[Group, GroupList] = {}
    group: Group | None = None
    held = 0
    blake2b, pack = hashlib.blake2b, ROW.pack
    with path.open("w+b") as file:
        for key, label, split, size, stamp, place, value in source.entries(part, ignored, path.parent):
            if group is None or group[1] != label or group[0] != split:
                group = (split, label)
                add = rows.setdefault(group, []).append
            ranked = blake2b(key, digest_size=HASH_BYTES, salt=salt).digest()
            if bundle_of:
                ranked = (
                    blake2b(bundle_of(key, value), digest_size=RANK_BYTES, salt=salt).digest() + ranked[RANK_BYTES:]
                )
            add(ranked + pack(size, place, stamp, len(key)) + key)
            held += 1
            if held == MOST_ROWS_LISTED:
                _write_runs(file, rows, groups)
                held, group = 0, None
        _write_runs(file, rows, groups)
        digest = hashlib.sha256(ignored.unusable_digest)
        for group in sorted(groups, key=_group_order):
            runs = groups[group].runs
            if len(runs) > 1:
                runs[:] = [append_run(file, merge_runs(file, runs))]
            digest.update(repr((group, groups[group].examples, runs[0].digest)).encode())
    return PartList(path, groups, ignored, digest.hexdigest())


def _write_runs(file: BinaryIO, rows: dict[Group, list[bytes]], groups: dict[Group, GroupList]) -> None:
    """Write each group's rows as one sorted run, and forget them."""
    for group, found in rows.items():
        found.sort()
        listed = groups.setdefault(group, GroupList())
        listed.examples += len(found)
        listed.bytes += sum(ROW_SIZE(row, HASH_BYTES)[0] for row in found)
        listed.runs.append(append_run(file, found))
    rows.clear()


def append_run(file: BinaryIO, rows: Iterable[bytes]) -> Run:
    """Append sorted rows. `rows` may read from the same file."""
    places: list[int] = []
    digest = hashlib.sha256()
    rows = iter(rows)
    while piece := list(itertools.islice(rows, PIECE_ROWS)):
        digest.update(b"".join(piece))
        places.append(file.seek(0, 2))
        marshal.dump(piece, file)
    return Run(places, digest.hexdigest())


def _pieces(file: BinaryIO, run: Run) -> Iterator[list[bytes]]:
    for place in run.places:
        file.seek(place)
        yield marshal.load(file)


def run_rows(file: BinaryIO, run: Run) -> Iterator[bytes]:
    for piece in _pieces(file, run):
        yield from piece


def merge_runs(file: BinaryIO, runs: list[Run]) -> Iterator[bytes]:
    return heapq.merge(*(run_rows(file, run) for run in runs))


def _group_order(group: Group) -> tuple[str, str]:
    return (group[0] or "", group[1])


class Summary(BaseModel):
    """What a data set's identity takes of a listing: the amount of each (split, class), and a digest of everything."""

    amounts: list[tuple[str | None, str, Amount]]
    digest: str

    @property
    def groups(self) -> dict[Group, Amount]:
        """The amounts by group."""
        return {(split, label): amount for split, label, amount in self.amounts}


class Listing:
    """All parts of a source, listed.

    Attributes:
        groups: Each group's amount.
        ignored: What is no example.
        digest: SHA-256 (hex) of all keys, labels, sizes and stamps.
    """

    def __init__(self, source: Source, parts: list[PartList]) -> None:
        self._parts = parts
        self.groups: dict[Group, Amount] = {}
        self.ignored = Ignored()
        digest = hashlib.sha256()
        names = source.groups({group: None for part in parts for group in part.groups})
        for part in parts:
            self.ignored.merge(part.ignored)
            digest.update(part.digest.encode())
            part.groups = {names[group]: found for group, found in part.groups.items()}
            for group, found in part.groups.items():
                before = self.groups.get(group, Amount(0, 0))
                self.groups[group] = Amount(before.examples + found.examples, before.bytes + found.bytes)
        self.groups = {group: self.groups[group] for group in sorted(self.groups, key=_group_order)}
        self.digest = digest.hexdigest()

    def examples(self) -> int:
        """How many examples there are."""
        return sum(amount.examples for amount in self.groups.values())

    def summary(self) -> Summary:
        """The listing's summary."""
        return Summary(amounts=[(*group, amount) for group, amount in self.groups.items()], digest=self.digest)

    def counts_without(self, left_out: frozenset[bytes]) -> dict[Group, int]:
        """How many examples of each group stay without those keys."""
        return {
            group: amount.examples - sum(row_key(row) in left_out for piece in self.rows(group) for row in piece)
            for group, amount in self.groups.items()
        }

    def rows(self, group: Group) -> Iterator[list[bytes]]:
        """A group's rows in the order of their ranks, piece by piece."""
        holders = [part for part in self._parts if group in part.groups]
        if len(holders) == 1:
            with holders[0].path.open("rb") as file:
                yield from _pieces(file, holders[0].groups[group].runs[0])
            return
        files = [part.path.open("rb") for part in holders]
        try:
            runs = [run_rows(file, part.groups[group].runs[0]) for file, part in zip(files, holders, strict=True)]
            piece: list[bytes] = []
            for row in heapq.merge(*runs):
                piece.append(row)
                if len(piece) == PIECE_ROWS:
                    yield piece
                    piece = []
            if piece:
                yield piece
        finally:
            for file in files:
                file.close()


class Dealer:
    """Deals a listing's rows to the lists of shards: files in `folder`, one a shard, appended to bit by bit.

    Args:
        listing: The examples.
        divided: How many of each group's go to which split.
        shards: How many shards each split has.
        left_out: Keys to leave out; `divided` counts without them.
        classes: The classes, whose places are the labels.
        copies: Keys that are left out of the split they go to, which nothing else takes their place in.
        split_of: The split of a bundle by its hash, where bundles stay together.
    """

    def __init__(
        self,
        listing: Listing,
        divided: Mapping[Group, Mapping[str, int]],
        shards: Mapping[str, int],
        left_out: frozenset[bytes],
        classes: list[str],
        copies: Container[bytes] = frozenset(),
        split_of: Callable[[bytes], str] | None = None,
    ) -> None:
        self._split_of = split_of
        self._listing = listing
        self._copies = copies
        self._divided = divided
        self._shards = shards
        self._left_out = left_out
        self._labels = {label: index for index, label in enumerate(classes)}
        self._rows: dict[tuple[str, int], list[tuple[bytes, list[bytes]]]] = {}

    def deal(self, folder: Path) -> None:
        """Write the lists: every split's shards differ by one example at most, in all and in each class."""
        dealt = dict.fromkeys(self._shards, 0)
        held = 0
        for group in self._divided:
            label = self._labels[group[1]]
            for split, rows in self._stretches(group):
                staying = [row for row in rows if row_key(row) not in self._copies] if self._copies else rows
                self._deal_rows(split, dealt[split], label, staying)
                dealt[split] += len(staying)
                held += len(rows)
                if held >= MOST_ROWS_DEALT:
                    self._append(folder)
                    held = 0
        self._append(folder)

    def _stretches(self, group: Group) -> Iterator[tuple[str, list[bytes]]]:
        """A group's rows in the order of their ranks, and which split takes them."""
        if self._split_of:
            for piece in self._pieces(group):
                for bundle, found in itertools.groupby(piece, key=lambda row: row[:RANK_BYTES]):
                    yield self._split_of(bundle), list(found)
            return
        counts = iter(self._divided[group].items())
        split, left = "", 0
        for piece in self._pieces(group):
            start = 0
            while start < len(piece):
                while left == 0:
                    split, left = next(counts)
                taken = piece[start : start + left]
                yield split, taken
                left -= len(taken)
                start += len(taken)

    def _pieces(self, group: Group) -> Iterator[list[bytes]]:
        for piece in self._listing.rows(group):
            if self._left_out:
                yield [row for row in piece if row_key(row) not in self._left_out]
            else:
                yield piece

    def _deal_rows(self, split: str, dealt: int, label: int, rows: list[bytes]) -> None:
        """Give the split's shards one row each, in turn, from where the last turn ended."""
        shards = self._shards[split]
        for turn in range(min(shards, len(rows))):
            shard = (dealt + turn) % shards
            self._rows.setdefault((split, shard), []).append((label.to_bytes(LABEL_BYTES), rows[turn::shards]))

    def _append(self, folder: Path) -> None:
        for (split, shard), rows in self._rows.items():
            with list_path(folder, split, shard).open("ab") as file:
                marshal.dump(rows, file)
        self._rows.clear()


def row_key(row: bytes) -> bytes:
    """The key in a row."""
    return row[HASH_BYTES + ROW.size :]


def list_path(folder: Path, split: str, shard: int) -> Path:
    """The file that holds the list of one shard's examples."""
    return folder / f"{split}-{shard:05d}.list"


def read_list(path: Path) -> Iterator[Example]:
    """One shard's examples, in the order in which they are written."""
    rows: list[bytes] = []
    with path.open("rb") as file:
        while file.peek(1):
            for label, found in marshal.load(file):
                rows += [row[RANK_BYTES:] + label for row in found]
    rows.sort()
    unpack, start, number = ROW_AFTER_RANK.unpack_from, ROW_AFTER_RANK.size, int.from_bytes
    for row in rows:
        _, size, place, _, _ = unpack(row)
        yield row[start:-LABEL_BYTES], number(row[-LABEL_BYTES:]), size, place
