"""Assign groups of examples (data.group_by, data.near_duplicates), called bundles here, to splits as a whole.

With data.group_by, a row's rank in the listing is the hash of its bundle. The bundles are assigned, in the order of
their hashes, to the split that needs their classes most. Only the bundles of one piece of the listing and the class
counts of each split are held in memory.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from slipway.components.prepare_data.examples import COLUMN, SPLITS, Group, readable
from slipway.components.prepare_data.listing.entries import Entries
from slipway.components.prepare_data.listing.index import Listing
from slipway.components.prepare_data.listing.parts import BundleOf, pattern_match
from slipway.components.prepare_data.listing.split import Fold, check_every_class, check_fold, split_fractions
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError


def bundle_reader(settings: DataSettings) -> BundleOf | None:
    """Return the function that finds an example's bundle, or None without data.group_by."""
    if settings.group_by is None:
        return None
    return _given if settings.group_by.startswith(COLUMN) else functools.partial(bundle_in, settings.group_by)


def _given(key: bytes, value: bytes) -> bytes:  # noqa: ARG001
    return value


def bundle_in(pattern: str, key: bytes, value: bytes = b"") -> bytes:  # noqa: ARG001
    """Return the bundle in a key: the match of the pattern's capturing group."""
    return pattern_match("data.group_by", pattern, key)


class Bundles:
    """The assignment of a listing's bundles to splits; it is stored beside the listing's pieces.

    Attributes:
        divided: The number of examples of each group in each split.

    Args:
        listing: The examples, listed with their bundles.
        settings: The user's settings.
        fold: The fold that is the test split.

    Raises:
        UserError: A bundle is in two of the source's splits, or a class has too few bundles for the splits.
    """

    def __init__(self, listing: Listing, settings: DataSettings, fold: Fold | None = None) -> None:
        self._settings = settings
        self._fold = fold
        self._groups = list(listing.groups)
        self.divided: dict[Group, dict[str, int]] = {group: {} for group in self._groups}
        chooser = self._chooser(listing)
        for number, (firsts, lengths) in enumerate(listing.runs()):
            splits = self._assigned(chooser, firsts, lengths)
            listing.splits_path(number).write_bytes(np.repeat(splits, lengths).tobytes())
        present = {name: {label for (_, label), counts in self.divided.items() if counts.get(name)} for name in SPLITS}
        labels = sorted({label for _, label in self._groups})
        setting = "data.group_by" if settings.group_by is not None else "data.near_duplicates"
        fix = "{label} has too few groups for the split {split}; change " + setting
        check_every_class(labels, present, fix, listing.item)

    def _chooser(self, listing: Listing) -> Chooser:
        """Return the chooser for the numbers of examples and of bundles of each group."""
        totals = np.zeros(len(self._groups), np.int64)
        for firsts, _ in listing.runs():
            totals += np.bincount(firsts.rows["group"], minlength=len(totals))
        examples: Counter[str] = Counter()
        bundles: Counter[str] = Counter()
        for ((split, label), amount), count in zip(listing.amounts().items(), totals.tolist(), strict=True):
            if split in (None, "train"):
                examples[label] += amount.examples
                bundles[label] += count
        source_splits, fold = {split for split, _ in self._groups}, self._fold
        check_fold(source_splits, fold)
        fractions = split_fractions(source_splits, self._settings.split)
        if fold is not None:  # a bundle's fold, and the split in which it is otherwise
            parts = ("validation", "train")
            fractions = {f"{number} {part}": fractions[part] for number in range(fold.of) for part in parts}
        return Chooser(fractions, examples, bundles)

    def _assigned(self, chooser: Chooser, firsts: Entries, lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the index of the split of each run of entries of one group and bundle."""
        about = [*zip(firsts.rows["group"].tolist(), lengths.tolist(), firsts.key_list(), strict=True)]
        splits = np.empty(len(about), np.uint8)
        order = np.lexsort((firsts.rows["group"], firsts.rows["rank"])).tolist()
        for _, bundle in itertools.groupby(order, firsts.rows["rank"].tolist().__getitem__):
            runs = [*bundle]
            splits[runs] = SPLITS.index(self._assign(chooser, [about[index] for index in runs]))
        return splits

    def _assign(self, chooser: Chooser, portions: Iterable[tuple[int, int, bytes]]) -> str:
        """Return the split of a bundle: of each group, its index, the number of examples, and the key of the first."""
        counts: dict[Group, int] = {}
        keys: dict[str | None, bytes] = {}
        for number, count, first in portions:
            counts[self._groups[number]] = count
            keys.setdefault(self._groups[number][0], first)
        if len(keys) > 1:
            raise self._in_two_splits(keys)
        (source_split,) = keys
        if source_split in (None, "train"):
            split = chooser.choose({label: count for (_, label), count in counts.items()})
            if self._fold is not None:
                chosen, _, split = split.partition(" ")
                split = "test" if int(chosen) == self._fold.number else split
        else:
            split = source_split
        for group, count in counts.items():
            self.divided[group][split] = self.divided[group].get(split, 0) + count
        return split

    def _in_two_splits(self, keys: Mapping[str | None, bytes]) -> UserError:
        examples = " and ".join(f"{readable(key)} ({split})" for split, key in keys.items())
        pattern = self._settings.group_by
        if pattern is None:
            return UserError(
                f"Images that look the same are in {len(keys)} splits of the source: {examples}.",
                setting="data.near_duplicates",
                value="group",
                allowed="report; group, if the source has such images in one split",
                fix="--set data.near_duplicates=report; or move these images to one split, or remove one",
            )
        name = "" if pattern.startswith(COLUMN) else f" {readable(bundle_in(pattern, next(iter(keys.values()))))!r}"
        return UserError(
            f"The group{name} is in {len(keys)} splits of the source: {examples}.",
            setting="data.group_by",
            value=pattern,
            allowed="groups with all examples in one split",
            fix="move the examples of the group to one split, or remove data.group_by",
        )


class Chooser:
    """Chooses a split for one bundle after the other.

    Each bundle goes to the split where it reduces the squared differences between actual and target class counts most.
    The last bundles of a class go to splits that still lack the class.

    Args:
        fractions: The fraction of each split.
        examples: The number of examples of each class.
        bundles: The number of bundles that contain each class.
    """

    def __init__(self, fractions: Mapping[str, float], examples: Mapping[str, int], bundles: Mapping[str, int]) -> None:
        whole = sum(fractions.values())
        self._targets = {
            split: {label: count * fraction / whole for label, count in examples.items()}
            for split, fraction in fractions.items()
        }
        self._have: dict[str, dict[str, int]] = {split: dict.fromkeys(examples, 0) for split in fractions}
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
