"""The tasks that read, validate or write the shards of a data set; resumes from those that a killed run finished."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from slipway.components import page
from slipway.components.prepare_data.elsewhere import RemoteWorkers
from slipway.components.prepare_data.encoding.features import described
from slipway.components.prepare_data.encoding.image import import_decoder
from slipway.components.prepare_data.encoding.records import ShardFile
from slipway.components.prepare_data.examples import SPLITS
from slipway.components.prepare_data.listing import split as splitting
from slipway.components.prepare_data.listing.conflicts import are_compared
from slipway.components.prepare_data.listing.groups import Bundles
from slipway.components.prepare_data.listing.index import Listing
from slipway.components.prepare_data.listing.lists import deal, list_path, read_list
from slipway.components.prepare_data.listing.plan import Plan
from slipway.components.prepare_data.listing.repeats import whole
from slipway.components.prepare_data.publishing.statistics import TEMPLATE
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.source import Source
from slipway.components.prepare_data.validation.sampling import decoded_below
from slipway.components.prepare_data.validation.skipped import SkippedImages
from slipway.components.prepare_data.workers import Progress, Tick, Workers, worker_count
from slipway.components.prepare_data.writing.shards import ShardHasher, ShardResult, ShardTask, ShardWriter
from slipway.components.prepare_data.writing.unwritten import UnwrittenShard
from slipway.core import events, manifest
from slipway.core.errors import UserError

# The digests of the shards' records (`ShardResult.content`) by split.
Records = Mapping[str, list[str]]
MAX_SKIPPED_LISTED = 100


@dataclass(kw_only=True)
class ShardTasks:
    """Runs the tasks of one data set.

    Attributes:
        name: The name of the data set.
        source: The source of the examples.
        settings: The user's settings.
        listing: The source's examples.
        plan: Their division among splits and shards.
        scratch: The folder in which the source was listed, for temporary files.
        work: The work folder.
        workers: What writes the shards elsewhere; None for processes of this machine.
        keeps_shards: Whether the data set is kept. Otherwise, shards of a table are not written.
        lists: The folder with the lists of the shards' examples.
        set_folder: The folder with the shards.
        results: The folder with the results of finished shards and the hashes of their images.
        validated: The folder with the results of validation before writing.
        skipped: The images that are skipped; a resumed run skips the same.
    """

    name: str
    source: Source
    settings: DataSettings
    listing: Listing
    plan: Plan
    scratch: Path
    work: Path
    workers: RemoteWorkers | None = None
    keeps_shards: bool = True

    def __post_init__(self) -> None:
        self.lists = self.scratch / "lists"
        # The lists as the workers read them.
        self._read_lists = self.work / "lists" if self.workers and self.workers.needs_bucket else self.lists
        self.set_folder, self.results, self.validated = (self.work / name for name in ("set", "results", "validated"))
        self.skipped = SkippedImages.stored_in(self.work / "skipped.json")

    def read(self) -> Records:
        """Read the source; return the records that `write` would write, if it skipped no image."""
        plan = self.current_plan()
        tasks = self._tasks(plan)
        self.deal(plan)
        progress = Progress(plan.examples(), f"{self.source.item}s")
        hasher = ShardHasher(self.source, self.listing.spool, self.plan.classes)
        with Workers(hasher, worker_count(self.settings.workers)) as workers:
            contents = dict(workers.run(list(tasks.values()), progress.advance))
        numbers = list(enumerate(tasks))
        return {split: [contents[number] for number, (of, _) in numbers if of == split] for split in SPLITS}

    def validate(self) -> list[ShardResult]:
        """Validate all examples without writing them."""
        self.validated.mkdir(exist_ok=True)
        plan = self.current_plan()
        tasks = [
            dataclasses.replace(task, path=None, result=self.validated / task.result.name, hashes_inputs=False)
            for task in self._tasks(plan).values()
        ]
        return self._run_missing(tasks, plan)

    def write(self) -> dict[str, list[ShardResult]]:
        """Write all shards; return the results of each split, in order."""
        for folder in (self.set_folder, self.results):
            folder.mkdir(exist_ok=True)
        plan = self.current_plan()
        tasks = self._tasks(plan)
        by_split: dict[str, list[ShardResult]] = {split: [] for split in SPLITS}
        for (split, _), result in zip(tasks, self._run_missing(list(tasks.values()), plan), strict=True):
            by_split[split].append(result)
        return by_split

    def shards(self, results: Mapping[str, list[ShardResult]]) -> dict[str, list[ShardFile]]:
        """Return the files of the shards with these results by split, in order."""
        if self._are_written:
            return {
                split: [self.set_folder / result.shard.file for result in shard_results if result.shard]
                for split, shard_results in results.items()
            }
        writer = ShardWriter(self.source, self.listing.spool, self.plan.classes)
        unwritten: dict[str, list[ShardFile]] = {split: [] for split in SPLITS}
        for (split, _), task in self._tasks(self.current_plan()).items():
            unwritten[split].append(UnwrittenShard(writer, task))
        return unwritten

    @property
    def _are_written(self) -> bool:
        return self.keeps_shards or not self.source.is_table

    @property
    def groups_images(self) -> bool:
        """Whether images that look the same are kept in one split."""
        return self.source.has_image and self.settings.near_duplicates == "group"

    @property
    def _is_bundled(self) -> bool:
        return self.settings.group_by is not None or (self.groups_images and bool(self.skipped.groups))

    def current_plan(self) -> Plan:
        """Return the plan without the images skipped so far, and with each bundle in one split."""
        skipped, settings, fold = self.skipped, self.settings, self.plan.fold
        counts = self.listing.remove(skipped.unusable) if skipped.reasons else {}
        if self.groups_images and skipped.groups:
            self.listing.merge(skipped.groups)
        repeats, blocks = self.listing.repeats, self.plan.blocks
        if self._is_bundled:
            blocks = {group: [*parts.items()] for group, parts in Bundles(self.listing, settings, fold).divided.items()}
        elif skipped.reasons:
            divided = splitting.divide(counts, settings.split, fold, self.source.item)
            blocks = splitting.all_blocks(divided, fold)
        elif not repeats.are_together:
            return self.plan
        if repeats.are_together:
            blocks = whole(blocks, self.listing.run_ends(), fold.of if fold else None)
        return self.plan.dividing(blocks, skipped.copies.values())

    def deal(self, plan: Plan) -> None:
        """Write the lists of the shards' examples."""
        shutil.rmtree(self.lists, ignore_errors=True)
        self.lists.mkdir()
        copies = self.skipped.copies
        deal(self.listing, plan.blocks, plan.shards, plan.classes, self.lists, copies, bundled=self._is_bundled)

    def _run_missing(self, tasks: list[ShardTask], plan: Plan) -> list[ShardResult]:
        """Run the tasks that an earlier, killed run did not finish; return the results of all, in order."""
        results = {index: shard for index, task in enumerate(tasks) if (shard := finished(task))}
        missing = [index for index in range(len(tasks)) if index not in results]
        if missing:
            events.phase(f"dividing the {self.source.item}s")
            self.deal(plan)
        progress = Progress(plan.examples(), f"{self.source.item}s")
        progress.advance(sum(shard.tally.examples + shard.tally.skipped_count for shard in results.values()))
        for position, result in self._run([tasks[index] for index in missing], progress.advance):
            results[missing[position]] = result
        return [results[index] for index in range(len(tasks))]

    def _run(self, tasks: list[ShardTask], tick: Tick) -> Iterator[tuple[int, ShardResult]]:
        spool = self._read_lists if self._spool_is_copied else self.listing.spool
        writer = ShardWriter(self.source, spool, self.plan.classes)
        if self.workers is None:
            if tasks and tasks[0].decoded_below and self.source.has_image:
                import_decoder(next(read_list(tasks[0].examples))[0])
            with Workers(writer, worker_count(self.settings.workers)) as processes:
                load = functools.partial(page.load, TEMPLATE) if self.keeps_shards else None
                yield from processes.run(tasks, tick, meanwhile=load)
        elif tasks:
            yield from self.workers.write(writer, tasks, tick, self._share_lists)

    def _share_lists(self) -> None:
        """Copy the lists and what the source spooled to where workers on other machines read them."""
        if self._read_lists != self.lists:
            shutil.rmtree(self._read_lists, ignore_errors=True)
            shutil.copytree(self.lists, self._read_lists)
        if self._spool_is_copied:
            for name in self.source.spooled:
                shutil.copyfile(self.scratch / name, self._read_lists / name)

    @property
    def _spool_is_copied(self) -> bool:
        """Whether the workers do not see what this machine listed, and Beam's workers did not."""
        return self._read_lists != self.lists and self.listing.spool == self.scratch

    def _tasks(self, plan: Plan) -> dict[tuple[str, int], ShardTask]:
        shards = [(split, number) for split in SPLITS for number in range(plan.shards[split])]
        return {(split, number): self._task(split, number, plan.shards[split]) for split, number in shards}

    def _task(self, split: str, number: int, shards: int) -> ShardTask:
        file = f"{self.name}-{split}.tfrecord-{number:05d}-of-{shards:05d}"
        source = self.source
        return ShardTask(
            path=self.set_folder / file if self._are_written else None,
            examples=list_path(self._read_lists, split, number),
            result=self.results / f"{file}.json",
            # Images that were validated already are not decoded again.
            decoded_below=0 if self.skipped.validated else decoded_below(self.settings, self.plan.examples()),
            refuse_damaged=self.settings.damaged == "refuse",
            resize=self.settings.stored_size,
            images=[name.encode() for name, about in source.features.items() if described(about) == "image"],
            max_skipped_named=int(self.settings.skip_corrupt * self.plan.examples()) + MAX_SKIPPED_LISTED,
            gaps=self.settings.has_gaps,
            compared=source.has_image and self.settings.near_duplicates != "off" and not self.skipped.validated,
            by_content=not self.listing.repeats.are_observations,
            hashes_inputs=are_compared(source.inputs, source.task, has_image=source.has_image),
        )


def finished(task: ShardTask) -> ShardResult | None:
    """Return the result of a task finished by an earlier, killed run, or None if it must be run."""
    try:
        result = ShardResult.model_validate_json(task.result.read_bytes())
        if task.path:
            if not result.shard or not result.hashes:
                return None
            manifest.verify_shard(task.path, result.shard)
            manifest.verify_shard(task.hashes, result.hashes)
        if task.compared:
            if not result.thumbnails:
                return None
            manifest.verify_shard(task.thumbnails, result.thumbnails)
        if task.hashes_inputs:
            if not result.input_hashes:
                return None
            manifest.verify_shard(task.input_hashes, result.input_hashes)
    except (FileNotFoundError, ValidationError, UserError):
        return None
    return result
