"""The lists of a source's parts: each is listed into a file by one process."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway.components.prepare_data.examples import Group, readable
from slipway.components.prepare_data.listing.entries import (
    HASHED,
    RANK_BYTES,
    ROW,
    Entries,
    digests,
    gathered,
    hashed,
    keys_of,
    sorted_pieces,
    write_block,
)
from slipway.components.prepare_data.sources.source import Entry, Ignored, ListedRows, Part, Source, coded, coded_groups
from slipway.core.errors import UserError

ENTRIES_LISTED = 8192  # at once
# Returns the bundle of an example from its key and the group that its source names; see `groups`.
BundleOf = Callable[[bytes, bytes], bytes]
# What orders an example: a number or the days of a date, NaN if it has neither; see `order`.
ORDER = np.dtype([("value", "<f8"), ("is_date", "?")])
OrderOf = Callable[[ListedRows], NDArray[np.void]]
NOT_ORDERED = "data.order_by finds neither a number nor a date in it"


@dataclass
class PartList:
    """A listed part of a source: its files, ignored files and groups; see `Summary` for the digests.

    `examples` and `bytes` are the amounts of each group, `labels` the names of all labels of the task multilabel. The
    group of an entry is an index of `examples`. The rows of a table have no digests: their keys depend on other parts.
    With data.order_by, the file `order` has what orders each entry, and the entries are not sorted.
    """

    paths: list[Path]
    ignored: Ignored = field(default_factory=Ignored)
    examples: Counter[Group] = field(default_factory=Counter)
    bytes: Counter[Group] = field(default_factory=Counter)
    labels: set[str] = field(default_factory=set)
    digests: tuple[str, str] | None = None
    is_table: bool = False
    order: Path | None = None

    def move(self, folder: Path, copy: Callable[[Path, Path], object]) -> None:
        """Copy the files to another folder by `copy`, which receives the path that each had and its new one."""

        def moved(path: Path) -> Path:
            copy(path, folder / path.name)
            return folder / path.name

        self.paths = [*map(moved, self.paths)]
        self.order = self.order and moved(self.order)


def list_part(
    source: Source,
    part: Part,
    seed: int,
    path: Path,
    bundle_of: BundleOf | None = None,
    order_of: OrderOf | None = None,
) -> PartList:
    """List one part into files beside `path`; the digests do not depend on the order of the entries.

    With `bundle_of`, the rank of an example is the hash of its bundle. With `order_of`, examples without a number or
    date that orders them are unusable.
    """
    listed = PartList([path], order=path.with_name(f"{path.name}.order") if order_of else None)
    batches = source.rows(part, listed.ignored, path.parent)
    listed.is_table = batches is not None
    if batches is None:
        entries = source.entries(part, listed.ignored, path.parent)
        batches = _batches(iter(entries), bundle_of, several=source.task == "multilabel")
    numbers: dict[Group, int] = {}
    with path.open("wb") as file, listed.order.open("wb") if listed.order else nullcontext() as order_file:
        for batch in batches:
            if order_of and order_file:
                batch, values = _ordered(batch, order_of, listed.ignored)
                order_file.write(values.tobytes())
                if not len(values):
                    continue
            of_group = np.array([numbers.setdefault(group, len(numbers)) for group in batch.groups], np.int64)
            write_block(file, _entries(batch, of_group, seed, bundled=bundle_of is not None))
            counts, sizes = (np.bincount(batch.group, weights, len(batch.groups)) for weights in (None, batch.sizes))
            for group, count, size in zip(batch.groups, counts.tolist(), sizes.tolist(), strict=True):
                listed.examples[group] += count
                listed.bytes[group] += int(size)
            listed.labels |= batch.labels
    if not (listed.is_table or listed.order):
        sort_part(listed)
    return listed


def _ordered(batch: ListedRows, order_of: OrderOf, ignored: Ignored) -> tuple[ListedRows, NDArray[np.void]]:
    """Return the rows that have something that orders them, and what; record the others as unusable."""
    values = order_of(batch)
    known = ~np.isnan(values["value"])
    if known.all():
        return batch, values
    for index in np.flatnonzero(~known).tolist():
        key = batch.keys[index] if batch.keys is not None else keys_of(batch.digests[[index]], np.ones(1, np.uint32))[0]
        ignored.skip(key, NOT_ORDERED)
    return batch.take(np.flatnonzero(known)), values[known]


def pattern_match(setting: str, pattern: str, key: bytes) -> bytes:
    """Return the match of the pattern's capturing group in a key.

    Raises:
        UserError: The pattern does not match the key.
    """
    match = re.search(pattern, key.decode("utf-8", "surrogateescape"))
    if match is None or match[1] is None:
        raise UserError(
            f"{setting} does not match {readable(key)}.",
            setting=setting,
            value=pattern,
            allowed="a regular expression that matches the key of every example",
            fix="change the pattern, or rename the file",
        )
    return match[1].encode("utf-8", "surrogateescape")


def sort_part(listed: PartList) -> None:
    """Sort the entries in the file of a part; compute their digests."""
    [path] = listed.paths
    ordered = sorted(listed.examples, key=order_of_groups)
    by_group = {group: number for number, group in enumerate(ordered)}
    numbers = np.array([by_group[group] for group in listed.examples], np.int64)
    size = path.stat().st_size
    pieces = sorted_pieces(gathered([(path, numbers)]), path.with_name(f"{path.name}-sorted"), size)
    listed.paths = pieces.paths
    listed.examples = Counter({group: listed.examples[group] for group in ordered})
    listed.digests = digests(pieces, listed.examples, listed.ignored.unusable_digest)


def order_of_groups(group: Group) -> tuple[str, str]:
    return group[0] or "", group[1]


def _batches(entries: Iterator[Entry], bundle_of: BundleOf | None, *, several: bool) -> Iterator[ListedRows]:
    """Yield entries, many at a time; those of the task multilabel have several labels."""
    while batch := [*itertools.islice(entries, ENTRIES_LISTED)]:
        keys, labels, splits, sizes, stamps, offsets, values, *orders = zip(*batch, strict=True)
        groups, group, names = coded_groups(splits, labels, several=several)
        contents, bundles = np.zeros(len(batch), np.uint64), (b"",) * len(batch)
        if bundle_of:
            bundles = tuple(map(bundle_of, keys, values))
        else:
            contents = np.array([*map(int.from_bytes, values)], np.uint64)
        digest, offset = (np.array(column, np.uint64) for column in (stamps, offsets))
        size = np.array(sizes, np.int64)
        order = coded(orders[0]) if orders else None
        yield ListedRows(digest, groups, group, size, offset, *coded(bundles), names, contents, keys, order)


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
