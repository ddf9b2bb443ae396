"""The on-disk list of a table's rows, in arrays: what `index` is to examples that are listed one at a time.

Memory use does not depend on the number of rows: they are divided by hash among files, each of which is sorted in
memory. The order, the splits and the shards are those that `index` gives to the same keys.
"""

from __future__ import annotations

import hashlib
import itertools
import pickle
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipway.components.prepare_data.encoding.table_rows import KEY_BYTES, KEY_PREFIX, key_lines, keys_of
from slipway.components.prepare_data.examples import SPLITS, Example, Group
from slipway.components.prepare_data.listing.lists import bundle_rank, contents_of, examples_of, load_list
from slipway.components.prepare_data.listing.repeats import SPLIT_ORDER, Repeats
from slipway.components.prepare_data.sources.source import ListedRows

HASH_BYTES = 12
# Rows that are sorted in memory at once, and that are read at once.
PIECE_BYTES = 8 << 20
ROWS_READ = 1 << 16
# Records of rows that are written at once.
BATCH_BYTES = 1 << 22
HASHED = np.dtype([("rank", ">u8"), ("order", ">u4")])
# A row before its key is known; `split` is its position in `SPLIT_ORDER`.
FOUND = np.dtype(
    [("digest", ">u8"), ("content", ">u8"), ("group", "<u4"), ("split", "u1"), ("size", "<u8"), ("offset", "<u8")]
)
# The same with the rank of its bundle.
BUNDLED = np.dtype([*FOUND.descr, ("bundle", ">u8")])
LISTED = np.dtype(
    [("rank", ">u8"), ("order", ">u4"), ("size", "<u8"), ("offset", "<u8"), ("digest", ">u8"), ("content", ">u8"),
     ("copy", "<u4"), ("group", "<u4")]
)  # fmt: skip
# A row in the list of a shard.
DEALT = np.dtype(
    [("order", ">u4"), ("size", "<u8"), ("offset", "<u8"), ("digest", ">u8"), ("content", ">u8"), ("copy", "<u4"),
     ("label", "<u4")]
)  # fmt: skip
# What of a row stays if files are copied: as `index.SIZED` and `index.KEYED`.
SHAPE = np.dtype([("rank", ">u8"), ("order", ">u4"), ("size", ">u8"), ("length", ">u4"), ("key", f"V{KEY_BYTES}")])


class Pieces:
    """Files among which rows are divided by the first bits of a hash, so that each is sorted in memory."""

    def __init__(self, path: Path, row: np.dtype[np.void], count: int) -> None:
        self.paths = [path.with_name(f"{path.name}-{number:03d}") for number in range(count)]
        self.row = row
        for path in self.paths:
            path.touch()

    def add(self, rows: NDArray[np.void], hashes: NDArray[np.uint64]) -> None:
        """Append rows to the files of their hashes."""
        bits = (len(self.paths) - 1).bit_length()
        piece = (hashes >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(rows), np.int64)
        ends = np.cumsum(np.bincount(piece, minlength=len(self.paths)))
        ordered = rows[np.argsort(piece, kind="stable")] if bits else rows
        for path, piece_rows in zip(self.paths, np.split(ordered, ends[:-1]), strict=True):
            with path.open("ab") as file:
                file.write(piece_rows.tobytes())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> NDArray[np.void]:
        return np.fromfile(self.paths[number], self.row)

    def part(self, number: int, start: int, stop: int) -> NDArray[np.void]:
        """Return some rows of a file."""
        return np.fromfile(self.paths[number], self.row, stop - start, offset=start * self.row.itemsize)

    def replace(self, number: int, rows: NDArray[np.void]) -> None:
        """Replace the rows of a file."""
        rows.tofile(self.paths[number])

    def remove(self) -> None:
        """Delete the files."""
        for path in self.paths:
            path.unlink()


