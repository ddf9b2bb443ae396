"""The on-disk list of all examples: sorted by hash, divided among splits, dealt to shards.

Memory use does not depend on the number of examples: they are rows of an SQLite database, which sorts on disk. One
process lists each part of a source into a file; all parts are then copied to one. An example's rank in its group
(source split, class), by the hash of seed and key, determines its split and shard, which therefore do not depend on the
order of directory entries or on the number of workers. Other bits of the same hash determine the order within a shard.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
import pickle
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from slipway.components.prepare_data.examples import LABEL_SEPARATOR, Example, Group
from slipway.components.prepare_data.listing.lists import (
    HASH_BYTES,
    KEY_START,
    LABEL_BYTES,
    RANK_BYTES,
    ROW,
    are_examples,
    bundle_rank,
    content_key,
    contents_of,
    example_hash,
    examples_of,
    list_path,
    load_list,
)
from slipway.components.prepare_data.listing.repeats import SPLIT_ORDER, Blocks, Repeats
from slipway.components.prepare_data.listing.split import Amount
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sorting import database
from slipway.components.prepare_data.sources.source import Ignored, ListedRows, Part, Source

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from slipway.components.prepare_data.listing.table_index import FoundRows, SortedRows

# The parts of a row that stay if files are copied: hash and size; key length and key.
SIZED, KEYED = slice(0, 20), slice(44, None)
# Of equal examples, what they have in common: their content, their number and that of their splits, the rank.
# Examples without a content, 0, are not compared.
CONTENT_OF = "substr(row, 37, 8)"
EQUAL = f"""
CREATE TEMP TABLE equal AS SELECT {CONTENT_OF} AS content, count(*) AS examples, count(DISTINCT split) AS splits,
rank_of({CONTENT_OF}) AS rank FROM rows JOIN splits USING (number)
WHERE {CONTENT_OF} != zeroblob(8) GROUP BY 1 HAVING count(*) > 1
"""
TOGETHER = f"""
UPDATE rows SET row = CAST(rank || substr(row, {RANK_BYTES + 1}) AS BLOB) FROM equal WHERE content = {CONTENT_OF}
"""
# All but the first of equal examples, in the order of `SPLIT_ORDER`.
DROPPED = f"""
CREATE TEMP TABLE dropped AS SELECT id, number, row FROM (
SELECT rows.rowid AS id, number, row, row_number() OVER (PARTITION BY content ORDER BY split, row) AS place
FROM rows JOIN splits USING (number) JOIN equal ON content = {CONTENT_OF}) WHERE place > 1
"""
# Rows in memory before they are appended to the lists of shards.
MAX_ROWS_DEALT = 8192
ROWS_HASHED = 1024  # at once

# Returns the bundle of an example from its key and the group that its source names; see `groups`.
BundleOf = Callable[[bytes, bytes], bytes]


@dataclass
class PartList:
    """A listed part of a source: its file, ignored files and groups; see `Summary` for the digests.

    `examples` and `bytes` are the amounts of each group, `labels` the names of all labels of the task multilabel.
    `rows` are those of a table, which are sorted together with those of its other parts; the file then does not exist.
    """

    path: Path
    ignored: Ignored = field(default_factory=Ignored)
    examples: Counter[Group] = field(default_factory=Counter)
    bytes: Counter[Group] = field(default_factory=Counter)
    labels: set[str] = field(default_factory=set)
    digest: str = ""
    shape: str = ""
    rows: FoundRows | None = None

    def move(self, folder: Path, copy: Callable[[Path, Path], object]) -> None:
        """Copy the files to another folder by `copy`, which receives the path that each had and its new one."""
        paths = [self.path] if self.rows is None else self.rows.file.paths
        moved = [folder / path.name for path in paths]
        for pair in zip(paths, moved, strict=True):
            copy(*pair)
        self.path = folder / self.path.name
        if self.rows is not None:
            self.rows.file.paths = moved


def list_part(source: Source, part: Part, seed: int, path: Path, bundle_of: BundleOf | None = None) -> PartList:
    """List one part into the file `path`; the digests do not depend on the order of the entries.

    With `bundle_of`, the rank of an example is the hash of its bundle.
    """
    listed = PartList(path)
    table = source.rows(part, listed.ignored, path.parent)
    if table is not None:
        _list_rows(table, seed, listed, bundled=bundle_of is not None)
        return listed
    with database(path) as rows:
        rows.execute("CREATE TABLE rows (split TEXT, label TEXT, row BLOB)")
        rows.executemany("INSERT INTO rows VALUES (?, ?, ?)", _rows(source, part, seed, listed, bundle_of))
        digest, shape = (hashlib.sha256(listed.ignored.unusable_digest) for _ in range(2))
        ordered = rows.execute("SELECT * FROM rows ORDER BY split, label, row")
        for (split, label), group_rows in itertools.groupby(ordered, key=operator.itemgetter(0, 1)):
            group = (split or None, label)
            about = repr((group, listed.examples[group])).encode()
            digest.update(about)
            shape.update(about)
            while piece := [row for _, _, row in itertools.islice(group_rows, ROWS_HASHED)]:
                digest.update(b"".join(piece))
                shape.update(b"".join([row[SIZED] + row[KEYED] for row in piece]))
    listed.digest, listed.shape = digest.hexdigest(), shape.hexdigest()
    listed.labels.discard("")
    return listed


def _list_rows(table: Iterable[ListedRows], seed: int, listed: PartList, *, bundled: bool) -> None:
    from slipway.components.prepare_data.listing.table_index import found_rows

    def counted() -> Iterator[ListedRows]:
        for rows in table:
            listed.labels |= rows.labels
            yield rows

    listed.rows = part_rows = found_rows(counted(), seed, listed.path, bundled=bundled)
    for counts, values in ((listed.examples, part_rows.examples), (listed.bytes, part_rows.sizes)):
        counts.update(dict(zip(part_rows.groups, values.tolist(), strict=True)))


def _sorted_rows(parts: list[FoundRows], seed: int, path: Path, repeats: Repeats) -> SortedRows:
    from slipway.components.prepare_data.listing.table_index import sorted_rows

    return sorted_rows(parts, seed, path, repeats)


def _rows(
    source: Source, part: Part, seed: int, listed: PartList, bundle_of: BundleOf | None
) -> Iterator[tuple[str, str, bytes]]:
    """Yield the source split ("" for none), the label and the row of each example; count them in `listed`."""
    salt = struct.pack(">Q", seed)
    pack = ROW.pack
    fresh = hashlib.blake2b(digest_size=HASH_BYTES, salt=salt).copy  # faster than a new one for each key
    examples, sizes, several = listed.examples, listed.bytes, source.task == "multilabel"
    for key, label, split, size, stamp, offset, value in source.entries(part, listed.ignored, listed.path.parent):
        if several:
            listed.labels.update(label.split(LABEL_SEPARATOR))
            label = ""
        examples[split, label] += 1
        sizes[split, label] += size
        hashed = fresh()
        hashed.update(key)
        ranked = hashed.digest()
        content = 0
        if bundle_of:
            ranked = bundle_rank(bundle_of(key, value), seed) + ranked[RANK_BYTES:]
        elif value:
            content = int.from_bytes(value)
        yield split or "", label, ranked + pack(size, offset, stamp, content, len(key)) + key


class Summary(BaseModel):
    """What a listing says about the content of a source.

    Attributes:
        amounts: The amount of each (split, class).
        digest: SHA-256 (hex) of all keys, labels, sizes, stamps and offsets.
        shape: The same without stamps and offsets: it stays if files are copied, or packed in another order.
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
        path: The database with the rows of all parts.
        item: What an example is called.
        rows: The rows of a table, which are not in the database.
        groups: Each group's amount.
        repeats: The equal examples, of a source without images.
        spool: The folder with the files that the source spooled for its readers; by default, that of `path`.
        ignored: Files and examples that were ignored.
        digest, shape, labels: See `Summary`.
    """

    def __init__(
        self, source: Source, parts: list[PartList], path: Path, settings: DataSettings, spool: Path | None = None
    ) -> None:
        self.path = path
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
            for group, name in names.items():
                examples[name] += part.examples[group]
                sizes[name] += part.bytes[group]
        ordered = sorted(examples, key=lambda group: (group[0] or "", group[1]))
        self.groups = {group: Amount(examples[group], sizes[group]) for group in ordered}
        self.labels = sorted(set().union(*(part.labels for part in parts)))
        tables = [part.rows for part in parts if part.rows is not None]
        self.rows = _sorted_rows(tables, settings.seed, path, self.repeats) if tables else None
        digests = [(part.digest, part.shape) for part in parts]
        if self.rows is None:
            self._join([part.path for part in parts], names)
            if not source.has_image and settings.group_by is None:
                self._find_equal(settings.seed)
        else:
            digests = [self.rows.digests(self.ignored.unusable_digest)]
            if self.repeats.are_dropped:
                amounts = zip(self.rows.examples, self.rows.sizes, strict=True)
                self.groups = {group: Amount(*amount) for group, amount in zip(self.rows.groups, amounts, strict=True)}
        self.digest, self.shape = (
            hashlib.sha256("".join(part_hashes).encode()).hexdigest() for part_hashes in zip(*digests, strict=True)
        )

    def _join(self, parts: list[Path], names: Mapping[Group, Group]) -> None:
        """Move the rows of all parts to one database, with the number of their final group."""
        numbers = {group: number for number, group in enumerate(self.groups)}
        with database(self.path) as rows:
            rows.execute("CREATE TABLE rows (number INTEGER, row BLOB)")
            rows.execute("CREATE TABLE groups (split TEXT, label TEXT, number INTEGER, PRIMARY KEY (split, label))")
            rows.executemany(
                "INSERT INTO groups VALUES (?, ?, ?)",
                ((split or "", label, numbers[name]) for (split, label), name in names.items()),
            )
            rows.commit()
            for path in parts:
                rows.execute("ATTACH ? AS part", (str(path),))
                rows.execute(
                    "INSERT INTO rows SELECT number, row FROM part.rows CROSS JOIN groups USING (split, label)"
                )
                rows.commit()
                rows.execute("DETACH part")
                path.unlink()

    def _find_equal(self, seed: int) -> None:
        """Count equal examples; give those that are kept together the rank of their content, or drop all but one."""
        import numpy as np

        with database(self.path) as rows:
            rows.execute("CREATE TEMP TABLE splits (number INTEGER PRIMARY KEY, split INTEGER)")
            splits = [(number, SPLIT_ORDER.index(split)) for number, (split, _) in enumerate(self.groups)]
            rows.executemany("INSERT INTO splits VALUES (?, ?)", splits)
            rows.create_function("rank_of", 1, lambda content: example_hash(content_key(content), seed)[:RANK_BYTES])
            rows.execute(EQUAL)
            counts = np.array(rows.execute("SELECT examples, splits FROM equal").fetchall(), np.int64).reshape(-1, 2)
            single = np.ones((self.examples() - int(counts[:, 0].sum()), 2), np.int64)
            self.repeats.add(*np.concatenate([counts, single]).T)
            if self.repeats.are_together or self.repeats.are_dropped:
                rows.execute("CREATE INDEX temp.contents ON equal (content)")
            if self.repeats.are_together:
                rows.execute(TOGETHER)
            if self.repeats.are_dropped:
                rows.execute(DROPPED)
                amounts = [*self.groups.values()]
                for number, row in rows.execute("SELECT number, row FROM dropped"):
                    size, *_ = ROW.unpack_from(row, HASH_BYTES)
                    amounts[number] = Amount(amounts[number].examples - 1, amounts[number].bytes - size)
                self.groups = dict(zip(self.groups, amounts, strict=True))
                rows.execute("DELETE FROM rows WHERE rowid IN (SELECT id FROM dropped)")

    def run_ends(self) -> dict[Group, NDArray[np.int64]]:
        """Return the number of examples of each group up to the end of each run of examples of one rank."""
        import numpy as np

        if self.rows is not None:
            return dict(zip(self.groups, self.rows.run_ends(), strict=True))
        with database(self.path) as rows:
            ranks = f"SELECT number, substr(row, 1, {RANK_BYTES}), count(*) FROM rows GROUP BY 1, 2 ORDER BY 1, 2"
            counts = {
                number: np.fromiter((count for *_, count in runs), np.int64)
                for number, runs in itertools.groupby(rows.execute(ranks), operator.itemgetter(0))
            }
        none = np.zeros(0, np.int64)
        return {group: np.cumsum(counts.get(number, none)) for number, group in enumerate(self.groups)}

    def examples(self) -> int:
        """Return the number of examples."""
        return sum(amount.examples for amount in self.groups.values())

    def summary(self) -> Summary:
        """Return the summary of the listing."""
        amounts = [(*group, amount) for group, amount in self.groups.items()]
        return Summary(amounts=amounts, digest=self.digest, shape=self.shape, labels=self.labels)

    def remove(self, keys: Collection[bytes]) -> dict[Group, int]:
        """Remove the rows with these keys; return the number of the others of each group."""
        if self.rows is not None:
            return dict(zip(self.groups, self.rows.without(keys), strict=True))
        with database(self.path) as rows:
            rows.execute("CREATE TEMP TABLE removed (key BLOB PRIMARY KEY)")
            rows.executemany("INSERT INTO removed VALUES (?)", ((key,) for key in keys))
            rows.execute("DELETE FROM rows WHERE substr(row, ?) IN removed", (KEY_START + 1,))
            counts = dict(rows.execute("SELECT number, count(*) FROM rows GROUP BY number"))
        return {group: counts.get(number, 0) for number, group in enumerate(self.groups)}

    def merge(self, groups: Iterable[Iterable[bytes]]) -> None:
        """Give the examples of each group of keys one rank, and all others that have the rank of one of them.

        The examples of `data.group_by`'s bundles have one rank each, so these are merged.
        """
        first = dict(enumerate(groups))
        with database(self.path) as rows:
            rows.execute("CREATE TEMP TABLE members (key BLOB PRIMARY KEY, number INTEGER)")
            members = ((key, number) for number, keys in first.items() for key in keys)
            rows.executemany("INSERT INTO members VALUES (?, ?)", members)
            ranked = rows.execute(
                f"SELECT members.number, substr(row, 1, {RANK_BYTES}) AS rank FROM rows "
                "CROSS JOIN members ON key = substr(row, ?) ORDER BY rank",
                (KEY_START + 1,),
            )
            rows.execute("CREATE TEMP TABLE merged (rank BLOB PRIMARY KEY, new BLOB)")
            rows.executemany("INSERT INTO merged VALUES (?, ?)", _smallest(ranked.fetchall()).items())
            rows.execute(
                f"UPDATE rows SET row = CAST(new || substr(row, {RANK_BYTES + 1}) AS BLOB) FROM merged "
                f"WHERE rank = substr(row, 1, {RANK_BYTES})"
            )


def _smallest(ranked: Iterable[tuple[int, bytes]]) -> dict[bytes, bytes]:
    """Return the smallest rank that each rank is connected with, directly or by others, through numbers."""
    parent: dict[int | bytes, int | bytes] = {}

    def root(node: int | bytes) -> int | bytes:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    ranks = set()
    for number, rank in ranked:
        ranks.add(rank)
        parent[root(number)] = root(rank)
    smallest: dict[int | bytes, bytes] = {}
    for rank in sorted(ranks):
        smallest.setdefault(root(rank), rank)
    return {rank: smallest[root(rank)] for rank in ranks}


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
    """Deal a listing's rows to lists of the shards' examples, one file per shard.

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
    order = {group: blocks.get(group, []) for group in listing.groups}
    if listing.rows is not None:
        numbers = {label: index for index, label in enumerate(classes)}
        listing.rows.deal(
            [*order.values()],
            [numbers.get(label, 0) for _, label in listing.groups],
            {split: [list_path(folder, split, shard) for shard in range(count)] for split, count in shards.items()},
            bundled=bundled,
        )
        return
    labels = {label: index.to_bytes(LABEL_BYTES) for index, label in enumerate(classes)}
    groups = [
        (
            labels[label] if label else bytes(LABEL_BYTES),
            itertools.chain.from_iterable(itertools.repeat(*block) for block in group_blocks),
        )
        for (_, label), group_blocks in order.items()
    ]
    lists: dict[Path, list[bytes]] = {}
    turns = {}
    for split, count in shards.items():
        of_split = [lists.setdefault(list_path(folder, split, shard), []) for shard in range(count)]
        turns[split] = itertools.cycle(of_split)
    held = 0
    split_of = "JOIN bundles ON bundle = substr(row, 1, 8)" if bundled else "JOIN (SELECT NULL AS split)"
    with database(listing.path) as rows:
        for number, row, split in rows.execute(f"SELECT number, row, split FROM rows {split_of} ORDER BY number, row"):
            label, splits = groups[number]
            split = split or next(splits)
            if copies and row[KEY_START:] in copies:
                continue
            next(turns[split]).append(row[RANK_BYTES:] + label)
            held += 1
            if held == MAX_ROWS_DEALT:
                _append(lists)
                held = 0
    _append(lists)


def _append(lists: Mapping[Path, list[bytes]]) -> None:
    for path, shard_rows in lists.items():
        if shard_rows:
            with path.open("ab") as file:
                pickle.dump(shard_rows, file)
            shard_rows.clear()


def read_list(path: Path) -> Iterator[Example]:
    """Yield a shard's examples in the order in which they are written."""
    parts = load_list(path)
    if are_examples(parts):
        yield from examples_of(parts)
        return
    from slipway.components.prepare_data.listing.table_index import dealt_rows

    for rows in dealt_rows(path):
        yield from rows.examples()


def read_contents(path: Path) -> dict[bytes, bytes]:
    """Return what examples with equal inputs and labels have in common, by key; the key where that is not known."""
    parts = load_list(path)
    if are_examples(parts):
        return contents_of(parts)
    from slipway.components.prepare_data.listing.table_index import dealt_rows

    return {key: content for rows in dealt_rows(path) for key, content in zip(rows.keys, rows.contents, strict=True)}
