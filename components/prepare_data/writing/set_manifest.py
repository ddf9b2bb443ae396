"""The manifest of a data set that was written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from slipway.components.prepare_data.encoding.features import Kind, described
from slipway.components.prepare_data.encoding.inputs import InputStatistics, Statistics, as_input, combine_statistics
from slipway.components.prepare_data.encoding.messages import all_values
from slipway.components.prepare_data.encoding.records import ShardFile, read_columns
from slipway.components.prepare_data.examples import readable
from slipway.components.prepare_data.listing.plan import stored_settings
from slipway.components.prepare_data.sources.source import common_reason
from slipway.components.prepare_data.validation.tally import Tally, combine, missing_labels, notes
from slipway.components.prepare_data.writing.shard_tasks import MAX_SKIPPED_LISTED, ShardTasks
from slipway.components.prepare_data.writing.shards import LABEL, ShardResult
from slipway.core.errors import UserError
from slipway.core.manifest import Checked, ExampleIssue, Input, Manifest, Split
from slipway.core.values import stored_name

MAX_REASONS_LISTED = 3


def manifest_of(
    tasks: ShardTasks,
    fingerprint: str,
    results: Mapping[str, list[ShardResult]],
    tally: Tally,
    statistics: Mapping[str, Statistics],
    checked: Checked | None,
    shards: Mapping[str, Sequence[ShardFile]],
) -> Manifest:
    """Return the manifest of the data set that the tasks have written.

    Args:
        tasks: The tasks.
        fingerprint: The fingerprint of the data set.
        results: The results of the shards by split.
        tally: The tally of all shards.
        statistics: The statistics of the inputs by split.
        checked: How the images were validated; None without images.
        shards: The files of the shards by split.

    Raises:
        UserError: A target has no logarithm.
    """
    settings, classes, source = tasks.settings, tasks.plan.classes, tasks.source
    own_sizes = [(image_size.height, image_size.width) for image_size in tally.sizes]
    size = (settings.image_size or own_sizes[0]) if source.has_image else (0, 0)
    train, everything = statistics["train"], combine_statistics(statistics.values())
    formats = {stored_name(name): written for name, written in settings.number_format.items()}
    unlisted = tasks.listing.ignored
    skipped = sorted([*unlisted.unusable, *tasks.skipped.listed()])[:MAX_SKIPPED_LISTED]
    reasons = unlisted.reasons + Counter(map(common_reason, tasks.skipped.reasons.values()))
    splits = {
        split: _split_record(of_split, classes, statistics[split].get(LABEL)) for split, of_split in results.items()
    }
    return Manifest(
        name=tasks.name,
        fingerprint=fingerprint,
        source=settings.source,
        revision=source.revision,
        settings=stored_settings(settings, tasks.name, tasks.plan),
        task=source.task,
        classes=classes,
        target=_target(tasks, train[LABEL], everything[LABEL], shards["train"])
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
            name: str(source.inputs[name]) if name in source.inputs and described(about) == "text" else described(about)
            for name, about in source.features.items()
        },
        **({"written_by": tasks.workers.title} if tasks.workers else {}),
        checked=checked,
        notes=[
            *source.notes,
            *tasks.listing.period_notes,
            *notes(classes, tally),
            *tasks.skipped.notes(),
            *tasks.listing.repeats.notes(source.item),
            *unlisted.notes(),
            *(missing_labels(splits) if source.task == "multilabel" else ()),
        ],
        skipped_count=len(tasks.skipped.reasons) + unlisted.unusable_count,
        skipped=[ExampleIssue(key=readable(key), reason=reason) for key, reason in skipped],
        skipped_reasons=dict(reasons.most_common(MAX_REASONS_LISTED)),
        damaged=[ExampleIssue(key=readable(key), reason=reason) for key, reason in tasks.skipped.damaged_images],
    )


def _target(
    tasks: ShardTasks, train: InputStatistics, everything: InputStatistics, shards: Iterable[ShardFile]
) -> Input:
    """Return the description of a number that is predicted, with the statistics of its logarithm if so set.

    Raises:
        UserError: A target has no logarithm.
    """
    kind = Kind("number")
    if tasks.settings.target is None:
        return as_input(LABEL, kind, train, train, tasks.settings)
    if everything.minimum is None or everything.minimum <= 0:
        raise UserError(
            f"A target is {everything.minimum:g}, and only positive numbers have a logarithm.",
            setting="data.target",
            value=tasks.settings.target,
            allowed="log, for positive targets, or null",
            nearest="null",
            fix="--set data.target=null",
        )
    logarithms = InputStatistics()
    for shard in shards:
        for value in all_values(read_columns([shard], [LABEL], tasks.plan.examples())[LABEL]):
            logarithms.add_numbers([math.log(float(value))])
    return as_input(LABEL, kind, logarithms, logarithms, tasks.settings).model_copy(update={"logarithmic": True})


def _split_record(results: list[ShardResult], classes: list[str], labels: InputStatistics | None) -> Split:
    """Return the record of a split; `labels` are the statistics of labels that are not one class."""
    counts = combine(result.tally for result in results).classes
    of_class = counts if labels is None else dict(enumerate(labels.sums))
    return Split(
        examples=sum(counts.values()),
        classes={label: of_class.get(index, 0) for index, label in enumerate(classes)},
        shards=[result.shard for result in results if result.shard],
    )
