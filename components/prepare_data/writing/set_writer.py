"""Write one data set: its shards, metadata files and manifest; resume after a killed run."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from slipway.components import page
from slipway.components.prepare_data.elsewhere import RemoteWorkers
from slipway.components.prepare_data.encoding.features import Kind, described
from slipway.components.prepare_data.encoding.image import import_decoder
from slipway.components.prepare_data.encoding.inputs import (
    InputStatistics,
    Statistics,
    as_input,
    combine_statistics,
)
from slipway.components.prepare_data.encoding.messages import all_values
from slipway.components.prepare_data.encoding.records import Label, read_columns
from slipway.components.prepare_data.examples import SPLITS, Problem, readable, refuse, source_error
from slipway.components.prepare_data.listing import split as splitting
from slipway.components.prepare_data.listing.conflicts import conflict_notes
from slipway.components.prepare_data.listing.groups import Bundles
from slipway.components.prepare_data.listing.index import Listing, deal, read_list
from slipway.components.prepare_data.listing.lists import list_path
from slipway.components.prepare_data.listing.plan import Plan, stored_settings
from slipway.components.prepare_data.listing.repeats import whole
from slipway.components.prepare_data.publishing.dataset_info import write_dataset_info
from slipway.components.prepare_data.publishing.statistics import TEMPLATE, label_text, write_statistics
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.source import Source, common_reason
from slipway.components.prepare_data.validation.duplicates import Copy, HashedShard, find_copies, in_several_splits
from slipway.components.prepare_data.validation.leaks import leak_notes
from slipway.components.prepare_data.validation.near_duplicates import (
    across_splits,
    find_groups,
    near_duplicate_notes,
)
from slipway.components.prepare_data.validation.network_input import blank_notes
from slipway.components.prepare_data.validation.outliers import outlier_notes
from slipway.components.prepare_data.validation.sampling import check_for, decoded_below, sentence
from slipway.components.prepare_data.validation.skipped import COUNTS, SkippedImages, too_many
from slipway.components.prepare_data.validation.tally import Tally, combine, missing_labels, notes, several_sizes
from slipway.components.prepare_data.workers import Progress, Tick, Workers, worker_count
from slipway.components.prepare_data.writing.shards import LABEL, ShardHasher, ShardResult, ShardTask, ShardWriter
from slipway.core import events, manifest
from slipway.core.atomic import replace_file
from slipway.core.errors import UserError
from slipway.core.manifest import Checked, ExampleIssue, Input, Manifest, Split
from slipway.core.seen import split_file
from slipway.core.values import stored_name

# The digests of the shards' records (`ShardResult.content`) by split.
Records = Mapping[str, list[str]]
MAX_SKIPPED_LISTED = 100
MAX_REASONS_LISTED = 3


class SetWriter:
    """Writes one data set into a work folder; resumes from finished shards of a killed run.

    Args:
        source: The source of the examples.
        settings: The user's settings.
        listing: The source's examples.
        plan: Their division among splits and shards.
        scratch: The folder in which the source was listed, for temporary files.
        work: The work folder, with the data set in its folder `SET`, the results of finished shards and the hashes of
            their images in `RESULTS`, and the results of validation before writing in `VALIDATED`.
        workers: What writes the shards elsewhere; None for processes of this machine.

    Attributes:
        lists: The folder with the lists of the shards' examples.
    """

    SET = "set"
    RESULTS = "results"
    VALIDATED = "validated"

    def __init__(
        self,
        source: Source,
        settings: DataSettings,
        listing: Listing,
        plan: Plan,
        scratch: Path,
        work: Path,
        workers: RemoteWorkers | None = None,
    ) -> None:
        self._source = source
        self._settings = settings
        self._listing = listing
        self._plan = plan
        self._scratch = scratch
        self._workers = workers
        self.lists = scratch / "lists"
        # The lists as the workers read them.
        self._read_lists = work / "lists" if workers and workers.needs_bucket else self.lists
        self._set = work / self.SET
        self._results = work / self.RESULTS
        self._validated = work / self.VALIDATED
        self._skipped = SkippedImages.stored_in(work / "skipped.json")

    def write(self, name: str, fingerprint: Callable[[Records], str]) -> Manifest:
        """Write the data set; return its manifest. `fingerprint` computes its fingerprint from its records.

        If unusable images may be skipped, all images are validated first, so that splits and shards are the same as for
        a source without the unusable ones. Copies in other splits are found after all shards are written; if they are
        dropped, all shards are written again without them.

        Raises:
            UserError: There are too many unusable images, images of several sizes, or images in several splits: all
                of them are in one error.
        """
        if self._skipped.validated:  # by an earlier, killed run
            self._tell_checked()
        elif self._settings.skip_corrupt or self.groups_images:
            self._skip_unusable(name)
        results = self._write_shards(name)
        copies = self._copies(results)
        if not self._skipped.validated:
            self._skipped.groups = self.near_duplicates(self._results)
        refuse(self._problems(combine(_tallies(results)), copies))
        if copies:
            for folder in (self._results, self._set):
                shutil.rmtree(folder, ignore_errors=True)
            self._skipped.add_copies(copies)
            results = self._write_shards(name)
        self._check_classes(results)
        records = {split: [result.content for result in shard_results] for split, shard_results in results.items()}
        return self._finish(name, fingerprint(records), results, combine(_tallies(results)))

    def read(self, name: str) -> Records:
        """Read the source; return the records that `write` would write, if it skipped no image."""
        plan = self._current_plan()
        tasks = self._tasks(name, plan)
        self.deal(plan)
        progress = Progress(plan.examples(), f"{self._source.item}s")
        hasher = ShardHasher(self._source, self._listing.spool, self._plan.classes)
        with Workers(hasher, worker_count(self._settings.workers)) as workers:
            contents = dict(workers.run(list(tasks.values()), progress.advance))
        numbers = list(enumerate(tasks))
        return {split: [contents[number] for number, (of, _) in numbers if of == split] for split in SPLITS}

    def validate(self, name: str) -> Tally:
        """Validate all images without writing them; return their tally."""
        self._validated.mkdir(exist_ok=True)
        plan = self._current_plan()
        tasks = [
            dataclasses.replace(task, path=None, result=self._validated / task.result.name)
            for task in self._tasks(name, plan).values()
        ]
        return combine(result.tally for result in self._run_tasks(tasks, plan))

    def _skip_unusable(self, name: str) -> None:
        """Validate all images; skip the unusable ones.

        Raises:
            UserError: There are more of them than data.skip_corrupt allows.
        """
        tally = self.validate(name)
        self._skipped.count(tally)
        self._tell_checked()
        if self.unusable(tally):
            refuse(self._problems(tally, []))
        self._skipped.groups = self.near_duplicates(self._validated)
        self._skipped.add(tally.skipped)

    def near_duplicates(self, folder: Path | None = None) -> list[list[bytes]]:
        """Return the keys of images that look the same, in groups, by the thumbnails in a folder of results."""
        files = sorted((folder or self._validated).glob("*.thumbnails"))
        if not files:
            return []
        events.phase("looking for near-duplicates")
        return find_groups(files)

    @property
    def groups_images(self) -> bool:
        """Whether images that look the same are kept in one split."""
        return self._source.has_image and self._settings.near_duplicates == "group"

    @property
    def _bundled(self) -> bool:
        return self._settings.group_by is not None or (self.groups_images and bool(self._skipped.groups))

    def _across_splits(self) -> list[Copy]:
        """Return the images that look the same as one in another split."""
        groups = self._skipped.groups
        if not groups:
            return []
        plan = self._current_plan()
        if not self.lists.exists():  # all shards were written by an earlier, killed run
            self.deal(plan)
        grouped = {key for group in groups for key in group}
        lists = [
            (split, list_path(self.lists, split, number)) for split in SPLITS for number in range(plan.shards[split])
        ]
        split_of = {example[0]: split for split, path in lists for example in read_list(path) if example[0] in grouped}
        return across_splits(groups, split_of)

    def _problems(self, tally: Tally, copies: list[Copy]) -> list[Problem]:
        return [
            *(several_sizes(tally, self._settings.source) if self._settings.image_size is None else ()),
            *self.unusable(tally),
            *(in_several_splits(copies) if self._settings.duplicates == "refuse" else ()),
        ]

    def unusable(self, tally: Tally) -> list[Problem]:
        """Return the problem that there are more unusable examples than data.skip_corrupt allows, if there are."""
        unlisted = self._listing.ignored
        count, total = (number + unlisted.unusable_count for number in (tally.skipped_count, self._plan.examples()))
        examples = [*unlisted.unusable, *tally.skipped]
        return too_many(count, total, examples, self._settings, self._source.item, damaged=tally.damaged)

    def _tell_checked(self) -> None:
        if self._source.has_image and (checked := self._checked()).check == "sample":
            events.message(sentence(checked))

    def _check_classes(self, results: Mapping[str, list[ShardResult]]) -> None:
        """Check that every split still has every class after copies were dropped."""
        classes = self._plan.classes if self._source.task == "classification" else [""]
        listed = {label for _, label in self._plan.blocks}
        present = {
            split: {classes[label] for result in shard_results for label in result.tally.classes}
            for split, shard_results in results.items()
        }
        item = self._source.item
        fix = f"remove the wrong copies: all {item}s of {{label}} in the split {{split}} are also in another split"
        splitting.check_every_class([label for label in classes if label in listed], present, fix, item)

    def _checked(self) -> Checked:
        """Return how the images were validated; valid after all shards were written once."""
        images, skipped = self._plan.examples(), self._skipped
        check = check_for(self._settings, images)
        counts = {name: getattr(skipped, name) for name in COUNTS}
        return Checked(check=check, images=images, **counts)

    def _copies(self, results: Mapping[str, list[ShardResult]]) -> list[Copy]:
        if not self._source.has_image or self._settings.duplicates == "keep" or self._skipped.copies:
            return []  # after copies were dropped, none remain
        events.phase("comparing the images")
        shards = [
            HashedShard(split, self._set / result.shard.file, self._results / result.hashes.file)
            for split, shard_results in results.items()
            for result in shard_results
            if result.shard and result.hashes
        ]
        copies, self._skipped.conflicts = find_copies(shards, self._scratch / "hashes", self._text_of)
        return copies

    def _write_shards(self, name: str) -> dict[str, list[ShardResult]]:
        """Write all shards that are not finished yet; return the results of each split, in order.

        Raises:
            UserError: An image is unusable, although all images were validated before.
        """
        for folder in (self._set, self._results):
            folder.mkdir(exist_ok=True)
        plan = self._current_plan()
        tasks = self._tasks(name, plan)
        by_split: dict[str, list[ShardResult]] = {split: [] for split in SPLITS}
        for (split, _), result in zip(tasks, self._run_tasks(list(tasks.values()), plan), strict=True):
            by_split[split].append(result)
        tally = combine(_tallies(by_split))
        if not self._skipped.validated:
            self._skipped.count(tally)
            self._tell_checked()
        elif tally.skipped:
            key, reason = tally.skipped[0]
            raise source_error(
                self._settings.source,
                f"The source changed while the data set was prepared: {readable(key)} was valid before ({reason}).",
                fix="run again when no other process writes to the source",
            )
        return by_split

    def _run_tasks(self, tasks: list[ShardTask], plan: Plan) -> list[ShardResult]:
        """Run the tasks that an earlier, killed run did not finish; return the results of all, in order."""
        results = {index: shard for index, task in enumerate(tasks) if (shard := finished(task))}
        missing = [index for index in range(len(tasks)) if index not in results]
        if missing:
            events.phase(f"dividing the {self._source.item}s")
            self.deal(plan)
        progress = Progress(plan.examples(), f"{self._source.item}s")
        progress.advance(sum(shard.tally.examples + shard.tally.skipped_count for shard in results.values()))
        for position, result in self._run([tasks[index] for index in missing], progress.advance):
            results[missing[position]] = result
        return [results[index] for index in range(len(tasks))]

    def _run(self, tasks: list[ShardTask], tick: Tick) -> Iterator[tuple[int, ShardResult]]:
        spool = self._read_lists if self._spool_is_copied else self._listing.spool
        writer = ShardWriter(self._source, spool, self._plan.classes)
        if self._workers is None:
            if tasks and tasks[0].decoded_below and self._source.has_image:
                import_decoder(next(read_list(tasks[0].examples))[0])
            with Workers(writer, worker_count(self._settings.workers)) as processes:
                yield from processes.run(tasks, tick, meanwhile=lambda: page.load(TEMPLATE))
        elif tasks:
            yield from self._workers.write(writer, tasks, tick, self._share_lists)

    def _share_lists(self) -> None:
        """Copy the lists and what the source spooled to where workers on other machines read them."""
        if self._read_lists != self.lists:
            shutil.rmtree(self._read_lists, ignore_errors=True)
            shutil.copytree(self.lists, self._read_lists)
        if self._spool_is_copied:
            for name in self._source.spooled:
                shutil.copyfile(self._scratch / name, self._read_lists / name)

    @property
    def _spool_is_copied(self) -> bool:
        """Whether the workers do not see what this machine listed, and Beam's workers did not."""
        return self._read_lists != self.lists and self._listing.spool == self._scratch

    def _current_plan(self) -> Plan:
        """Return the plan without the images skipped so far, and with each bundle in one split."""
        skipped, settings, fold = self._skipped, self._settings, self._plan.fold
        counts = self._listing.remove(skipped.unusable) if skipped.reasons else {}
        if self.groups_images and skipped.groups:
            self._listing.merge(skipped.groups)
        repeats, blocks = self._listing.repeats, self._plan.blocks
        if self._bundled:
            blocks = {
                group: [*parts.items()] for group, parts in Bundles(self._listing, settings, fold).divided.items()
            }
        elif skipped.reasons:
            divided = splitting.divide(counts, settings.split, fold, self._source.item)
            blocks = splitting.all_blocks(divided, fold)
        elif not repeats.are_together:
            return self._plan
        if repeats.are_together:
            blocks = whole(blocks, self._listing.run_ends(), fold.of if fold else None)
        return self._plan.dividing(blocks, skipped.copies.values())

    def _tasks(self, name: str, plan: Plan) -> dict[tuple[str, int], ShardTask]:
        shards = [(split, number) for split in SPLITS for number in range(plan.shards[split])]
        return {(split, number): self._task(name, split, number, plan.shards[split]) for split, number in shards}

    def _task(self, name: str, split: str, number: int, shards: int) -> ShardTask:
        file = f"{name}-{split}.tfrecord-{number:05d}-of-{shards:05d}"
        return ShardTask(
            path=self._set / file,
            examples=list_path(self._read_lists, split, number),
            result=self._results / f"{file}.json",
            # Images that were validated already are not decoded again.
            decoded_below=0 if self._skipped.validated else decoded_below(self._settings, self._plan.examples()),
            refuse_damaged=self._settings.damaged == "refuse",
            resize=self._settings.stored_size,
            images=[name.encode() for name, about in self._source.features.items() if described(about) == "image"],
            max_skipped_named=int(self._settings.skip_corrupt * self._plan.examples()) + MAX_SKIPPED_LISTED,
            gaps=self._settings.has_gaps,
            compared=self._source.has_image and self._settings.near_duplicates != "off" and not self._skipped.validated,
            by_content=not self._listing.repeats.are_observations,
        )

    def deal(self, plan: Plan) -> None:
        """Write the lists of the shards' examples."""
        shutil.rmtree(self.lists, ignore_errors=True)
        self.lists.mkdir()
        copies = self._skipped.copies
        deal(self._listing, plan.blocks, plan.shards, plan.classes, self.lists, copies, bundled=self._bundled)

    def _finish(self, name: str, fingerprint: str, results: Mapping[str, list[ShardResult]], tally: Tally) -> Manifest:
        """Write the metadata files, the manifest last."""
        events.phase("writing the statistics")
        for stray in self._set.glob(".*"):  # unfinished files of killed workers
            stray.unlink()
        statistics = {
            split: combine_statistics(result.inputs for result in split_results)
            for split, split_results in results.items()
        }
        about = self._manifest(name, fingerprint, results, tally, statistics)
        near = self._across_splits()
        notes_on_splits = [*near_duplicate_notes(near), *leak_notes(self._set, about), *blank_notes(self._set, about)]
        notes_on_splits += conflict_notes(self._set, about, self._source.item, self._text_of)
        if about.target:
            notes_on_splits += outlier_notes(self._set, about, statistics["train"][LABEL])
        about = about.model_copy(update={"notes": [*about.notes, *notes_on_splits]})
        for split, shard_results in results.items():
            with (self._set / split_file(split)).open("wb") as file:  # see `slipway.core.seen`
                for result in shard_results:
                    if result.hashes:
                        hashes = (self._results / result.hashes.file).read_bytes()
                        file.write(hashes[: len(hashes) // 2])  # without the offsets
        write_dataset_info(self._set, about, self._source)
        write_statistics(self._set, about, tally, self._listing.ignored, statistics, near)
        replace_file(self._set / manifest.FILE_NAME, about.model_dump_json(indent=1).encode())
        return about

    def _manifest(
        self,
        name: str,
        fingerprint: str,
        results: Mapping[str, list[ShardResult]],
        tally: Tally,
        statistics: Mapping[str, Statistics],
    ) -> Manifest:
        settings, classes, source = self._settings, self._plan.classes, self._source
        own_sizes = [(image_size.height, image_size.width) for image_size in tally.sizes]
        size = (settings.image_size or own_sizes[0]) if source.has_image else (0, 0)
        train, everything = statistics["train"], combine_statistics(statistics.values())
        formats = {stored_name(name): written for name, written in settings.number_format.items()}
        unlisted = self._listing.ignored
        skipped = sorted([*unlisted.unusable, *self._skipped.listed()])[:MAX_SKIPPED_LISTED]
        reasons = unlisted.reasons + Counter(map(common_reason, self._skipped.reasons.values()))
        splits = {
            split: _split_record(of_split, classes, statistics[split].get(LABEL)) for split, of_split in results.items()
        }
        return Manifest(
            name=name,
            fingerprint=fingerprint,
            source=settings.source,
            settings=stored_settings(settings, name, self._plan),
            task=source.task,
            classes=classes,
            target=self._target(train[LABEL], everything[LABEL], results["train"])
            if source.task == "regression"
            else None,
            inputs={
                name: as_input(name, kind, train[name], everything[name], settings).model_copy(
                    update={"written": formats.get(name), "missing": tuple(settings.missing_values)}
                )
                for name, kind in source.inputs.items()
            },
            image_size=size,
            channels=settings.channels or (1 if tally.gray == tally.examples or not source.has_image else 3),
            resize=source.has_image and (own_sizes != [size] or tally.other_sizes > 0),
            resize_mode=settings.reading_mode,
            encodings=list(tally.encodings),
            splits=splits,
            features={
                name: str(source.inputs[name])
                if name in source.inputs and described(about) == "text"
                else described(about)
                for name, about in source.features.items()
            },
            **({"written_by": self._workers.title} if self._workers else {}),
            checked=self._checked() if source.has_image else None,
            notes=[
                *source.notes,
                *notes(classes, tally),
                *self._skipped.notes(),
                *self._listing.repeats.notes(source.item),
                *unlisted.notes(),
                *(missing_labels(splits) if source.task == "multilabel" else ()),
            ],
            skipped_count=len(self._skipped.reasons) + unlisted.unusable_count,
            skipped=[ExampleIssue(key=readable(key), reason=reason) for key, reason in skipped],
            skipped_reasons=dict(reasons.most_common(MAX_REASONS_LISTED)),
            damaged=[ExampleIssue(key=readable(key), reason=reason) for key, reason in self._skipped.damaged_images],
        )

    def _text_of(self, label: Label) -> str:
        return label_text(self._source.task, self._plan.classes, label)

    def _target(self, train: InputStatistics, everything: InputStatistics, shards: Iterable[ShardResult]) -> Input:
        """Return the description of a number that is predicted, with the statistics of its logarithm if so set.

        Raises:
            UserError: A target has no logarithm.
        """
        kind = Kind("number")
        if self._settings.target is None:
            return as_input(LABEL, kind, train, train, self._settings)
        if everything.minimum is None or everything.minimum <= 0:
            raise UserError(
                f"A target is {everything.minimum:g}, and only positive numbers have a logarithm.",
                setting="data.target",
                value=self._settings.target,
                allowed="log, for positive targets, or null",
                nearest="null",
                fix="--set data.target=null",
            )
        logarithms = InputStatistics()
        for result in shards:
            if result.shard:
                columns = read_columns([self._set / result.shard.file], [LABEL], result.shard.examples)
                for value in all_values(columns[LABEL]):
                    logarithms.add_numbers([math.log(float(value))])
        return as_input(LABEL, kind, logarithms, logarithms, self._settings).model_copy(update={"logarithmic": True})


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
    except (FileNotFoundError, ValidationError, UserError):
        return None
    return result


def _tallies(results: Mapping[str, list[ShardResult]]) -> Iterator[Tally]:
    return (result.tally for shard_results in results.values() for result in shard_results)


def _split_record(results: list[ShardResult], classes: list[str], labels: InputStatistics | None) -> Split:
    """Return the record of a split; `labels` are the statistics of labels that are not one class."""
    counts = combine(result.tally for result in results).classes
    of_class = counts if labels is None else dict(enumerate(labels.sums))
    return Split(
        examples=sum(counts.values()),
        classes={label: of_class.get(index, 0) for index, label in enumerate(classes)},
        shards=[result.shard for result in results if result.shard],
    )
