"""Scan a source of images once, without writing a data set: what `slipway init --images` says and decides by."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from slipway.components.prepare_data.examples import SPLITS, Example, Unusable, readable, refuse
from slipway.components.prepare_data.listing.lists import list_path, read_list
from slipway.components.prepare_data.listing.plan import Plan
from slipway.components.prepare_data.prepare import list_source
from slipway.components.prepare_data.settings import LARGE_SIDE, DataSettings
from slipway.components.prepare_data.sources import open_source
from slipway.components.prepare_data.sources.source import Reader
from slipway.components.prepare_data.validation.tally import Tally, proposed_size
from slipway.components.prepare_data.writing.shard_tasks import ShardTasks
from slipway.components.prepare_data.writing.validation import Validation, near_duplicates

MAX_COPIES_NAMED = 3


@dataclass(frozen=True)
class Scan:
    """What a source of images has.

    Attributes:
        name: What a data set from it is called.
        images: The number of images, including those that cannot be used.
        bytes: Their size.
        labels: The number of images of each class.
        splits: The number of images in each split that the source defines; {} if it defines none.
        tally: Their formats, sizes and problems.
        ignored: The number of other files.
        ignored_named: The first of these.
        copies: The number of images whose bytes an earlier one has, too.
        copies_named: The first of these, with the earlier one.
        conflicts: Those of the copies whose class is another one, with the earlier one.
        alike: The keys of images that look the same, in groups.
        fewest_groups: The number of groups of the class that has the fewest, where other images are one each.
    """

    name: str
    images: int
    bytes: int
    labels: dict[str, int]
    splits: dict[str, int]
    tally: Tally
    ignored: int
    ignored_named: list[str]
    copies: int
    copies_named: list[tuple[str, str]]
    conflicts: list[tuple[str, str]]
    alike: list[list[str]]
    fewest_groups: int

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The data.image_size that fits; None if all images have the same moderate size."""
        same = self.tally.smallest == self.tally.largest and len(self.tally.sizes) == 1
        if same and self.tally.largest and max(self.tally.largest) <= LARGE_SIDE // 2:
            return None
        return proposed_size(self.tally)

    @property
    def skip_corrupt(self) -> float:
        """The data.skip_corrupt that skips the unusable images, and no more."""
        return math.ceil(self.tally.skipped_count / self.images * 10_000) / 10_000


def scan(settings: DataSettings) -> Scan:
    """Scan a source of images with classes.

    Raises:
        UserError: The source cannot be opened, or has too few images to be split.
    """
    source = open_source(settings, "classification")
    with tempfile.TemporaryDirectory(prefix="slipway-scan-") as folder:
        scratch = Path(folder)
        listing = list_source(source, settings, scratch)
        plan = Plan.of(source, listing.groups, settings, replicas=1)
        tasks = ShardTasks(
            name=source.name, source=source, settings=settings, listing=listing, plan=plan, scratch=scratch,
            work=scratch,
        )  # fmt: skip
        validation = Validation(tasks)
        tally = validation.run()
        if not tally.examples:
            refuse(validation.unusable(tally))
        lists = [list_path(tasks.lists, split, number) for split in SPLITS for number in range(plan.shards[split])]
        unusable = {key for key, _ in tally.skipped}
        examples = [example for path in lists for example in read_list(path) if example[0] not in unusable]
        copies, conflicts = find_copies(source.reader(scratch), examples)
        alike = near_duplicates(tasks.validated)
        group_of = {key: number for number, group in enumerate(alike) for key in group}
        groups = Counter(label for label, _ in {(label, group_of.get(key, key)) for key, label, _, _ in examples})
        labels: Counter[str] = Counter()
        splits: Counter[str] = Counter()
        for (split, label), amount in listing.groups.items():
            labels[label] += amount.examples
            splits.update({split: amount.examples} if split else {})
        return Scan(
            name=source.name,
            images=plan.examples(),
            bytes=sum(amount.bytes for amount in listing.groups.values()),
            labels=dict(labels),
            splits=dict(splits),
            tally=tally,
            ignored=listing.ignored.count,
            ignored_named=listing.ignored.names,
            copies=len(copies),
            copies_named=copies[:MAX_COPIES_NAMED],
            conflicts=conflicts,
            alike=_without(alike, {copy for copy, _ in copies}),
            fewest_groups=min(groups.values(), default=0),
        )


def _without(groups: list[list[bytes]], copies: set[str]) -> list[list[str]]:
    """Return groups of images that look the same without those whose bytes an earlier image has, too."""
    remaining = ([name for key in group if (name := readable(key)) not in copies] for group in groups)
    return [group for group in remaining if len(group) > 1]


def find_copies(reader: Reader, examples: list[Example]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the keys of images whose bytes another image with a smaller key has, too, and that key.

    Those whose class differs are returned once more. Only images that have the size of another one are read.
    """
    sizes = Counter(size for _, _, size, _ in examples)
    first: dict[bytes, tuple[bytes, int]] = {}
    copies, conflicts = [], []
    for key, label, size, offset in sorted(examples):
        if not size or sizes[size] == 1:
            continue
        try:
            digest = hashlib.sha256(reader.read(key, offset, size)).digest()
        except Unusable:
            continue
        earlier, its_label = first.setdefault(digest, (key, label))
        if earlier != key:
            copies.append((readable(key), readable(earlier)))
            if its_label != label:
                conflicts.append(copies[-1])
    return copies, conflicts
