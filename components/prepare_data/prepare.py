"""Prepare a data set: list the source, divide it, write its shards, publish it; or find that it is there already."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from components.prepare_data import split as splitting
from components.prepare_data.beam import beam_for, is_elsewhere, share_lists, write_by_beam, written_by
from components.prepare_data.bundles import Bundles, bundle_reader
from components.prepare_data.dataset_info import write_dataset_info
from components.prepare_data.duplicates import Copy, bucket_count, find_copies, refuse_copies
from components.prepare_data.index import BundleOf, Dealer, Listing, PartList, Summary, list_part, list_path
from components.prepare_data.kinds import described
from components.prepare_data.left_out import LeftOutImages, refuse_too_many
from components.prepare_data.settings import BeamSettings, DataSettings
from components.prepare_data.shards import ShardResult, ShardTask, ShardWriter
from components.prepare_data.sources import open_source
from components.prepare_data.sources.source import SPLITS, Group, Source, readable
from components.prepare_data.split import Amount
from components.prepare_data.statistics import write_statistics
from components.prepare_data.store import Store, require_room, store_errors_named
from components.prepare_data.tally import Tally, combine
from components.prepare_data.workers import Tick, Workers, available_cores
from trainer import events, manifest
from trainer.durable import replace_file
from trainer.errors import UserError
from trainer.manifest import LeftOut, Manifest, Split

# Part of every fingerprint: to be raised when other bytes would be written for the same source and settings.
FORMAT = 1
IDENTITY_DIGITS = 16
# What a record takes beside the image: the frame, the fields' names and lengths, the key.
RECORD_BYTES_BESIDE_IMAGE = 120
MOST_LEFT_OUT_LISTED = 100
# Settings that most sources have no use for; they are not told of where they are not set.
DESCRIBING = ("features", "image", "label")
SECONDS_BETWEEN_EVENTS = 0.3


@dataclass(frozen=True)
class Prepared:
    """A prepared data set: its folder, the same as a URI for other machines, its manifest, and whether it was there."""

    folder: Path
    uri: str
    manifest: Manifest
    reused: bool


def prepare(settings: DataSettings, replicas: int) -> Prepared:
    """Prepare the data set that `settings` describe, for training by `replicas` processes.

    Raises:
        UserError: The source, an image in it or the place to write to is not as it must be; nothing is left behind.
    """
    source = open_source(settings)
    store = Store(settings.store, settings.name or source.name)
    known = store.recall(listing_name(source, settings))
    if known is not None and (prepared := reusable(store, Target.of(source, known, settings, replicas, store.name))):
        return prepared
    with store_errors_named(store, 0), store.work_folder() as scratch:
        listing = list_source(source, settings, scratch)
        refuse_unlisted(listing, settings)
        summary = listing.summary()
        target = Target.of(source, summary, settings, replicas, store.name)
        store.remove_leftovers(but=target.identity)
        if prepared := reusable(store, target):
            return prepared
        beam = beam_for(settings, source, target.plan.bytes)
        beside = beam is not None and is_elsewhere(beam)
        with store_errors_named(store, target.plan.bytes), store.work_folder(target.identity, beside=beside) as work:
            if prepared := reusable(store, target):  # another run made it while we waited
                return prepared
            if not beside:
                require_room(store, work, target.plan.bytes)
            writer = SetWriter(source, settings, listing, target.plan, scratch, work, beam)
            written = writer.write(store.name, target.fingerprint)
            store.publish(work / SetWriter.SET, target.identity)
            store.remember(listing_name(source, settings), summary)
            return Prepared(store.path(target.identity), store.uri(target.identity), written, reused=False)


def reusable(store: Store, target: Target) -> Prepared | None:
    """The set where it is there already.

    Raises:
        UserError: It is damaged.
    """
    found = store.complete(target.identity)
    if found is None:
        return None
    return Prepared(store.path(target.identity), store.uri(target.identity), found, reused=True)


def listing_name(source: Source, settings: DataSettings) -> str | None:
    """Under which name the summary of the source's listing is remembered, where that can be told without listing it."""
    stamp = source.stamp()
    if stamp is None:
        return None
    return hashlib.sha256(f"{FORMAT} {settings.seed} {settings.group_by!r} {stamp}".encode()).hexdigest()[
        :IDENTITY_DIGITS
    ]