class SortedRows(NamedTuple):
    """The rows of a table, sorted by group and hash within each piece.

    Attributes:
        groups: All groups, sorted; the group of a row is an index of them.
        examples: The number of rows of each group.
        sizes: Their size in bytes.
        pieces: The rows.
        repeats: The equal rows.
    """

    groups: list[Group]
    examples: list[int]
    sizes: list[int]
    pieces: Pieces
    repeats: Repeats

    def digests(self, unusable: bytes) -> tuple[str, str]:
        """Return the digest and the shape of `Summary`; `unusable` identifies the rows that cannot be listed."""
        digest, shape = (hashlib.sha256(unusable) for _ in range(2))
        every = np.arange(len(self.groups) + 1)
        numbers = range(len(self.pieces))
        bounds = [np.searchsorted(self.pieces[index]["group"], every).tolist() for index in numbers]
        for number, (group, count) in enumerate(zip(self.groups, self.examples, strict=True)):
            about = repr((group, count)).encode()
            digest.update(about)
            shape.update(about)
            for piece, bound in zip(numbers, bounds, strict=True):
                start, stop = bound[number : number + 2]
                if start < stop:
                    rows = self.pieces.part(piece, start, stop)
                    digest.update(rows.tobytes())
                    shape.update(_shape_of(rows))
        return digest.hexdigest(), shape.hexdigest()

    def without(self, keys: Collection[bytes]) -> list[int]:
        """Remove the rows with these keys; return the number of the others of each group."""
        digests = np.array([int(key[len(KEY_PREFIX) : KEY_BYTES], 16) for key in keys], np.uint64)
        counts = np.zeros(len(self.groups), np.int64)
        for number in range(len(self.pieces)):
            rows = self.pieces[number]
            kept = np.ones(len(rows), np.bool_)
            possible = np.flatnonzero(np.isin(rows["digest"].astype(np.uint64), digests))
            possible_keys = keys_of(rows["digest"][possible], rows["copy"][possible])
            kept[possible] = [key not in keys for key in possible_keys]
            self.pieces.replace(number, rows[kept])
            counts += np.bincount(rows["group"][kept], minlength=len(counts))
        return counts.tolist()

    def portions(self, number: int) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """Return the first row of each portion in a piece, and their numbers of rows."""
        rows = self.pieces[number]
        starts = np.flatnonzero(
            np.append(True, rows[["group", "rank"]][1:] != rows[["group", "rank"]][:-1])[: len(rows)]
        )
        return rows[starts], np.diff(starts, append=len(rows))

    def run_ends(self) -> list[NDArray[np.int64]]:
        """Return the number of rows of each group up to the end of each run of rows of one rank."""
        counts: list[list[NDArray[np.int64]]] = [[np.zeros(0, np.int64)] for _ in self.groups]
        for number in range(len(self.pieces)):
            firsts, of_run = self.portions(number)
            ends = np.searchsorted(firsts["group"], np.arange(1, len(self.groups)))
            for of_group, part in zip(counts, np.split(of_run, ends), strict=True):
                of_group.append(part)
        return [np.cumsum(np.concatenate(of_group)) for of_group in counts]

    def amounts(self) -> list[tuple[int, int]]:
        """Return the numbers of rows and of bundles of each group."""
        totals = np.zeros((2, len(self.groups)), np.int64)
        for number in range(len(self.pieces)):
            firsts, counts = self.portions(number)
            for of_group, weights in zip(totals, (counts, counts > 0), strict=True):
                of_group += np.bincount(firsts["group"], weights, minlength=len(self.groups)).astype(np.int64)
        return [*zip(*totals.tolist(), strict=True)]

    def assign(self, split_of: Callable[[list[tuple[int, int, bytes]]], str]) -> None:
        """Assign each bundle, the rows of one rank, to the split that is returned for its portions.

        A portion has the rows of one group: the index of the group, their number, and the key of the first one.
        """
        for number in range(len(self.pieces)):
            firsts, counts = self.portions(number)
            keys = keys_of(firsts["digest"], firsts["copy"])
            about = [*zip(firsts["group"].tolist(), counts.tolist(), keys, strict=True)]
            splits = np.empty(len(firsts), np.uint8)
            order = np.lexsort((firsts["group"], firsts["rank"])).tolist()
            for _, bundle in itertools.groupby(order, firsts["rank"].tolist().__getitem__):
                portions = [*bundle]
                splits[portions] = SPLITS.index(split_of([about[position] for position in portions]))
            np.repeat(splits, counts).tofile(self._splits_path(number))

    def _splits_path(self, number: int) -> Path:
        path = self.pieces.paths[number]
        return path.with_name(f"{path.name}.splits")

    def deal(
        self,
        divided: Sequence[Sequence[tuple[str, int]]],
        labels: Sequence[int],
        lists: Mapping[str, Sequence[Path]],
        *,
        bundled: bool,
    ) -> None:
        """Deal the rows to the lists of shards.

        Args:
            divided: The blocks of rows of each group that are in one split, in their order.
            labels: The label of each group.
            lists: The lists of each split's shards.
            bundled: Whether `assign` has assigned the rows to splits.
        """
        paths = [path for split in SPLITS for path in lists.get(split, ())]
        shards = np.array([len(lists.get(split, ())) for split in SPLITS])
        counts = np.array(
            [[sum(size for name, size in blocks if name == split) for split in SPLITS] for blocks in divided], np.int64
        )
        turns = np.cumsum(counts, axis=0) - counts  # of the next row of each group and split
        ends = [np.cumsum([size for _, size in blocks]) for blocks in divided]
        named = [np.array([SPLITS.index(split) for split, _ in blocks], np.uint8) for blocks in divided]
        passed = np.zeros(len(self.groups), np.int64)
        for number in range(len(self.pieces)):
            rows = self.pieces[number]
            group = rows["group"].astype(np.int64)
            of_group = np.bincount(group, minlength=len(self.groups))
            if bundled:
                split = np.fromfile(self._splits_path(number), np.uint8)
            else:
                group_splits = [
                    named[index][np.searchsorted(ends[index], np.arange(begin, begin + count), "right")]
                    for index, (begin, count) in enumerate(zip(passed.tolist(), of_group.tolist(), strict=True))
                    if count
                ]
                split = np.concatenate([np.empty(0, np.uint8), *group_splits])
            passed += of_group
            both = group * len(SPLITS) + split
            turn = turns.reshape(-1)[both] + _positions(both)
            turns += np.bincount(both, minlength=turns.size).reshape(turns.shape)
            shard = (np.cumsum(shards) - shards)[split] + turn % shards[split]
            dealt = np.empty(len(rows), DEALT)
            for name in ("order", "size", "offset", "digest", "content", "copy"):
                dealt[name] = rows[name]
            dealt["label"] = np.array(labels, np.uint32)[rows["group"]]
            of_shard = np.split(
                dealt[np.argsort(shard, kind="stable")], np.cumsum(np.bincount(shard, minlength=len(paths)))[:-1]
            )
            for path, part in zip(paths, of_shard, strict=True):
                with path.open("ab") as file:
                    pickle.dump(part, file)


