"""Listed examples in arrays, and the files that hold them: parts of sources, pieces of a listing, lists of shards.

A file is a sequence of blocks: a number of rows, the rows, and the keys that the source gave them. Memory use does not
depend on the number of examples: they are divided by hash among pieces, each of which is sorted in memory. Only the
examples of one group of data.group_by, and equal ones, are in one piece, whatever their number is.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from slipway.components.prepare_data.examples import Example, Group

HASH_BYTES, RANK_BYTES = 12, 8
# Bytes that are sorted in memory at once, and rows that are read at once.
PIECE_BYTES = 8 << 20
ROWS_READ = 1 << 16
# An example. `rank` and `order` are parts of the hash of its key: the rank in its group, and the order in its shard.
# `digest` is a hash of its values, or the source's stamp. `content` is a hash of its inputs and label, or 0 if it is
# not compared. Where the source has no keys, they are made of `digest` and `copy`, the number of one of several equal
# rows; else `copy` is 0, and `length` that of the key. `group` is the index of the group; in a shard's list, the label.
ROW = np.dtype(
    [("rank", "<u8"), ("order", "<u4"), ("size", "<u8"), ("offset", "<u8"), ("digest", "<u8"), ("content", "<u8"),
     ("copy", "<u4"), ("length", "<u4"), ("group", "<u4")]
)  # fmt: skip
# The same, to copy rows without looking at their fields, which is up to 20 times as fast.
WHOLE = np.dtype(f"V{ROW.itemsize}")
HASHED = np.dtype([("rank", ">u8"), ("order", ">u4")])
SORTED_BY = ("rank", "order", "size", "offset", "digest", "content", "length")
COUNT = struct.Struct("<Q")
KEY_PREFIX = b"row "
KEY_BYTES = len(KEY_PREFIX) + 16
HEX = np.frombuffer("".join(f"{number:02x}" for number in range(256)).encode(), np.uint16)
# What stays if files are copied, before the key.
SHAPE = np.dtype([("rank", ">u8"), ("order", ">u4"), ("size", ">u8"), ("length", ">u4")])


@dataclass(frozen=True)
class Entries:
    """Listed examples: their rows, of the type `ROW`, and the keys that the source gave them.

    The rows of a table have no `named` keys. Theirs are made of the hashes of their values.
    """

    rows: NDArray[np.void]
    named: NDArray[np.object_] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> Entries:
        return Entries(self.rows[part], None if self.named is None else self.named[part])

    def take(self, index: NDArray[np.int64]) -> Entries:
        """Return the entries at these positions; 20 times as fast as indexing an array of rows."""
        return Entries(self.rows.take(index), None if self.named is None else self.named.take(index))

    def key_list(self) -> list[bytes]:
        """Return the keys."""
        return keys_of(self.rows["digest"], self.rows["copy"]) if self.named is None else self.named.tolist()

    def contents(self) -> list[bytes]:
        """Return what examples with equal inputs and labels have in common; the key where that is not known."""
        rows = self.rows
        if self.named is None:
            are_same = (rows["content"] == rows["digest"]).all() and (rows["copy"] == 1).all()
            return self.key_list() if are_same else keys_of(rows["content"], np.ones_like(rows["copy"]))
        contents = np.array(keys_of(rows["content"], np.ones_like(rows["copy"])), object)
        return np.where(rows["content"] != 0, contents, self.named).tolist()

    def examples(self) -> Iterator[Example]:
        """Yield the examples of a shard's list."""
        return zip(self.key_list(), *(self.rows[name].tolist() for name in ("group", "size", "offset")), strict=True)

    def classes(self) -> dict[int, int]:
        """Return the number of examples of each label of a shard's list."""
        labels, counts = np.unique(self.rows["group"], return_counts=True)
        return dict(zip(labels.tolist(), counts.tolist(), strict=True))

    def sort(self, columns: Sequence[str]) -> NDArray[np.int64]:
        """Return the order by columns, of which the first has few equal values, and by key."""
        first = self.rows[columns[0]]
        order = np.argsort(first)
        starts, lengths = runs_of(first[order])
        if len(starts) < len(order):
            equal = np.flatnonzero(np.repeat(lengths > 1, lengths))
            rows = np.sort(order[equal])
            by_key = rows if self.named is None else rows[np.argsort(self.named[rows], kind="stable")]
            order[equal] = by_key[np.lexsort([self.rows[name][by_key] for name in reversed(columns)])]
        return order

    def shape(self) -> bytes:
        """Return what stays if files are copied."""
        start = np.empty(len(self), SHAPE)
        for name in SHAPE.names or ():
            start[name] = self.rows[name]
        if self.named is None and (self.rows["copy"] == 1).all():
            start["length"] = KEY_BYTES
            lines = key_lines(self.rows["digest"])
            return np.hstack([start.view(np.uint8).reshape(len(self), -1), lines]).tobytes()
        keys = self.key_list()
        start["length"] = [*map(len, keys)]
        starts = start.view(f"V{SHAPE.itemsize}").tolist()
        return b"".join(itertools.chain.from_iterable(zip(starts, keys, strict=True)))


