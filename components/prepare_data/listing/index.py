"""The on-disk list of all examples: sorted by hash, divided among splits, dealt to shards.

Memory use does not depend on the number of examples. One process lists each part of a source into a file; the examples
of a group (source split, class) are stored as runs sorted by the hash of seed and key, merged into one. An example's
rank in its group determines its split and shard, which therefore do not depend on the order of directory entries or on
the number of workers. Other bits of the same hash determine the order within a shard.
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
from slipway.components.prepare_data.sources.source import LABEL_SEPARATOR, Group, Ignored, Part, Source

# A row: hash (8 bytes for the rank in the group, 4 for the order in the shard), size, place, stamp, key length, key.
ROW = struct.Struct(">QQQI")
RANK_BYTES = 8
HASH_BYTES = 12
# The parts of a row that stay if files are copied: hash and size; key length and key.
SIZED, KEYED = slice(0, 20), slice(36, None)
LABEL_BYTES = 4
ROW_SIZE = struct.Struct(">Q").unpack_from
ROW_AFTER_RANK = struct.Struct(">IQQQI")
PIECE_SIZE = struct.Struct(">Q")
# Rows in memory while a part is listed, in a piece of a file, and before they are appended to the lists of shards.
MOST_ROWS_LISTED = 8192
PIECE_ROWS = 1024
MOST_ROWS_DEALT = 8192

# Returns the bundle of an example from its key and the group that its source names; see `groups`.
BundleOf = Callable[[bytes, bytes], bytes]

# An example for a shard's writer: key, label, size in bytes and place; see `Entry`.
Example = tuple[bytes, int, int, int]


# Sorted rows in a part's file: the offsets of their pieces.
Run = list[int]


@dataclass
class GroupList:
    """A group's examples in one part: their amount and their runs, which are merged into one after listing."""

    examples: int = 0
    bytes: int = 0
    runs: list[Run] = field(default_factory=list)


@dataclass
class PartList:
    """A listed part of a source: its file, groups and ignored files; see `Summary` for the digests.

    `labels` are the names of all labels of the task multilabel.
    """

    path: Path
    groups: dict[Group, GroupList]
    ignored: Ignored
    digest: str
    shape: str
    labels: set[str] = field(default_factory=set)


def list_part(source: Source, part: Part, seed: int, path: Path, bundle_of: BundleOf | None = None) -> PartList:
    """List one part into the file `path`; the digests do not depend on the order of the entries.

    With `bundle_of`, the rank of an example is the hash of its bundle.
    """
    salt = struct.pack(">Q", seed)
    ignored = Ignored()
    rows: dict[Group, list[bytes]] = {}
    groups: dict[Group, GroupList] = {}
    labels: set[str] = set()
    several = source.task == "multilabel"
    group: Group | None = None
    held = 0
    blake2b, pack = hashlib.blake2b, ROW.pack
    fresh = blake2b(digest_size=HASH_BYTES, salt=salt).copy  # faster than a new one for each key
    with path.open("w+b") as file:
        for key, label, split, size, stamp, place, value in source.entries(part, ignored, path.parent):
            if several:
                labels.update(label.split(LABEL_SEPARATOR))
                label = ""
            if group is None or group[1] != label or group[0] != split:
                group = (split, label)
                add = rows.setdefault(group, []).append
            hashed = fresh()
            hashed.update(key)
            ranked = hashed.digest()
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
        digest, shape = (hashlib.sha256(ignored.unusable_digest) for _ in range(2))
        for group in sorted(groups, key=_group_order):
            runs = groups[group].runs
            if len(runs) > 1:
                runs[:] = [append_run(file, merge_runs(file, runs))]
            for found in (digest, shape):
                found.update(repr((group, groups[group].examples)).encode())
            for piece in _pieces(file, runs[0]):
                digest.update(b"".join(piece))
                shape.update(b"".join([row[SIZED] + row[KEYED] for row in piece]))
    return PartList(path, groups, ignored, digest.hexdigest(), shape.hexdigest(), labels - {""})


def _write_runs(file: BinaryIO, rows: dict[Group, list[bytes]], groups: dict[Group, GroupList]) -> None:
    """Write each group's rows as one sorted run and clear them."""
    for group, found in rows.items():
        found.sort()
        listed = groups.setdefault(group, GroupList())
        listed.examples += len(found)
        listed.bytes += sum(ROW_SIZE(row, HASH_BYTES)[0] for row in found)
        listed.runs.append(append_run(file, found))
    rows.clear()


def append_run(file: BinaryIO, rows: Iterable[bytes]) -> Run:
    """Append sorted rows. `rows` may read from the same file."""
    run: Run = []
    rows = iter(rows)
    while piece := list(itertools.islice(rows, PIECE_ROWS)):
        run.append(file.seek(0, 2))
        _write_piece(file, piece)
    return run


def _pieces(file: BinaryIO, run: Run) -> Iterator[list[bytes]]:
    for place in run:
        file.seek(place)
        yield _read_piece(file)


def _write_piece(file: BinaryIO, piece: list[Any]) -> None:
    data = marshal.dumps(piece)
    file.write(PIECE_SIZE.pack(len(data)) + data)


def _read_piece(file: BinaryIO) -> list[Any]:
    """Read what `_write_piece` wrote; `marshal.load` would call the file's methods several times for each row."""
    (size,) = PIECE_SIZE.unpack(file.read(PIECE_SIZE.size))
    piece: list[Any] = marshal.loads(file.read(size))
    return piece