def list_source(source: Source, settings: DataSettings, folder: Path) -> Listing:
    """List all parts of the source into files in `folder`."""
    parts = source.parts()
    tasks = [(part, folder / f"part-{number:06d}") for number, part in enumerate(parts)]
    with Workers(ListWork(source, settings.seed, bundle_reader(settings)), worker_count(settings)) as workers:
        listed = dict(workers.run(tasks))
    return Listing(source, [listed[number] for number in range(len(parts))])


def refuse_unlisted(listing: Listing, settings: DataSettings) -> None:
    """Refuse a source of which more can not even be listed than the settings allow.

    Raises:
        UserError: It names the first of what can not be used.
    """
    unusable = listing.ignored.unusable_count
    if unusable:
        refuse_too_many(unusable, listing.examples() + unusable, listing.ignored.unusable, settings)


def worker_count(settings: DataSettings) -> int:
    """How many processes work: as many as there are cores, unless the settings say otherwise."""
    return settings.workers or available_cores()


@dataclass(frozen=True)
class Plan:
    """How a listing is divided.

    Attributes:
        classes: The classes, in the order of their labels.
        divided: How many of each group's examples go to which split.
        shards: How many shards each split has.
        bytes: What all shards take, about.
    """

    classes: list[str]
    divided: dict[Group, dict[str, int]]
    shards: dict[str, int]
    bytes: int

    @classmethod
    def of(cls, source: Source, groups: Mapping[Group, Amount], settings: DataSettings, replicas: int) -> Plan:
        """The plan for all examples.

        Raises:
            UserError: A class has no image for one of the splits.
        """
        counts = {group: amount.examples for group, amount in groups.items()}
        classes = source.classes({label for _, label in counts})
        divided = splitting.divide(counts, settings.split)
        amounts = {name: _split_amount(name, groups, divided) for name in SPLITS}
        shards = {
            name: splitting.shard_count(amount, replicas, settings.shard_megabytes) for name, amount in amounts.items()
        }
        return cls(classes, divided, shards, sum(amount.bytes for amount in amounts.values()))

    def dividing(self, divided: dict[Group, dict[str, int]], copies: Iterable[str]) -> Plan:
        """The plan with other counts, as images were left out or stay together; the number of shards is kept.

        Args:
            divided: How many of each group's examples go to which split.
            copies: The split of each image that is then dropped from it.
        """
        dropped = Counter(copies)
        sizes = {name: sum(parts.get(name, 0) for parts in divided.values()) - dropped[name] for name in SPLITS}
        shards = {name: min(count, sizes[name]) for name, count in self.shards.items()}
        return Plan(self.classes, divided, shards, self.bytes)

    def examples(self) -> int:
        """How many examples all splits have."""
        return sum(sum(parts.values()) for parts in self.divided.values())


def _split_amount(name: str, groups: Mapping[Group, Amount], divided: Mapping[Group, Mapping[str, int]]) -> Amount:
    """The examples of a split and, about, the bytes of their records."""
    examples, size = 0, 0
    for group, parts in divided.items():
        count = parts.get(name, 0)
        whole = groups[group]
        examples += count
        size += whole.bytes * count // max(whole.examples, 1) + count * RECORD_BYTES_BESIDE_IMAGE
    return Amount(examples, size)