def runs_of(ordered: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the start of each run of equal values, and the lengths of the runs."""
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    return starts, np.diff(starts, append=len(ordered))


def offsets_in_runs(ordered: NDArray[Any]) -> NDArray[np.int64]:
    """Return the offset of each value in its run of equal values."""
    starts, lengths = runs_of(ordered)
    return np.arange(len(ordered)) - np.repeat(starts, lengths)


def stable_order(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order by numbers that are not negative; of small ones in a tenth of the time of `np.argsort`."""
    kind = np.min_scalar_type(numbers.max(initial=0))
    return np.argsort(numbers.astype(kind), kind="stable")


def joined(blocks: Sequence[Entries]) -> Entries:
    """Return blocks as one."""
    if len(blocks) == 1:
        return blocks[0]
    named = [block.named for block in blocks if block.named is not None]
    rows = np.concatenate([np.empty(0, WHOLE), *(block.rows.view(WHOLE) for block in blocks)])
    return Entries(rows.view(ROW), np.concatenate(named) if named else None)


def write_block(file: BinaryIO, entries: Entries) -> None:
    """Write a block to a file, unless it is empty."""
    if not len(entries):
        return
    file.write(COUNT.pack(len(entries)))
    file.write(entries.rows.data)
    if entries.named is not None:
        file.write(b"".join(entries.named.tolist()))


def read_blocks(path: Path) -> Iterator[Entries]:
    """Yield the blocks of a file."""
    with path.open("rb") as file:
        while start := file.read(COUNT.size):
            (count,) = COUNT.unpack(start)
            rows = _rows(file, count)
            yield Entries(rows, _keys(file, rows))


def _rows(file: BufferedReader, count: int) -> NDArray[np.void]:
    rows = np.empty(count, ROW)
    if file.readinto(rows.data) < rows.nbytes:
        raise EOFError(f"{file.name} is cut short")
    return rows


def _keys(file: BufferedReader, rows: NDArray[np.void]) -> NDArray[np.object_] | None:
    """Read the keys of rows; None if these are of a table."""
    if len(rows) and rows["copy"][0]:
        return None
    ends = np.cumsum(rows["length"], dtype=np.int64).tolist()
    data = file.read(ends[-1] if ends else 0)
    return np.array([data[start:end] for start, end in itertools.pairwise([0, *ends])], object)


def append_divided(paths: Sequence[Path], entries: Entries, index: NDArray[np.int64]) -> None:
    """Append each entry to the file at its index."""
    ordered = entries.take(stable_order(index)) if len(paths) > 1 else entries
    ends = np.cumsum(np.bincount(index, minlength=len(paths))).tolist()
    for path, start, end in zip(paths, [0, *ends], ends, strict=False):
        if start < end:
            with path.open("ab") as file:
                write_block(file, ordered[start:end])


def gathered(files: Iterable[tuple[Path, NDArray[np.int64]]]) -> Iterator[Entries]:
    """Yield the entries of files, many at a time, with new numbers of their groups; delete the files."""
    held: list[Entries] = []
    rows = 0
    for path, numbers in files:
        for block in read_blocks(path):
            block.rows["group"] = numbers[block.rows["group"]]
            held.append(block)
            rows += len(block)
            if rows >= ROWS_READ:
                yield joined(held)
                held, rows = [], 0
        path.unlink()
    yield joined(held)


class Pieces:
    """Files among which entries are divided by the first bits of a hash, so that each is sorted in memory.

    Args:
        path: The files are beside it.
        size: The size of all entries in bytes.
    """

    def __init__(self, path: Path, size: int) -> None:
        count = int(1 << (size // PIECE_BYTES).bit_length())
        self.paths = [path.with_name(f"{path.name}-{number:03d}") for number in range(count)]
        for piece in self.paths:
            piece.touch()

    def add(self, entries: Entries, hashes: NDArray[np.uint64]) -> None:
        """Append entries to the files of their hashes."""
        bits = (len(self.paths) - 1).bit_length()
        shifted = hashes >> np.uint64(64 - bits) if bits else np.zeros(len(entries))
        append_divided(self.paths, entries, shifted.astype(np.int64))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Entries:
        return joined([*read_blocks(self.paths[number])])

    def __iter__(self) -> Iterator[Entries]:
        return (self[number] for number in range(len(self)))

    def part(self, number: int, rows: tuple[int, int], keys: int) -> Entries:
        """Return the entries between two rows of a file of one block; `keys` is the position of the first one's key."""
        start, stop = rows
        with self.paths[number].open("rb") as file:
            (count,) = COUNT.unpack(file.read(COUNT.size))
            file.seek(start * ROW.itemsize, os.SEEK_CUR)
            result = _rows(file, stop - start)
            file.seek(COUNT.size + count * ROW.itemsize + keys)
            return Entries(result, _keys(file, result))

    def replace(self, number: int, entries: Entries) -> None:
        """Replace the entries of a file."""
        with self.paths[number].open("wb") as file:
            write_block(file, entries)

    def remove(self) -> None:
        """Delete the files."""
        for path in self.paths:
            path.unlink()


def sorted_pieces(entries: Iterable[Entries], path: Path, size: int) -> Pieces:
    """Write entries of `size` bytes to pieces beside `path` by their ranks, each sorted by group, rank and order."""
    pieces = Pieces(path, size)
    for batch in entries:
        pieces.add(batch, batch.rows["rank"])
    for number, piece in enumerate(pieces):
        order = piece.sort(SORTED_BY)
        pieces.replace(number, piece.take(order[stable_order(piece.rows["group"][order])]))
    return pieces


def digests(pieces: Pieces, amounts: Mapping[Group, int], unusable: bytes) -> tuple[str, str]:
    """Return the digest and the shape of sorted pieces; see `Summary`.

    Args:
        pieces: The entries.
        amounts: The number of entries of each group.
        unusable: Identifies the examples that cannot be listed.
    """
    digest, shape = (hashlib.sha256(unusable) for _ in range(2))
    bounds, keys = [], []
    for piece in pieces:
        bounds.append(np.searchsorted(piece.rows["group"], np.arange(len(amounts) + 1)))
        keys.append(np.append(0, np.cumsum(piece.rows["length"], dtype=np.int64))[bounds[-1]].tolist())
    for number, (group, count) in enumerate(amounts.items()):
        shape.update(repr((group, count)).encode())
        for piece_number, bound in enumerate(bounds):
            start, stop = bound[number : number + 2].tolist()
            if start < stop:
                part = pieces.part(piece_number, (start, stop), keys[piece_number][number])
                digest.update(part.rows.data)
                shape.update(part.shape())
    digest.update(shape.digest())
    return digest.hexdigest(), shape.hexdigest()


def hashed(keys: Iterable[bytes], seed: int, size: int = HASH_BYTES) -> bytes:
    """Return the hashes of keys, by which they are ordered."""
    fresh = hashlib.blake2b(digest_size=size, salt=struct.pack(">Q", seed)).copy  # faster than a new one for each key
    hashes = []
    for key in keys:
        hashing = fresh()
        hashing.update(key)
        hashes.append(hashing.digest())
    return b"".join(hashes)


def keys_of(digests: NDArray[np.uint64], copies: NDArray[np.uint32]) -> list[bytes]:
    """Return the keys of rows: a hash of their values, and the number of one of several equal rows from the second."""
    keys: list[bytes] = key_lines(digests).view(f"V{KEY_BYTES}").ravel().tolist()
    for index in np.flatnonzero(copies > 1).tolist():
        keys[index] += b" copy %d" % copies[index]
    return keys


def key_lines(digests: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the keys of rows without copies, one a line."""
    keys = np.empty((len(digests), KEY_BYTES), np.uint8)
    keys[:, : len(KEY_PREFIX)] = np.frombuffer(KEY_PREFIX, np.uint8)
    digest_bytes = digests.astype(">u8").view(np.uint8).reshape(-1, 8)
    keys[:, len(KEY_PREFIX) :] = HEX[digest_bytes].view(np.uint8).reshape(-1, 16)
    return keys