def run_rows(file: BinaryIO, run: Run) -> Iterator[bytes]:
    for piece in _pieces(file, run):
        yield from piece


def merge_runs(file: BinaryIO, runs: list[Run]) -> Iterator[bytes]:
    return heapq.merge(*(run_rows(file, run) for run in runs))


def _group_order(group: Group) -> tuple[str, str]:
    return (group[0] or "", group[1])


class Summary(BaseModel):
    """What a listing says about the content of a source.

    Attributes:
        amounts: The amount of each (split, class).
        digest: SHA-256 (hex) of all keys, labels, sizes, stamps and places.
        shape: The same without stamps and places: it stays if files are copied, or packed in another order.
        labels: All labels of the task multilabel.
    """

    amounts: list[tuple[str | None, str, Amount]]
    digest: str
    shape: str
    labels: list[str] = []

    @property
    def bytes(self) -> int:
        """The size of all examples."""
        return sum(amount.bytes for _, _, amount in self.amounts)

    @property
    def groups(self) -> dict[Group, Amount]:
        """The amounts by group."""
        return {(split, label): amount for split, label, amount in self.amounts}


class Listing:
    """All parts of a source, listed.

    Attributes:
        groups: Each group's amount.
        ignored: Files and examples that were ignored.
        digest, shape, labels: See `Summary`.
    """

    def __init__(self, source: Source, parts: list[PartList]) -> None:
        self._parts = parts
        self.groups: dict[Group, Amount] = {}
        self.ignored = Ignored()
        names = source.groups({group: None for part in parts for group in part.groups})
        for part in parts:
            self.ignored.merge(part.ignored)
            part.groups = {names[group]: found for group, found in part.groups.items()}
            for group, found in part.groups.items():
                before = self.groups.get(group, Amount(0, 0))
                self.groups[group] = Amount(before.examples + found.examples, before.bytes + found.bytes)
        self.groups = {group: self.groups[group] for group in sorted(self.groups, key=_group_order)}
        self.digest, self.shape = (
            hashlib.sha256("".join(found).encode()).hexdigest()
            for found in ([part.digest for part in parts], [part.shape for part in parts])
        )
        self.labels = sorted(set().union(*(part.labels for part in parts)))

    def examples(self) -> int:
        """Return the number of examples."""
        return sum(amount.examples for amount in self.groups.values())

    def summary(self) -> Summary:
        """Return the summary of the listing."""
        amounts = [(*group, amount) for group, amount in self.groups.items()]
        return Summary(amounts=amounts, digest=self.digest, shape=self.shape, labels=self.labels)

    def counts_without(self, left_out: frozenset[bytes]) -> dict[Group, int]:
        """Return the number of examples of each group, excluding the keys in `left_out`."""
        return {
            group: amount.examples - sum(row_key(row) in left_out for piece in self.rows(group) for row in piece)
            for group, amount in self.groups.items()
        }

    def rows(self, group: Group) -> Iterator[list[bytes]]:
        """Yield a group's rows in the order of their ranks, in pieces."""
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
    """Deals a listing's rows to the lists of shards, one file per shard.

    Args:
        listing: The examples.
        divided: The number of examples of each group in each split.
        shards: The number of shards of each split.
        left_out: Keys to skip; they are not counted in `divided`.
        classes: The classes in the order of their labels; of other tasks than classification, none is dealt.
        copies: Keys to drop from their split without replacing them by other examples.
        split_of: Returns the split of a bundle by its hash; set with data.group_by.
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
        """Write the lists; the shards of a split differ by at most one example, in total and per class."""
        dealt = dict.fromkeys(self._shards, 0)
        held = 0
        for group in self._divided:
            label = self._labels[group[1]] if group[1] else 0
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
        """Yield a group's rows in the order of their ranks, with the split that they belong to."""
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
        """Deal the rows to the split's shards round-robin, continuing after the last shard dealt to."""
        shards = self._shards[split]
        for turn in range(min(shards, len(rows))):
            shard = (dealt + turn) % shards
            self._rows.setdefault((split, shard), []).append((label.to_bytes(LABEL_BYTES), rows[turn::shards]))

    def _append(self, folder: Path) -> None:
        for (split, shard), rows in self._rows.items():
            with list_path(folder, split, shard).open("ab") as file:
                _write_piece(file, rows)
        self._rows.clear()


def row_key(row: bytes) -> bytes:
    """Return the key in a row."""
    return row[HASH_BYTES + ROW.size :]


def list_path(folder: Path, split: str, shard: int) -> Path:
    """Return the path of the list of a shard's examples."""
    return folder / f"{split}-{shard:05d}.list"


def read_list(path: Path) -> Iterator[Example]:
    """Yield a shard's examples in the order in which they are written."""
    rows: list[bytes] = []
    with path.open("rb") as file:
        while file.peek(1):
            for label, found in _read_piece(file):
                rows += [row[RANK_BYTES:] + label for row in found]
    rows.sort()
    unpack, start, number = ROW_AFTER_RANK.unpack_from, ROW_AFTER_RANK.size, int.from_bytes
    for row in rows:
        _, size, place, _, _ = unpack(row)
        yield row[start:-LABEL_BYTES], number(row[-LABEL_BYTES:]), size, place