@dataclass(frozen=True)
class Target:
    """The set that is wanted: how it is divided, and the SHA-256 (hex) of all that its bytes depend on."""

    plan: Plan
    fingerprint: str

    @property
    def identity(self) -> str:
        """The name of its folder."""
        return self.fingerprint[:IDENTITY_DIGITS]

    @classmethod
    def of(cls, source: Source, listed: Summary, settings: DataSettings, replicas: int, name: str) -> Target:
        """The set of what is listed.

        Raises:
            UserError: A class has no image for one of the splits.
        """
        plan = Plan.of(source, listed.groups, settings, replicas)
        about: dict[str, Any] = {
            "format": FORMAT,
            "listing": listed.digest,
            "settings": stored_settings(settings, name),
            "shards": plan.shards,
        }
        if plan.classes != sorted({label for _, label in listed.groups}):
            about["classes"] = plan.classes
        if source.features:
            about["features"] = source.features
        return cls(plan, hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest())


def stored_settings(settings: DataSettings, name: str) -> dict[str, Any]:
    """The settings on which the set's bytes depend."""
    found = settings.model_dump(mode="json", exclude={"source", "store", "workers", "tfds", "beam"})
    return {name: value for name, value in found.items() if value is not None or name not in DESCRIBING} | {
        "name": name
    }