def _positions(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many equal values are before each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.append(True, np.diff(ordered) != 0)[: len(values)])
    result = np.empty(len(values), np.int64)
    result[order] = np.arange(len(values)) - np.repeat(starts, np.diff(starts, append=len(values)))
    return result


class FoundRows(NamedTuple):
    """The rows of a part of a table in a file, in any order; the group of a row is an index of `groups`.

    Attributes:
        groups: The groups.
        examples: The number of rows of each group.
        sizes: Their size in bytes.
        file: The rows.
    """

    groups: list[Group]
    examples: NDArray[np.int64]
    sizes: NDArray[np.int64]
    file: Pieces


def found_rows(listed: Iterable[ListedRows], seed: int, path: Path, *, bundled: bool = False) -> FoundRows:
    """Write the rows of a part of a table to a file beside `path`, with the ranks of their bundles if they have any."""
    numbers: dict[Group, int] = {}
    row = BUNDLED if bundled else FOUND
    pieces = Pieces(path.with_name(f"{path.name}.found"), row, 1)
    examples, sizes = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for batch in listed:
        of_group = np.array([numbers.setdefault(group, len(numbers)) for group in batch.groups], np.int64)
        rows = np.empty(len(batch.digests), row)
        rows["digest"], rows["size"], rows["offset"] = batch.digests, batch.sizes, batch.offsets
        rows["content"] = batch.digests if batch.contents is None else batch.contents
        rows["group"] = of_group[batch.group]
        rows["split"] = np.array([SPLIT_ORDER.index(split) for split, _ in batch.groups], np.uint8)[batch.group]
        if bundled:
            ranks = b"".join([bundle_rank(bundle, seed) for bundle in batch.bundles])
            rows["bundle"] = np.frombuffer(ranks, ">u8")[batch.bundle]
        pieces.add(rows, batch.digests)
        examples = _added(examples, np.bincount(rows["group"], minlength=len(numbers)))
        sizes = _added(sizes, np.bincount(rows["group"], batch.sizes, minlength=len(numbers)).astype(np.int64))
    return FoundRows([*numbers], examples, sizes, pieces)


