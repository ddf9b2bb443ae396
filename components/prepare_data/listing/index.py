"""The on-disk list of all examples, sorted by hash within each group.

One process lists each part of a source into a file; the entries of all parts are then divided among the pieces of one
listing. An example's rank in its group (source split, class), by the hash of seed and key, determines its split and
shard, which therefore do not depend on the order of directory entries or on the number of workers. Other bits of the
same hash determine the order within a shard.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway.components.prepare_data.examples import Group
from slipway.components.prepare_data.listing.entries import (
    HASHED,
    Entries,
    Pieces,
    digests,
    gathered,
    hashed,
    keys_of,
    offsets_in_runs,
    runs_of,
    sorted_pieces,
)
from slipway.components.prepare_data.listing.order import divide_in_time
from slipway.components.prepare_data.listing.parts import PartList, order_of_groups
from slipway.components.prepare_data.listing.repeats import SPLIT_ORDER, Repeats
from slipway.components.prepare_data.listing.split import Amount, Fold, Summary
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.source import Ignored, Source


class Listing:
    """All parts of a source, listed.

    Attributes:
        item: What an example is called.
        pieces: The entries, sorted by group and hash within each piece; the group of an entry is an index of `groups`.
        groups: Each group's amount.
        repeats: The equal examples, of a source without images.
        spool: The folder with the files that the source spooled for its readers; by default, that of the pieces.
        ignored: Files and examples that were ignored.
        period_notes: Sentences about the periods of the splits, with data.order_by.
        digest, shape, labels: See `Summary`.
    """

    def __init__(
        self,
        source: Source,
        parts: list[PartList],
        path: Path,
        settings: DataSettings,
        spool: Path | None = None,
        fold: Fold | None = None,
    ) -> None:
        self.item = source.item
        duplicates = "keep" if source.has_image else settings.duplicates
        self.repeats = Repeats(duplicates, settings.divided_by)
        self.spool = spool or path.parent
        self.ignored = Ignored()
        names = source.groups({group: None for part in parts for group in part.examples})
        self.period_notes: list[str] = []
        if settings.order_by is not None:
            self.period_notes = divide_in_time(parts, names, settings, fold, source.item)
            names = {group: group for part in parts for group in part.examples}
        examples: Counter[Group] = Counter()
        sizes: Counter[Group] = Counter()
        for part in parts:
            self.ignored.merge(part.ignored)
            for group, count in part.examples.items():
                examples[names[group]] += count
                sizes[names[group]] += part.bytes[group]
        ordered = sorted(examples, key=order_of_groups)
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
