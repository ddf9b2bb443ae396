"""Assign groups of examples (data.group_by), called bundles here, to splits as a whole.

With data.group_by, a row's rank in the listing is the hash of its bundle, so the examples of a bundle are adjacent
within each class. The counts of each bundle by class are sorted on disk and read twice: once to count, once to assign
the bundles, in the order of their hashes, to the split that needs their classes most. Only one bundle and the class
counts of each split are held in memory.
"""

from __future__ import annotations

import itertools
import mmap
import re
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from slipway.components.prepare_data.listing import index
from slipway.components.prepare_data.listing.index import (
    RANK_BYTES,
    BundleOf,
    Listing,
    Run,
    append_run,
    merge_runs,
    row_key,
    run_rows,
)
from slipway.components.prepare_data.listing.split import check_every_class, split_shares
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import COLUMN
from slipway.components.prepare_data.sources.source import SPLITS, Group, readable
from slipway.core.errors import UserError

# The examples of a bundle in one group (source split, class): bundle hash, group index and count; a key follows.
PORTION = struct.Struct(">8sIQ")
TABLE_ROW = RANK_BYTES + 1


def bundle_reader(settings: DataSettings) -> BundleOf | None:
    """Return the function that finds an example's bundle, or None without data.group_by."""
    if settings.group_by is None:
        return None
    return _given if settings.group_by.startswith(COLUMN) else PatternReader(settings.group_by)


def _given(key: bytes, value: bytes) -> bytes:  # noqa: ARG001
    return value


