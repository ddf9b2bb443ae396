"""The on-disk list of all examples, sorted by hash within each group.

One process lists each part of a source into a file; the entries of all parts are then divided among the pieces of one
listing. An example's rank in its group (source split, class), by the hash of seed and key, determines its split and
shard, which therefore do not depend on the order of directory entries or on the number of workers. Other bits of the
same hash determine the order within a shard.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway.components.prepare_data.examples import Group
from slipway.components.prepare_data.listing.entries import (
    HASHED,
    RANK_BYTES,
    ROW,
    Entries,
    Pieces,
    digests,
    gathered,
    hashed,
    keys_of,
    offsets_in_runs,
    runs_of,
    sorted_pieces,
    write_block,
)
from slipway.components.prepare_data.listing.repeats import SPLIT_ORDER, Repeats
from slipway.components.prepare_data.listing.split import Amount, Summary
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.source import Entry, Ignored, ListedRows, Part, Source, coded, coded_groups

ENTRIES_LISTED = 8192  # at once
# Returns the bundle of an example from its key and the group that its source names; see `groups`.
BundleOf = Callable[[bytes, bytes], bytes]


@dataclass
class PartList:
    """A listed part of a source: its files, ignored files and groups; see `Summary` for the digests.

    `examples` and `bytes` are the amounts of each group, `labels` the names of all labels of the task multilabel. The
    group of an entry is an index of `examples`. The rows of a table have no digests: their keys depend on other parts.
    """

    paths: list[Path]
    ignored: Ignored = field(default_factory=Ignored)
    examples: Counter[Group] = field(default_factory=Counter)
    bytes: Counter[Group] = field(default_factory=Counter)
    labels: set[str] = field(default_factory=set)
    digests: tuple[str, str] | None = None

    def move(self, folder: Path, copy: Callable[[Path, Path], object]) -> None:
        """Copy the files to another folder by `copy`, which receives the path that each had and its new one."""
        moved = [folder / path.name for path in self.paths]
        for pair in zip(self.paths, moved, strict=True):
            copy(*pair)
        self.paths = moved


def list_part(source: Source, part: Part, seed: int, path: Path, bundle_of: BundleOf | None = None) -> PartList:
    """List one part into files beside `path`; the digests do not depend on the order of the entries.

    With `bundle_of`, the rank of an example is the hash of its bundle.
    """
    listed = PartList([path])
    batches = source.rows(part, listed.ignored, path.parent)
    is_table = batches is not None
    if batches is None:
        entries = source.entries(part, listed.ignored, path.parent)
        batches = _batches(iter(entries), bundle_of, several=source.task == "multilabel")
    numbers: dict[Group, int] = {}
    with path.open("wb") as file:
        for batch in batches:
            of_group = np.array([numbers.setdefault(group, len(numbers)) for group in batch.groups], np.int64)
            write_block(file, _entries(batch, of_group, seed, bundled=bundle_of is not None))
            counts, sizes = (np.bincount(batch.group, weights, len(batch.groups)) for weights in (None, batch.sizes))
            for group, count, size in zip(batch.groups, counts.tolist(), sizes.tolist(), strict=True):
                listed.examples[group] += count
                listed.bytes[group] += int(size)
            listed.labels |= batch.labels
    if not is_table:
        _sort_part(listed, path)
    return listed


def _sort_part(listed: PartList, path: Path) -> None:
    """Sort the entries in the file `path`; compute their digests."""
    ordered = sorted(listed.examples, key=_order)
    by_group = {group: number for number, group in enumerate(ordered)}
    numbers = np.array([by_group[group] for group in listed.examples], np.int64)
    size = path.stat().st_size
    pieces = sorted_pieces(gathered([(path, numbers)]), path.with_name(f"{path.name}-sorted"), size)
    listed.paths = pieces.paths
    listed.examples = Counter({group: listed.examples[group] for group in ordered})
    listed.digests = digests(pieces, listed.examples, listed.ignored.unusable_digest)


def _order(group: Group) -> tuple[str, str]:
    return group[0] or "", group[1]


def _batches(entries: Iterator[Entry], bundle_of: BundleOf | None, *, several: bool) -> Iterator[ListedRows]:
    """Yield entries, many at a time; those of the task multilabel have several labels."""
    while batch := [*itertools.islice(entries, ENTRIES_LISTED)]:
        keys, labels, splits, sizes, stamps, offsets, values = zip(*batch, strict=True)
        groups, group, names = coded_groups(splits, labels, several=several)
        contents, bundles = np.zeros(len(batch), np.uint64), (b"",) * len(batch)
        if bundle_of:
            bundles = tuple(map(bundle_of, keys, values))
        else:
            contents = np.array([*map(int.from_bytes, values)], np.uint64)
        digest, offset = (np.array(column, np.uint64) for column in (stamps, offsets))
        size = np.array(sizes, np.int64)
        yield ListedRows(digest, groups, group, size, offset, *coded(bundles), names, contents, keys)


def _entries(batch: ListedRows, of_group: NDArray[np.int64], seed: int, *, bundled: bool) -> Entries:
    rows = np.zeros(len(batch.digests), ROW)
    rows["digest"], rows["size"], rows["offset"] = batch.digests, batch.sizes, batch.offsets
    rows["content"] = batch.digests if batch.contents is None else batch.contents
    rows["group"] = of_group[batch.group]
    if batch.keys is None:
        rows["copy"] = 1
    else:
        rows["length"] = [*map(len, batch.keys)]
        rows[["rank", "order"]] = np.frombuffer(hashed(batch.keys, seed), HASHED)
    if bundled:
        rows["rank"] = np.frombuffer(hashed(batch.bundles, seed, RANK_BYTES), ">u8")[batch.bundle]
    return Entries(rows, None if batch.keys is None else np.array(batch.keys, object))


class Listing:
    """All parts of a source, listed.

    Attributes:
        item: What an example is called.
        pieces: The entries, sorted by group and hash within each piece; the group of an entry is an index of `groups`.
        groups: Each group's amount.
        repeats: The equal examples, of a source without images.
        spool: The folder with the files that the source spooled for its readers; by default, that of the pieces.
        ignored: Files and examples that were ignored.
        digest, shape, labels: See `Summary`.
    """

    def __init__(
        self, source: Source, parts: list[PartList], path: Path, settings: DataSettings, spool: Path | None = None
    ) -> None:
        self.item = source.item
        duplicates = "keep" if source.has_image else settings.duplicates
        self.repeats = Repeats(duplicates, is_grouped=settings.group_by is not None)
        self.spool = spool or path.parent
        self.ignored = Ignored()
        names = source.groups({group: None for part in parts for group in part.examples})
        examples: Counter[Group] = Counter()
        sizes: Counter[Group] = Counter()
        for part in parts:
            self.ignored.merge(part.ignored)
            for group, count in part.examples.items():
                examples[names[group]] += count
                sizes[names[group]] += part.bytes[group]
        ordered = sorted(examples, key=_order)
        self.groups = {group: Amount(examples[group], sizes[group]) for group in ordered}
        self.labels = sorted(set().union(*(part.labels for part in parts)))
        size = sum(file.stat().st_size for part in parts for file in part.paths)
        numbers = {group: number for number, group in enumerate(ordered)}
        entries = gathered(
            (file, np.array([numbers[names[group]] for group in part.examples], np.int64))
            for part in parts
            for file in part.paths
        )
        of_parts = [part.digests for part in parts if part.digests]
        if not source.has_image and (settings.group_by is None or not of_parts):  # else what is equal is not known
            entries = self._compared(entries, path.with_name("contents"), size, settings)
        self.pieces = sorted_pieces(entries, path, size)
        if self.repeats.are_dropped:
            self.groups = self.amounts()
        amounts = {group: amount.examples for group, amount in self.groups.items()}
        of_parts = of_parts or [digests(self.pieces, amounts, self.ignored.unusable_digest)]
        self.digest, self.shape = (
            hashlib.sha256("".join(hashes).encode()).hexdigest() for hashes in zip(*of_parts, strict=True)
        )

    def _compared(self, entries: Iterable[Entries], path: Path, size: int, settings: DataSettings) -> Iterator[Entries]:
        """Yield the entries after equal ones were counted in `repeats`."""
        pieces = Pieces(path, size)
        splits = np.array([SPLIT_ORDER.index(split) for split, _ in self.groups])
        for batch in entries:
            pieces.add(batch, _compared_by(batch.rows))
        for piece in pieces:
            _count_equal(_compared_by(piece.rows), splits[piece.rows["group"]], self.repeats)
        for piece in pieces:
            yield _keyed(piece, splits[piece.rows["group"]], settings, self.repeats)
        pieces.remove()

    def amounts(self) -> dict[Group, Amount]:
        """Return the amount of each group in the pieces."""
        totals = np.zeros((2, len(self.groups)), np.int64)
        for piece in self.pieces:
            for total, weights in zip(totals, (None, piece.rows["size"]), strict=True):
                total += np.bincount(piece.rows["group"], weights, len(self.groups)).astype(np.int64)
        return {group: Amount(*amount) for group, amount in zip(self.groups, totals.T.tolist(), strict=True)}

    def examples(self) -> int:
        """Return the number of examples."""
        return sum(amount.examples for amount in self.groups.values())

    def summary(self) -> Summary:
        """Return the summary of the listing."""
        amounts = [(*group, amount) for group, amount in self.groups.items()]
        return Summary(amounts=amounts, digest=self.digest, shape=self.shape, labels=self.labels)

    def runs(self) -> Iterator[tuple[Entries, NDArray[np.int64]]]:
        """Yield, of each piece, the first entries of the runs of one group and rank, and the lengths of the runs."""
        for piece in self.pieces:
            starts, lengths = runs_of(piece.rows[["group", "rank"]])
            yield piece.take(starts), lengths

    def run_ends(self) -> dict[Group, NDArray[np.int64]]:
        """Return the number of examples of each group up to the end of each run of examples of one rank."""
        counts: list[list[NDArray[np.int64]]] = [[np.zeros(0, np.int64)] for _ in self.groups]
        for firsts, lengths in self.runs():
            ends = np.searchsorted(firsts.rows["group"], np.arange(1, len(self.groups)))
            for of_group, part in zip(counts, np.split(lengths, ends), strict=True):
                of_group.append(part)
        return {group: np.cumsum(np.concatenate(parts)) for group, parts in zip(self.groups, counts, strict=True)}

    def splits_path(self, number: int) -> Path:
        """Return the path of the splits that `Bundles` assigned to the entries of a piece."""
        path = self.pieces.paths[number]
        return path.with_name(f"{path.name}.splits")

    def remove(self, keys: Collection[bytes]) -> dict[Group, int]:
        """Remove the entries with these keys; return the number of the others of each group."""
        for number, piece in enumerate(self.pieces):
            kept = np.flatnonzero([key not in keys for key in piece.key_list()])
            if len(kept) < len(piece):
                self.pieces.replace(number, piece.take(kept))
        return {group: amount.examples for group, amount in self.amounts().items()}

    def merge(self, groups: Iterable[Iterable[bytes]]) -> None:
        """Give the examples of each group of keys one rank, and all others that have the rank of one of them.

        The examples of `data.group_by`'s bundles have one rank each, so these are merged.
        """
        number_of = {key: number for number, keys in enumerate(groups) for key in keys}
        ranked = [
            (number_of[key], rank)
            for piece in self.pieces
            for key, rank in zip(piece.key_list(), piece.rows["rank"].tolist(), strict=True)
            if key in number_of
        ]
        new = {rank: smallest for rank, smallest in _smallest(ranked).items() if rank != smallest}
        if new:
            old = self.pieces
            size = sum(path.stat().st_size for path in old.paths)
            self.pieces = sorted_pieces(self._ranked(new), old.paths[0].with_name(f"{old.paths[0].name}-merged"), size)
            old.remove()

    def _ranked(self, new: dict[int, int]) -> Iterator[Entries]:
        """Yield the entries with new ranks of those that have one of the old ones."""
        for piece in self.pieces:
            ranks = piece.rows["rank"].tolist()
            piece.rows["rank"] = [new.get(rank, rank) for rank in ranks]
            yield piece


def _compared_by(rows: NDArray[np.void]) -> NDArray[np.uint64]:
    """Return the same value for equal examples; those without a content are equal to no other one."""
    return np.where(rows["content"], rows["content"], rows["rank"])


def _count_equal(contents: NDArray[np.uint64], split: NDArray[np.int64], repeats: Repeats) -> None:
    starts, counts = runs_of(np.sort(contents))
    splits = np.ones(len(starts), np.int64)
    if len(starts) < len(contents) and len(np.unique(split)) > 1:
        order = np.argsort(contents, kind="stable")
        of_set = np.repeat(np.arange(len(starts)), counts)
        pairs = np.unique(of_set * len(SPLIT_ORDER) + split[order])
        splits = np.bincount(pairs // len(SPLIT_ORDER), minlength=len(starts))
    repeats.add(counts, splits)


def _keyed(entries: Entries, split: NDArray[np.int64], settings: DataSettings, repeats: Repeats) -> Entries:
    """Return entries with their ranks and order; of equal rows of a table, all but the first are copies."""
    rows, contents, ranks = entries.rows, _compared_by(entries.rows), entries.rows["rank"]
    if entries.named is None and len(rows):
        if repeats.examples:
            order = np.lexsort((rows["offset"], split, rows["digest"]))
            rows["copy"][order] = offsets_in_runs(rows["digest"][order]) + 1
        hashes = np.frombuffer(hashed(entries.key_list(), settings.seed), HASHED)
        rows["order"], ranks = hashes["order"], hashes["rank"]
        if settings.group_by is None:
            rows["rank"] = ranks
    if repeats.are_together and len(rows):
        order = np.argsort(contents, kind="stable")
        _, counts = runs_of(contents[order])
        several = order[np.repeat(counts > 1, counts)]
        common = keys_of(contents[several], np.ones(len(several), np.uint32))
        rows["rank"][several] = np.frombuffer(hashed(common, settings.seed), HASHED)["rank"]
    if repeats.are_dropped and len(rows):  # the first one is kept, of a source's test split if it is in that
        order = np.lexsort((rows["order"], ranks, split, contents))
        return entries.take(np.sort(order[runs_of(contents[order])[0]]))
    return entries


def _smallest(ranked: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the smallest rank that each rank is connected with, directly or by others, through numbers."""
    parent: dict[int, int] = {}

    def root(node: int) -> int:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for number, rank in ranked:
        parent[root(-1 - number)] = root(rank)  # numbers are negative, unlike ranks
    smallest: dict[int, int] = {}
    ranks = sorted({rank for _, rank in ranked})
    for rank in ranks:
        smallest.setdefault(root(rank), rank)
    return {rank: smallest[root(rank)] for rank in ranks}