@dataclass
class Progress:
    """Tells who watches how many images are done, a few times a second at most."""

    total: int
    done: int = 0
    started: float = field(default_factory=time.monotonic)
    told: float = 0.0

    def advance(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.told >= SECONDS_BETWEEN_EVENTS or self.done == self.total:
            self.told = now
            rate = self.done / max(now - self.started, 1e-3)
            events.progress(self.done, self.total, "images", images_per_second=rate)


class SetWriter:
    """Writes one set into a work folder, going on with what a killed run left in it.

    Args:
        source: Where the examples come from.
        settings: As the user gave them.
        listing: The source's examples.
        plan: How they are divided.
        scratch: Where the source was listed.
        work: The work folder: the set grows in its folder `SET`, the finished shards' results lie in `RESULTS`,
            their images' hashes in `HASHES`.
        beam: How Apache Beam writes the shards, where it does.
    """

    SET = "set"
    RESULTS = "results"
    HASHES = "hashes"

    def __init__(
        self,
        source: Source,
        settings: DataSettings,
        listing: Listing,
        plan: Plan,
        scratch: Path,
        work: Path,
        beam: BeamSettings | None = None,
    ) -> None:
        self._source = source
        self._settings = settings
        self._listing = listing
        self._plan = plan
        self._scratch = scratch
        self._beam = beam
        self._lists = scratch / "lists"
        # Where workers find the lists.
        self._read_lists = work / "lists" if beam and is_elsewhere(beam) else self._lists
        self._set = work / self.SET
        self._results = work / self.RESULTS
        self._hashes = work / self.HASHES
        self._bundles: Bundles | None = None
        self._buckets = bucket_count(plan.examples())
        self._left_out = LeftOutImages(work / "left_out.json")

    def write(self, name: str, fingerprint: str) -> Manifest:
        """Write the whole set; its manifest.

        Images that can not be used are found while shards are written. When some are left out, all is written again
        without them, so that splits and shards are exactly those of a source that never had them. Copies in other
        splits are found when all is written; where they are dropped, all is written again, each split without its.

        Raises:
            UserError: More images can not be used than the settings allow, or they have several sizes, or are in
                several splits.
        """
        unlisted = self._listing.ignored
        total = self._plan.examples() + unlisted.unusable_count
        while True:
            results = self._write_shards(name)
            tally = combine(result.tally for shards in results.values() for result in shards)
            if tally.left_out_count:
                count = tally.left_out_count + len(self._left_out.unusable) + unlisted.unusable_count
                found = [*unlisted.unusable, *self._left_out.listed(), *tally.left_out]
                refuse_too_many(count, total, found, self._settings)
                self._begin_again()
                self._left_out.add(tally.left_out)
            elif copies := self._copies(results):
                self._begin_again()
                self._left_out.add_copies(copies)
            else:
                break
        self._check_classes(results)
        return self._finish(name, fingerprint, results, tally)

    def _check_classes(self, results: Mapping[str, list[ShardResult]]) -> None:
        """Refuse a set in which dropped copies were all that a split had of a class."""
        classes = self._plan.classes
        listed = {label for _, label in self._plan.divided}
        present = {
            split: {classes[label] for result in found for label in result.tally.classes}
            for split, found in results.items()
        }
        mend = "all that {split} had of {label} are copies of what another split has: remove the wrong ones"
        splitting.check_every_class([label for label in classes if label in listed], present, mend)

    def _begin_again(self) -> None:
        for folder in (self._results, self._set, self._hashes):
            shutil.rmtree(folder, ignore_errors=True)

    def _copies(self, results: Mapping[str, list[ShardResult]]) -> list[Copy]:
        """The images that are to be dropped as another split has them too.

        Raises:
            UserError: There are some, and they are to be refused.
        """
        if not self._looks_for_copies:
            return []
        files = {
            split: [self._hashes / result.hashes.file for result in found if result.hashes]
            for split, found in results.items()
        }
        copies = find_copies(files, self._buckets)
        if self._settings.duplicates == "refuse":
            refuse_copies(copies)
        return list(copies)

    @property
    def _looks_for_copies(self) -> bool:
        """Whether images' hashes are wanted: not when copies were dropped, as then there are none."""
        return self._settings.duplicates != "keep" and not self._left_out.copies

    def _write_shards(self, name: str) -> dict[str, list[ShardResult]]:
        """Write all shards that are not there yet; each split's, in order."""
        for folder in (self._set, self._results, self._hashes):
            folder.mkdir(exist_ok=True)
        plan = self._current_plan()
        shards = [(split, number) for split in SPLITS for number in range(plan.shards[split])]
        tasks = [self._task(name, split, number, plan.shards[split]) for split, number in shards]
        results = {index: found for index, task in enumerate(tasks) if (found := finished(task))}
        missing = [index for index in range(len(tasks)) if index not in results]
        if missing:
            self.deal(plan)
        progress = Progress(plan.examples())
        progress.advance(sum(found.tally.examples + found.tally.left_out_count for found in results.values()))
        for position, result in self._run([tasks[index] for index in missing], progress.advance):
            results[missing[position]] = result
        by_split: dict[str, list[ShardResult]] = {split: [] for split in SPLITS}
        for index, (split, _) in enumerate(shards):
            by_split[split].append(results[index])
        return by_split

    def _run(self, tasks: list[ShardTask], tick: Tick) -> Iterator[tuple[int, ShardResult]]:
        """Write these shards, giving each one's index and result as it is there."""
        writer = ShardWriter(self._source, self._scratch)
        if self._beam is None:
            with Workers(writer, worker_count(self._settings)) as workers:
                yield from workers.run(tasks, tick)
        elif tasks:
            if self._read_lists != self._lists:
                share_lists(self._lists, self._read_lists)
            yield from write_by_beam(self._beam, writer, tasks, tick)

    def _current_plan(self) -> Plan:
        """The plan without what is left out by now, and with bundles in one split each."""
        left_out, settings = self._left_out, self._settings
        if settings.group_by is not None:
            self._bundles = Bundles(self._listing, settings, left_out.unusable, self._scratch)
            return self._plan.dividing(self._bundles.divided, left_out.copies.values())
        if left_out.reasons:
            divided = splitting.divide(self._listing.counts_without(left_out.unusable), settings.split)
            return self._plan.dividing(divided, left_out.copies.values())
        return self._plan

    def _task(self, name: str, split: str, number: int, shards: int) -> ShardTask:
        file = f"{name}-{split}.tfrecord-{number:05d}-of-{shards:05d}"
        return ShardTask(
            path=self._set / file,
            examples=list_path(self._read_lists, split, number),
            result=self._results / f"{file}.json",
            # What stays after a first round was looked at whole in it.
            whole=self._settings.check == "decode" and not self._left_out.reasons,
            one_size=self._settings.image_size is None,
            images=[name.encode() for name, about in self._source.features.items() if described(about) == "image"],
            most_left_out=int(self._settings.skip_corrupt * self._plan.examples()) + MOST_LEFT_OUT_LISTED,
            source=self._settings.source,
            hashes=self._hashes / f"{file}.hashes" if self._looks_for_copies else None,
            buckets=self._buckets,
        )

    def deal(self, plan: Plan) -> None:
        """Write the lists of the shards' examples."""
        shutil.rmtree(self._lists, ignore_errors=True)
        self._lists.mkdir()
        unusable, copies = self._left_out.unusable, self._left_out.copies
        split_of = self._bundles.open_table() if self._bundles else None
        Dealer(self._listing, plan.divided, plan.shards, unusable, plan.classes, copies, split_of).deal(self._lists)

    def _finish(self, name: str, fingerprint: str, results: Mapping[str, list[ShardResult]], tally: Tally) -> Manifest:
        """Write what stands beside the shards, the manifest last."""
        for stray in self._set.glob(".*"):  # what a killed worker was writing
            stray.unlink()
        about = self._manifest(name, fingerprint, results, tally)
        write_dataset_info(self._set, about, self._source)
        write_statistics(self._set, about, tally, self._listing.ignored)
        replace_file(self._set / manifest.FILE_NAME, about.model_dump_json(indent=1).encode())
        return about

    def _manifest(
        self, name: str, fingerprint: str, results: Mapping[str, list[ShardResult]], tally: Tally
    ) -> Manifest:
        settings, classes = self._settings, self._plan.classes
        size = settings.image_size or tally.same_size(settings.source)
        unlisted = self._listing.ignored
        left_out = sorted([*unlisted.unusable, *self._left_out.listed()])[:MOST_LEFT_OUT_LISTED]
        own_sizes = {(found.height, found.width) for found in tally.sizes}
        return Manifest(
            name=name,
            fingerprint=fingerprint,
            source=settings.source,
            settings=stored_settings(settings, name),
            classes=classes,
            image_size=size,
            channels=settings.channels or (1 if tally.gray == tally.examples else 3),
            resize=own_sizes != {size} or tally.other_sizes > 0,
            encodings=list(tally.encodings),
            splits={split: _split_record(found, classes) for split, found in results.items()},
            features={name: described(about) for name, about in self._source.features.items()},
            **({"written_by": written_by(self._beam)} if self._beam else {}),
            left_out_count=len(self._left_out.reasons) + unlisted.unusable_count,
            left_out=[LeftOut(key=readable(key), reason=reason) for key, reason in left_out],
        )


@dataclass(frozen=True)
class ListWork:
    """What a worker does with a part of the source: list it into a file."""

    source: Source
    seed: int
    bundle_of: BundleOf | None

    def __call__(self, task: tuple[Any, Path], tick: Tick) -> PartList:  # noqa: ARG002
        part, path = task
        return list_part(self.source, part, self.seed, path, self.bundle_of)


def finished(task: ShardTask) -> ShardResult | None:
    """The result of a shard that an earlier run finished before it was killed, or None where it must be written."""
    try:
        result = ShardResult.model_validate_json(task.result.read_bytes())
        manifest.verify_shard(task.path, result.shard)
        if task.hashes:
            if result.hashes is None:
                return None
            manifest.verify_shard(task.hashes, result.hashes)
    except (FileNotFoundError, ValidationError, UserError):
        return None
    return result


def _split_record(results: list[ShardResult], classes: list[str]) -> Split:
    counts = combine(result.tally for result in results).classes
    return Split(
        examples=sum(counts.values()),
        classes={label: counts.get(index, 0) for index, label in enumerate(classes)},
        shards=[result.shard for result in results],
    )