class PatternReader:
    """Extracts the bundle from a key: the match of the pattern's capturing group."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._pattern = re.compile(pattern)

    def __call__(self, key: bytes, value: bytes) -> bytes:  # noqa: ARG002
        """Return the bundle.

        Raises:
            UserError: The pattern does not match the key.
        """
        text = key.decode("utf-8", "surrogateescape")
        found = self._pattern.search(text)
        if found is None or found[1] is None:
            raise UserError(
                f"data.group_by does not match {readable(key)}.",
                setting="data.group_by",
                value=self._text,
                allowed="a regular expression that matches the key of every example",
                fix="change the pattern, or rename the file",
            )
        return found[1].encode("utf-8", "surrogateescape")


class Bundles:
    """The assignment of a listing's bundles to splits.

    Attributes:
        divided: The number of examples of each group in each split.

    Args:
        listing: The examples, listed with their bundles.
        settings: The user's settings.
        left_out: Keys to exclude.
        folder: The folder for temporary files.

    Raises:
        UserError: A bundle is in two of the source's splits, or a class has too few bundles for the splits.
    """

    def __init__(self, listing: Listing, settings: DataSettings, left_out: frozenset[bytes], folder: Path) -> None:
        self._listing = listing
        self._settings = settings
        self._left_out = left_out
        self._groups = list(listing.groups)
        self._table = folder / "bundles.table"
        self.divided: dict[Group, dict[str, int]] = {group: {} for group in self._groups}
        with (folder / "bundles.sorted").open("w+b") as file:
            run, examples, bundles = self._sort(file)
            self._assign(run_rows(file, run), examples, bundles)
        present = {name: {label for (_, label), counts in self.divided.items() if counts.get(name)} for name in SPLITS}
        labels = sorted({label for _, label in self._groups})
        check_every_class(labels, present, "{label} has too few groups for the split {split}; change data.group_by")

    def open_table(self) -> Callable[[bytes], str]:
        """Return a function that finds the split of a bundle by its hash."""
        if not self._table.stat().st_size:
            raise ValueError("there are no bundles")
        with self._table.open("rb") as file:
            table = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        places = range(len(table) // TABLE_ROW)

        def split_of(bundle: bytes) -> str:
            place = bisect_left(places, bundle, key=lambda at: table[at * TABLE_ROW : at * TABLE_ROW + RANK_BYTES])
            return SPLITS[table[place * TABLE_ROW + RANK_BYTES]]

        return split_of

    def _sort(self, file: BinaryIO) -> tuple[Run, Counter[str], Counter[str]]:
        """Return the sorted portions of all bundles, and the numbers of divisible examples and bundles by class."""
        runs: list[Run] = []
        portions = self._portions()
        while piece := list(itertools.islice(portions, index.MOST_ROWS_LISTED)):
            runs.append(append_run(file, sorted(piece)))
        examples: Counter[str] = Counter()
        bundles: Counter[str] = Counter()

        def counted() -> Iterator[bytes]:
            for portion in merge_runs(file, runs):
                _, number, count = PORTION.unpack_from(portion)
                split, label = self._groups[number]
                if split in (None, "train"):
                    examples[label] += count
                    bundles[label] += 1
                yield portion

        return append_run(file, counted()), examples, bundles

    def _portions(self) -> Iterator[bytes]:
        """Yield the portion of each bundle in each group, group by group."""
        for number, group in enumerate(self._groups):
            rows = itertools.chain.from_iterable(self._listing.rows(group))
            staying = (row for row in rows if row_key(row) not in self._left_out)
            for bundle, found in itertools.groupby(staying, key=_bundle):
                key, count = b"", 0
                for row in found:
                    key, count = key or row_key(row), count + 1
                yield PORTION.pack(bundle, number, count) + key

    def _assign(self, portions: Iterator[bytes], examples: Counter[str], bundles: Counter[str]) -> None:
        """Assign each bundle to a split and write the table."""
        chooser = Chooser(split_shares({split for split, _ in self._groups}, self._settings.split), examples, bundles)
        with self._table.open("wb") as table:
            for bundle, found in itertools.groupby(portions, key=_bundle):
                counts: dict[Group, int] = {}
                keys: dict[str | None, bytes] = {}
                for portion in found:
                    _, number, count = PORTION.unpack_from(portion)
                    counts[self._groups[number]] = count
                    keys.setdefault(self._groups[number][0], portion[PORTION.size :])
                if len(keys) > 1:
                    raise self._in_two_splits(keys)
                (own,) = keys
                divisible = own in (None, "train")
                split = chooser.choose({label: count for (_, label), count in counts.items()}) if divisible else own
                assert split is not None
                table.write(bundle + SPLITS.index(split).to_bytes())
                for group, count in counts.items():
                    self.divided[group][split] = self.divided[group].get(split, 0) + count

    def _in_two_splits(self, keys: Mapping[str | None, bytes]) -> UserError:
        reader = bundle_reader(self._settings)
        examples = " and ".join(f"{readable(key)} ({split})" for split, key in keys.items())
        name = f" {readable(reader(next(iter(keys.values())), b''))!r}" if isinstance(reader, PatternReader) else ""
        return UserError(
            f"The group{name} is in {len(keys)} splits of the source: {examples}.",
            setting="data.group_by",
            value=self._settings.group_by,
            allowed="groups with all examples in one split",
            fix="move the examples of the group to one split, or remove data.group_by",
        )


class Chooser:
    """Chooses a split for one bundle after the other.

    Each bundle goes to the split where it reduces the squared differences between actual and target class counts most.
    The last bundles of a class go to splits that still lack the class.

    Args:
        shares: The fraction of each split.
        examples: The number of examples of each class.
        bundles: The number of bundles that contain each class.
    """

    def __init__(self, shares: Mapping[str, float], examples: Mapping[str, int], bundles: Mapping[str, int]) -> None:
        whole = sum(shares.values())
        self._targets = {
            split: {label: count * share / whole for label, count in examples.items()}
            for split, share in shares.items()
        }
        self._have: dict[str, dict[str, int]] = {split: dict.fromkeys(examples, 0) for split in shares}
        self._left = dict(bundles)

    def choose(self, counts: Mapping[str, int]) -> str:
        """Choose the split of the next bundle; `counts` are its numbers of examples by class."""
        candidates = list(self._have)
        for label in counts:
            missing = [split for split in candidates if not self._have[split][label]]
            lacking = sum(not have[label] for have in self._have.values())
            if missing and self._left[label] <= lacking:
                candidates = missing
            self._left[label] -= 1
        split = min(candidates, key=lambda name: self._cost(name, counts))
        for label, count in counts.items():
            self._have[split][label] += count
        return split

    def _cost(self, split: str, counts: Mapping[str, int]) -> float:
        """Return the change of the squared differences, relative to the split's targets."""
        have, targets = self._have[split], self._targets[split]
        return sum(
            count * (2 * (have[label] - targets[label]) + count) / targets[label] for label, count in counts.items()
        )


def _bundle(row: bytes) -> bytes:
    return row[:RANK_BYTES]
