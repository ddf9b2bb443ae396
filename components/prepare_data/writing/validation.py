"""Validate the images of a data set before or while they are written; skip those that cannot be used."""

from __future__ import annotations

from pathlib import Path

from slipway.components.prepare_data.examples import SPLITS, Problem, refuse
from slipway.components.prepare_data.listing.lists import list_path, read_list
from slipway.components.prepare_data.validation.duplicates import Copy, in_several_splits
from slipway.components.prepare_data.validation.near_duplicates import across_splits, find_groups
from slipway.components.prepare_data.validation.sampling import check_for, sentence
from slipway.components.prepare_data.validation.skipped import COUNTS, too_many
from slipway.components.prepare_data.validation.tally import Tally, combine, several_sizes
from slipway.components.prepare_data.writing.shard_tasks import ShardTasks
from slipway.core import events
from slipway.core.manifest import Checked


class Validation:
    """The validation of a data set's images, by the tasks of its shards."""

    def __init__(self, tasks: ShardTasks) -> None:
        self._tasks = tasks

    def run(self) -> Tally:
        """Validate all images without writing them; return their tally."""
        return combine(result.tally for result in self._tasks.validate())

    def skip_unusable(self) -> None:
        """Validate all images; skip the unusable ones.

        Raises:
            UserError: There are more of them than data.skip_corrupt allows.
        """
        tally = self.run()
        self.count(tally)
        if self.unusable(tally):
            refuse(self.problems(tally, []))
        self._tasks.skipped.groups = near_duplicates(self._tasks.validated)
        self._tasks.skipped.add(tally.skipped)

    def across_splits(self) -> list[Copy]:
        """Return the images that look the same as one in another split."""
        groups = self._tasks.skipped.groups
        if not groups:
            return []
        plan = self._tasks.current_plan()
        if not self._tasks.lists.exists():  # all shards were written by an earlier, killed run
            self._tasks.deal(plan)
        grouped = {key for group in groups for key in group}
        shards = [(split, number) for split in SPLITS for number in range(plan.shards[split])]
        lists = [(split, list_path(self._tasks.lists, split, number)) for split, number in shards]
        split_of = {example[0]: split for split, path in lists for example in read_list(path) if example[0] in grouped}
        return across_splits(groups, split_of)

    def problems(self, tally: Tally, copies: list[Copy]) -> list[Problem]:
        """Return the problems of a data set's images, of which `copies` are in several splits."""
        settings = self._tasks.settings
        return [
            *(several_sizes(tally, settings.source) if settings.image_size is None else ()),
            *self.unusable(tally),
            *(in_several_splits(copies) if settings.duplicates == "refuse" else ()),
        ]

    def unusable(self, tally: Tally) -> list[Problem]:
        """Return the problem that there are more unusable examples than data.skip_corrupt allows, if there are."""
        unlisted, images = self._tasks.listing.ignored, self._tasks.plan.examples()
        count, total = (number + unlisted.unusable_count for number in (tally.skipped_count, images))
        examples = [*unlisted.unusable, *tally.skipped]
        return too_many(count, total, examples, self._tasks.settings, self._tasks.source.item, damaged=tally.damaged)

    def count(self, tally: Tally) -> None:
        """Count the decoded images, and show how they were validated."""
        self._tasks.skipped.count(tally)
        self.show_checked()

    def show_checked(self) -> None:
        """Show how the images were validated, if only a sample of them was decoded."""
        if self._tasks.source.has_image and (checked := self.checked()).check == "sample":
            events.message(sentence(checked))

    def checked(self) -> Checked:
        """Return how the images were validated; valid after all shards were written once."""
        images, skipped = self._tasks.plan.examples(), self._tasks.skipped
        check = check_for(self._tasks.settings, images)
        counts = {name: getattr(skipped, name) for name in COUNTS}
        return Checked(check=check, images=images, **counts)


def near_duplicates(folder: Path) -> list[list[bytes]]:
    """Return the keys of images that look the same, in groups, by the thumbnails in a folder of results."""
    files = sorted(folder.glob("*.thumbnails"))
    if not files:
        return []
    events.phase("looking for near-duplicates")
    return find_groups(files)