def sorted_rows(parts: Sequence[FoundRows], seed: int, path: Path, repeats: Repeats) -> SortedRows:
    """Sort the rows of all parts of a table into files beside `path`; count the equal ones in `repeats`.

    The rank of a row in a bundle is the bundle's; of other equal rows that are kept together, that of their content.
    """
    groups = sorted({*itertools.chain(*(part.groups for part in parts))}, key=lambda group: (group[0] or "", group[1]))
    numbers = {group: number for number, group in enumerate(groups)}
    examples, sizes = np.zeros((2, len(groups)), np.int64)
    for part in parts:
        index = [numbers[group] for group in part.groups]
        examples[index] += part.examples
        sizes[index] += part.sizes
    total = int(examples.sum())
    pieces = Pieces(path, LISTED, _pieces_of(total))
    content_pieces = _by_content(parts, numbers, total)
    for number in range(len(content_pieces)):
        _count_equal(content_pieces[number], repeats)
    if repeats.are_dropped:
        examples, sizes = np.zeros((2, len(groups)), np.int64)
    for number in range(len(content_pieces)):
        keyed = _keyed(content_pieces[number], seed, repeats)
        pieces.add(keyed, keyed["rank"].astype(np.uint64))
        if repeats.are_dropped:
            examples += np.bincount(keyed["group"], minlength=len(groups))
            sizes += np.bincount(keyed["group"], keyed["size"], minlength=len(groups)).astype(np.int64)
    content_pieces.remove()
    for number in range(len(pieces)):
        rows = pieces[number]
        order = _sorted(rows["rank"], rows["order"], rows["size"], rows["offset"], group=rows["group"])
        pieces.replace(number, rows[order])
    return SortedRows(groups, examples.tolist(), sizes.tolist(), pieces, repeats)


def _sorted(*keys: NDArray[np.unsignedinteger], group: NDArray[np.uint32] | None = None) -> NDArray[np.int64]:
    """Return the order by group, then by the first key, of which few are equal, then by the other keys."""
    first = keys[0].astype(keys[0].dtype.newbyteorder("="))
    order = np.argsort(first)
    if (np.diff(first[order]) == 0).any():
        order = np.lexsort(keys[::-1])
    return order if group is None else order[np.argsort(group[order], kind="stable")]


