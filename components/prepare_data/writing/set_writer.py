"""Write one data set: its shards, metadata files and manifest; resume after a killed run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence

from slipway.components.prepare_data.encoding.inputs import Statistics, combine_statistics
from slipway.components.prepare_data.encoding.records import Label
from slipway.components.prepare_data.examples import readable, refuse, source_error
from slipway.components.prepare_data.listing import split as splitting
from slipway.components.prepare_data.listing.conflicts import conflict_notes
from slipway.components.prepare_data.publishing.dataset_info import write_dataset_info
from slipway.components.prepare_data.publishing.statistics import label_text, write_statistics
from slipway.components.prepare_data.validation.duplicates import Copy, HashedShard, find_copies
from slipway.components.prepare_data.validation.leaks import leak_notes
from slipway.components.prepare_data.validation.near_duplicates import near_duplicate_notes
from slipway.components.prepare_data.validation.network_input import blank_notes
from slipway.components.prepare_data.validation.outliers import outlier_notes
from slipway.components.prepare_data.validation.split_check import SplitFinding, check_split, split_notes
from slipway.components.prepare_data.validation.tally import Tally, combine
from slipway.components.prepare_data.writing.set_manifest import manifest_of
from slipway.components.prepare_data.writing.shard_tasks import Records, ShardTasks
from slipway.components.prepare_data.writing.shards import LABEL, ShardResult
from slipway.components.prepare_data.writing.validation import Validation, near_duplicates
from slipway.core import events, manifest
from slipway.core.atomic import replace_file
from slipway.core.manifest import Manifest
from slipway.core.seen import split_file


class SetWriter:
    """Writes one data set by the tasks of its shards.

    Attributes:
        split_findings: What was measured of its splits, once it is written or scanned.
    """

    def __init__(self, tasks: ShardTasks) -> None:
        self._tasks, self._validation = tasks, Validation(tasks)
        self.split_findings: Sequence[SplitFinding] = ()

    def write(self, fingerprint: Callable[[Records], str]) -> Manifest:
        """Write the data set; return its manifest. `fingerprint` computes its fingerprint from its records.

        Raises:
            UserError: The examples cannot be used: see `_results`.
        """
        results = self._results()
        records = {split: [result.content for result in shard_results] for split, shard_results in results.items()}
        return self._finish(fingerprint(records), results)

    def scan(self) -> Manifest:
        """Return the manifest that the data set would have, without a fingerprint.

        Raises:
            UserError: The examples cannot be used: see `_results`.
        """
        results = self._results()
        about, _, _ = self._described("", results, combine(_tallies(results)))
        return about

    def _results(self) -> dict[str, list[ShardResult]]:
        """Write all shards; return the results of each split, in order.

        If unusable images may be skipped, all images are validated first, so that splits and shards are the same as for
        a source without the unusable ones. Copies in other splits are found after all shards are written; if they are
        dropped, all shards are written again without them.

        Raises:
            UserError: There are too many unusable images, images of several sizes, or images in several splits: all
                of them are in one error.
        """
        tasks, skipped = self._tasks, self._tasks.skipped
        if skipped.validated:  # by an earlier, killed run
            self._validation.show_checked()
        elif tasks.settings.skip_corrupt or tasks.groups_images:
            self._validation.skip_unusable()
        results = self._write_shards()
        copies = self._copies(results)
        if not skipped.validated:
            skipped.groups = near_duplicates(tasks.results)
        refuse(self._validation.problems(combine(_tallies(results)), copies))
        if copies:
            for folder in (tasks.results, tasks.set_folder):
                shutil.rmtree(folder, ignore_errors=True)
            skipped.add_copies(copies)
            results = self._write_shards()
        self._check_classes(results)
        return results

    def _write_shards(self) -> dict[str, list[ShardResult]]:
        """Write all shards; return the results of each split, in order.

        Raises:
            UserError: An image is unusable, although all images were validated before.
        """
        results = self._tasks.write()
        tally = combine(_tallies(results))
        if not self._tasks.skipped.validated:
            self._validation.count(tally)
        elif tally.skipped:
            key, reason = tally.skipped[0]
            raise source_error(
                self._tasks.settings.source,
                f"The source changed while the data set was prepared: {readable(key)} was valid before ({reason}).",
                fix="run again when no other process writes to the source",
            )
        return results

    def _copies(self, results: Mapping[str, list[ShardResult]]) -> list[Copy]:
        tasks = self._tasks
        if not tasks.source.has_image or tasks.settings.duplicates == "keep" or tasks.skipped.copies:
            return []  # after copies were dropped, none remain
        events.phase("comparing the images")
        shards = [
            HashedShard(split, tasks.set_folder / result.shard.file, tasks.results / result.hashes.file)
            for split, shard_results in results.items()
            for result in shard_results
            if result.shard and result.hashes
        ]
        copies, tasks.skipped.conflicts = find_copies(shards, tasks.scratch / "hashes", self._text_of)
        return copies

    def _check_classes(self, results: Mapping[str, list[ShardResult]]) -> None:
        """Check that every split still has every class after copies were dropped."""
        source, plan = self._tasks.source, self._tasks.plan
        classes = plan.classes if source.task == "classification" else [""]
        listed = {label for _, label in plan.blocks}
        present = {
            split: {classes[label] for result in shard_results for label in result.tally.classes}
            for split, shard_results in results.items()
        }
        item = source.item
        fix = f"remove the wrong copies: all {item}s of {{label}} in the split {{split}} are also in another split"
        splitting.check_every_class([label for label in classes if label in listed], present, fix, item)

    def _described(
        self, fingerprint: str, results: Mapping[str, list[ShardResult]], tally: Tally
    ) -> tuple[Manifest, dict[str, Statistics], list[Copy]]:
        """Return the manifest, the statistics of the splits, and the images that look the same in several of them."""
        tasks, source = self._tasks, self._tasks.source
        folder, shards = tasks.set_folder, tasks.shards(results)
        statistics = {
            split: combine_statistics(result.inputs for result in split_results)
            for split, split_results in results.items()
        }
        checked = self._validation.checked() if source.has_image else None
        about = manifest_of(tasks, fingerprint, results, tally, statistics, checked, shards)
        near = self._validation.across_splits()
        notes_on_splits = [
            *near_duplicate_notes(near),
            *leak_notes(shards["train"], about),
            *blank_notes(folder, about),
        ]
        in_order = [result for split in about.splits for result in results[split]]
        hashes = [tasks.results / result.input_hashes.file for result in in_order if result.input_hashes]
        if hashes:
            files = [shard for split in about.splits for shard in shards[split]]
            notes_on_splits += conflict_notes(files, hashes, about, source.item, self._text_of)
        if about.target:
            notes_on_splits += outlier_notes(shards["train"], about, statistics["train"][LABEL])
        has_splits = any(split is not None for split, _ in tasks.listing.groups)
        self.split_findings = check_split(shards, about, tasks.settings, tasks.skipped.groups, has_splits=has_splits)
        notes_on_splits += split_notes(self.split_findings)
        return about.model_copy(update={"notes": [*about.notes, *notes_on_splits]}), statistics, near

    def _finish(self, fingerprint: str, results: Mapping[str, list[ShardResult]]) -> Manifest:
        """Write the metadata files, the manifest last."""
        folder, source = self._tasks.set_folder, self._tasks.source
        events.phase("writing the statistics")
        for stray in folder.glob(".*"):  # unfinished files of killed workers
            stray.unlink()
        tally = combine(_tallies(results))
        about, statistics, near = self._described(fingerprint, results, tally)
        for split, shard_results in results.items():
            with (folder / split_file(split)).open("wb") as file:  # see `slipway.core.seen`
                for result in shard_results:
                    if result.hashes:
                        hashes = (self._tasks.results / result.hashes.file).read_bytes()
                        file.write(hashes[: len(hashes) // 2])  # without the offsets
        write_dataset_info(folder, about, source)
        write_statistics(folder, about, tally, self._tasks.listing.ignored, statistics, near)
        replace_file(folder / manifest.FILE_NAME, about.model_dump_json(indent=1).encode())
        return about

    def _text_of(self, label: Label) -> str:
        return label_text(self._tasks.source.task, self._tasks.plan.classes, label)


def _tallies(results: Mapping[str, list[ShardResult]]) -> Iterator[Tally]:
    return (result.tally for shard_results in results.values() for result in shard_results)
