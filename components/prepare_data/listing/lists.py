"""The lists of shards' examples: which each has, and reading them in the order in which they are written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway.components.prepare_data.examples import SPLITS, Example, Group
from slipway.components.prepare_data.listing.entries import (
    SORTED_BY,
    Entries,
    append_divided,
    joined,
    offsets_in_runs,
    read_blocks,
    stable_order,
)
from slipway.components.prepare_data.listing.index import Listing
from slipway.components.prepare_data.listing.repeats import Blocks

# Records of rows that are written at once.
BATCH_BYTES = 1 << 22


def list_path(folder: Path, split: str, shard: int) -> Path:
    """Return the path of the list of a shard's examples."""
    return folder / f"{split}-{shard:05d}.list"


def deal(
    listing: Listing,
    blocks: Mapping[Group, Blocks],
    shards: Mapping[str, int],
    classes: list[str],
    folder: Path,
    copies: Collection[bytes] = frozenset(),
    *,
    bundled: bool = False,
) -> None:
    """Deal a listing's entries to lists of the shards' examples, one file per shard.

    The shards of a split differ by at most one example, in total and per class.

    Args:
        listing: The examples.
        blocks: The blocks of examples of each group that are in one split, in their order.
        shards: The number of shards of each split.
        classes: The classes in the order of their labels; of other tasks than classification, none is dealt.
        folder: The folder for the lists.
        copies: Keys to drop from their split without replacing them by other examples.
        bundled: Whether the splits are those that `Bundles` assigned.
    """
    numbers = {label: index for index, label in enumerate(classes)}
    labels = np.array([numbers.get(label, 0) for _, label in listing.groups], np.uint32)
    paths = [list_path(folder, split, shard) for split in SPLITS for shard in range(shards.get(split, 0))]
    of_split = np.array([shards.get(split, 0) for split in SPLITS])
    firsts = np.cumsum(of_split) - of_split
    order = [blocks.get(group, []) for group in listing.groups]
    counts = np.zeros(len(order) * len(SPLITS), np.int64)
    for _, portion in _divided(listing, order, copies, bundled=bundled):
        counts += np.bincount(portion, minlength=len(counts))
    by_group = counts.reshape(-1, len(SPLITS))
    turns = (np.cumsum(by_group, axis=0) - by_group).reshape(-1)  # of the next example of each group and split
    for entries, portion in _divided(listing, order, copies, bundled=bundled):
        turn = turns[portion] + _positions(portion)
        turns += np.bincount(portion, minlength=len(turns))
        split = portion % len(SPLITS)
        entries.rows["group"] = labels[entries.rows["group"]]
        append_divided(paths, entries, firsts[split] + turn % of_split[split])


def _divided(
    listing: Listing, order: list[Blocks], copies: Collection[bytes], *, bundled: bool
) -> Iterator[tuple[Entries, NDArray[np.int64]]]:
    """Yield the entries of each piece, and of each the number of its group and split."""
    ends = np.cumsum([size for of_group in order for _, size in of_group])
    splits = np.array([SPLITS.index(split) for of_group in order for split, _ in of_group], np.int64)
    totals = np.array([sum(size for _, size in of_group) for of_group in order], np.int64)
    limits = np.cumsum(totals)
    following = limits - totals  # the position of the next example of each group
    for number, entries in enumerate(listing.pieces):
        group = entries.rows["group"].astype(np.int64)
        if bundled:
            split = np.fromfile(listing.splits_path(number), np.uint8).astype(np.int64)
        else:
            positions = following[group] + _positions(group)
            if (positions >= limits[group]).any():
                raise ValueError("A group's blocks have fewer examples than the listing.")
            split = splits[np.searchsorted(ends, positions, "right")]
            following += np.bincount(group, minlength=len(order))
        portion = group * len(SPLITS) + split
        if copies:
            kept = np.flatnonzero([key not in copies for key in entries.key_list()])
            entries, portion = entries.take(kept), portion[kept]
        yield entries, portion


def _positions(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many equal values are before each."""
    order = stable_order(values)
    result = np.empty(len(values), np.int64)
    result[order] = offsets_in_runs(values[order])
    return result


def read_list(path: Path) -> Iterator[Example]:
    """Yield a shard's examples in the order in which they are written."""
    return read_all(path).examples()


def read_contents(path: Path) -> dict[bytes, bytes]:
    """Return what examples with equal inputs and labels have in common, by key; the key where that is not known."""
    entries = read_all(path)
    return dict(zip(entries.key_list(), entries.contents(), strict=True))


def batches(entries: Entries, beside: int) -> Iterator[slice]:
    """Yield parts of a shard's list, of records of about `BATCH_BYTES`: the Features, and `beside` for each."""
    count = int(BATCH_BYTES / (beside + entries.rows["size"].mean())) + 1
    for start in range(0, len(entries), count):
        yield slice(start, min(start + count, len(entries)))


def read_all(path: Path) -> Entries:
    """Return the list of a shard, sorted."""
    entries = joined([*read_blocks(path)])
    return entries.take(entries.sort(SORTED_BY[1:]))