def _added(counts: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.pad(counts, (0, len(more) - len(counts))) + more


def _pieces_of(rows: int) -> int:
    """Return the number of files for this many rows, a power of two."""
    return int(1 << max(rows * FOUND.itemsize // PIECE_BYTES, 0).bit_length())


def _by_content(parts: Sequence[FoundRows], numbers: Mapping[Group, int], total: int) -> Pieces:
    """Return the rows of all parts, equal ones in one file, with the number of their group; delete the parts' files."""
    pieces = Pieces(parts[0].file.paths[0].with_name("contents"), parts[0].file.row, _pieces_of(total))
    for part in parts:
        renumbered = np.array([numbers[group] for group in part.groups], np.int64)
        for start in range(0, int(part.examples.sum()), ROWS_READ):
            rows = part.file.part(0, start, start + ROWS_READ)
            rows["group"] = renumbered[rows["group"]]
            pieces.add(rows, rows["content"].astype(np.uint64))
        part.file.remove()
    return pieces


def _runs(ordered: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the start of each run of equal values, and their numbers."""
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    return starts, np.diff(starts, append=len(ordered))


def _count_equal(rows: NDArray[np.void], repeats: Repeats) -> None:
    contents = rows["content"].astype(np.uint64)
    starts, counts = _runs(np.sort(contents))
    splits = np.ones(len(starts), np.int64)
    if len(starts) < len(rows) and len(np.unique(rows["split"])) > 1:
        order = np.argsort(contents, kind="stable")
        of_set = np.repeat(np.arange(len(starts)), counts)
        pairs = np.unique(of_set * len(SPLIT_ORDER) + rows["split"][order])
        splits = np.bincount(pairs // len(SPLIT_ORDER), minlength=len(starts))
    repeats.add(counts, splits)


def _keyed(rows: NDArray[np.void], seed: int, repeats: Repeats) -> NDArray[np.void]:
    """Return rows with their keys and the hashes of these; of equal rows, all but the first are copies."""
    result = np.empty(len(rows), LISTED)
    result["copy"] = 1
    if repeats.examples and len(rows):
        order = np.lexsort((rows["offset"], rows["split"], rows["digest"]))
        starts, counts = _runs(rows["digest"][order])
        result["copy"][order] = np.arange(len(rows)) - np.repeat(starts, counts) + 1
    for name in ("digest", "content", "size", "offset", "group"):
        result[name] = rows[name]
    hashes = _hashed(keys_of(result["digest"], result["copy"]), seed)
    result["rank"] = rows["bundle"] if rows.dtype == BUNDLED else hashes["rank"]
    result["order"] = hashes["order"]
    if repeats.are_together and len(rows):
        order = np.argsort(rows["content"], kind="stable")
        _, counts = _runs(rows["content"][order])
        several = order[np.repeat(counts > 1, counts)]
        common = keys_of(rows["content"][several], np.ones(len(several), np.uint32))
        result["rank"][several] = _hashed(common, seed)["rank"]
    if repeats.are_dropped and len(rows):  # the first one is kept, of a source's test split if it is in that
        order = np.lexsort((hashes["order"], hashes["rank"], rows["split"], rows["content"]))
        result = result[np.sort(order[_runs(rows["content"][order])[0]])]
    return result


def _hashed(keys: Iterable[bytes], seed: int) -> NDArray[np.void]:
    """Return the hashes of keys, by which they are ordered."""
    fresh = hashlib.blake2b(digest_size=HASH_BYTES, salt=struct.pack(">Q", seed)).copy  # faster than a new one
    hashes = []
    for key in keys:
        hashed = fresh()
        hashed.update(key)
        hashes.append(hashed.digest())
    return np.frombuffer(b"".join(hashes), HASHED)


def _shape_of(rows: NDArray[np.void]) -> bytes:
    """Return what of the rows stays if files are copied; see `index.SIZED` and `index.KEYED`."""
    shape = np.empty(len(rows), SHAPE)
    for name in ("rank", "order", "size"):
        shape[name] = rows[name]
    shape["length"] = KEY_BYTES
    shape["key"] = key_lines(rows["digest"]).view(SHAPE["key"]).reshape(-1)
    if (rows["copy"] == 1).all():
        return shape.tobytes()
    keys = keys_of(rows["digest"], rows["copy"])
    before = (shape[["rank", "order", "size"]][index].tolist() for index in range(len(rows)))
    return b"".join(struct.pack(">QIQI", *fields, len(key)) + key for fields, key in zip(before, keys, strict=True))


class DealtRows(NamedTuple):
    """The rows of a shard, in the order in which they are written: their keys, labels, sizes and offsets.

    `contents` are the keys that rows with the same inputs and label have in common.
    """

    keys: list[bytes]
    contents: list[bytes]
    labels: NDArray[np.int64]
    sizes: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def examples(self) -> Iterator[Example]:
        """Yield the rows as examples."""
        return zip(self.keys, self.labels.tolist(), self.sizes.tolist(), self.offsets.tolist(), strict=True)

    def classes(self) -> dict[int, int]:
        """Return the number of rows of each label."""
        labels, counts = np.unique(self.labels, return_counts=True)
        return dict(zip(labels.tolist(), counts.tolist(), strict=True))


def dealt_rows(path: Path, beside: int = 0) -> Iterator[DealtRows]:
    """Yield the rows in the list of a shard, those of records of about `BATCH_BYTES` at a time.

    Args:
        path: The list.
        beside: The size of a record beside its Features.
    """
    parts = load_list(path)
    if isinstance(parts[0], list):  # the rows were listed one at a time, with their ids
        yield from _in_batches(examples_of(parts), contents_of(parts), beside)
        return
    rows = np.concatenate(parts)
    rows = rows[_sorted(rows["order"], rows["size"], rows["offset"])]
    count = int(BATCH_BYTES / (beside + rows["size"].mean())) + 1
    for start in range(0, len(rows), count):
        part = rows[start : start + count]
        columns = (part[name].astype(np.int64) for name in ("label", "size", "offset"))
        keys = keys_of(part["digest"], part["copy"])
        are_same = (part["content"] == part["digest"]).all() and (part["copy"] == 1).all()
        yield DealtRows(keys, keys if are_same else keys_of(part["content"], np.ones_like(part["copy"])), *columns)


def _in_batches(examples: Iterable[Example], contents: Mapping[bytes, bytes], beside: int) -> Iterator[DealtRows]:
    batch: list[Example] = []
    total = 0
    for example in examples:
        batch.append(example)
        total += beside + example[2]
        if total > BATCH_BYTES:
            yield _together(batch, contents)
            batch, total = [], 0
    if batch:
        yield _together(batch, contents)


def _together(examples: Sequence[Example], contents: Mapping[bytes, bytes]) -> DealtRows:
    keys, *columns = zip(*examples, strict=True)
    labels, sizes, offsets = (np.array(column, np.int64) for column in columns)
    return DealtRows(list(keys), [contents[key] for key in keys], labels, sizes, offsets)
