"""Plan how a listing is divided among splits and shards; identify the data set that it becomes."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slipway.components.prepare_data.encoding.stored import stored_bytes
from slipway.components.prepare_data.encoding.subwords import read_vocabulary
from slipway.components.prepare_data.examples import SPLITS, Group
from slipway.components.prepare_data.listing import split as splitting
from slipway.components.prepare_data.listing.repeats import Blocks
from slipway.components.prepare_data.listing.split import Amount, Fold, Summary
from slipway.components.prepare_data.settings import DataSettings, TextSettings
from slipway.components.prepare_data.sources.source import Source
from slipway.components.prepare_data.validation.sampling import check_for
from slipway.core.errors import UserError
from slipway.core.values import JsonObject

# Part of every fingerprint. Increment it if the bytes written for the same source and settings change.
FORMAT = 2
# The same for sources of image files. Increment it if images are converted otherwise.
IMAGES_FORMAT = 1
# The same for sources of texts. Increment it if their vocabulary is learned otherwise.
TEXTS_FORMAT = 1
IDENTITY_DIGITS = 16
# Approximate size of a record without the image: framing, field names and lengths, key.
RECORD_BYTES_BESIDE_IMAGE = 120
# Settings on which the bytes of a data set do not depend, or only by the content of its source.
NOT_STORED = {"source", "uri", "store", "workers", "tfds", "bigquery", "huggingface", "module", "beam"}
# Settings that most sources do not use; omitted from the stored settings if they are not set.
DESCRIBING = ("features", "image", "id", "label", "target", "inputs", "order_by", "resize", "resize_mode")


@dataclass(frozen=True)
class Plan:
    """The division of a listing among splits and shards.

    Attributes:
        classes: The classes or labels (multilabel), in the order of the network's outputs.
        blocks: The blocks of examples of each group that are in one split, in their order.
        shards: The number of shards of each split.
        bytes: The approximate size of all shards.
        source_bytes: The same if images were stored unchanged.
        fold: The fold that is the test split; None without folds.
        forward: The same if the examples are in order, so that the listing has the splits.
    """

    classes: list[str]
    blocks: Mapping[Group, Blocks]
    shards: dict[str, int]
    bytes: int
    source_bytes: int
    fold: Fold | None = None
    forward: Fold | None = None

    @classmethod
    def of(
        cls, source: Source, groups: Mapping[Group, Amount], settings: DataSettings, replicas: int,
        labels: Iterable[str] = (), fold: Fold | None = None,
    ) -> Plan:  # fmt: skip
        """Plan the division of all examples; `labels` are those of the task multilabel.

        Raises:
            UserError: A class has no image for one of the splits, or no example has a label.
        """
        counts = {group: amount.examples for group, amount in groups.items()}
        label_names = {label for _, label in counts} if source.task == "classification" else set(labels)
        classes = source.classes(label_names) if source.task != "regression" else []
        if source.task == "multilabel" and not label_names:
            raise UserError(f"No example of {settings.source} has a label.", setting="data.label", value=settings.label)
        forward, fold = (None, fold) if settings.order_by is None else (fold, None)
        divided = splitting.divide(counts, settings.split, fold, source.item)
        whole = {name: _split_amount(name, groups, divided) for name in SPLITS}
        amounts = whole
        if settings.stored_size is not None:
            most = stored_bytes(settings.stored_size) + RECORD_BYTES_BESIDE_IMAGE
            amounts = {
                name: Amount(amount.examples, min(amount.bytes, amount.examples * most))
                for name, amount in whole.items()
            }
        shards = {
            name: splitting.shard_count(amount, replicas, settings.shard_megabytes) for name, amount in amounts.items()
        }
        size, source_size = (sum(amount.bytes for amount in by_split.values()) for by_split in (amounts, whole))
        return cls(classes, splitting.all_blocks(divided, fold), shards, size, source_size, fold, forward)

    def dividing(self, blocks: Mapping[Group, Blocks], copies: Iterable[str]) -> Plan:
        """Return the plan with other blocks, after examples were skipped or grouped; the number of shards is kept.

        Args:
            blocks: The blocks of examples of each group.
            copies: The split of each image that is dropped from it afterwards.
        """
        dropped = Counter(copies)
        sizes: Counter[str] = Counter()
        for split, size in itertools.chain.from_iterable(blocks.values()):
            sizes[split] += size
        shards = {name: min(count, sizes[name] - dropped[name]) for name, count in self.shards.items()}
        return dataclasses.replace(self, blocks=blocks, shards=shards)

    def examples(self) -> int:
        """Return the number of examples in all splits."""
        return sum(size for _, size in itertools.chain.from_iterable(self.blocks.values()))


def _split_amount(name: str, groups: Mapping[Group, Amount], divided: Mapping[Group, Mapping[str, int]]) -> Amount:
    """Return the number of examples in a split and the approximate size of their records."""
    examples, size = 0, 0
    for group, parts in divided.items():
        count = parts.get(name, 0)
        whole = groups[group]
        examples += count
        size += whole.bytes * count // max(whole.examples, 1) + count * RECORD_BYTES_BESIDE_IMAGE
    return Amount(examples, size)


@dataclass(frozen=True)
class Target:
    """The data set to prepare: its plan, and the settings and facts that are part of its fingerprint.

    The fingerprint depends on the content of the source, which is known only after it was read. Until then, a listing
    stands for it: it identifies the work folder, and it is remembered with the fingerprint of the data set.
    """

    plan: Plan
    about: JsonObject
    listed: Summary

    @property
    def listing(self) -> str:
        """Identifies the listing and settings; sizes and stamps are in it, so it changes if files are touched."""
        return self._digest(listing=self.listed.digest)[:IDENTITY_DIGITS]

    @property
    def shape(self) -> str:
        """Identifies names, labels, sizes and settings; it stays if files are copied."""
        return self._digest(shape=self.listed.shape)[:IDENTITY_DIGITS]

    def fingerprint(self, records: Mapping[str, list[str]]) -> str:
        """Return the fingerprint, SHA-256 (hex), of the data set; `records` are its shards' `content` by split."""
        return self._digest(shape=self.listed.shape, records=records)

    def _digest(self, **content: object) -> str:
        return hashlib.sha256(json.dumps({**self.about, **content}, sort_keys=True).encode()).hexdigest()

    @classmethod
    def of(
        cls, source: Source, listed: Summary, settings: DataSettings, replicas: int, name: str, fold: Fold | None = None
    ) -> Target:
        """Return the target for a listing.

        Raises:
            UserError: A class has no image for one of the splits.
        """
        plan = Plan.of(source, listed.groups, settings, replicas, listed.labels, fold)
        about: JsonObject = {
            "format": FORMAT,
            "settings": stored_settings(settings, name, plan),
            "shards": plan.shards,
        }
        if plan.classes != sorted({label for _, label in listed.groups}):
            about["classes"] = plan.classes
        if source.has_image and source.may_convert:
            about["images"] = IMAGES_FORMAT
        if any(kind.name == "text" for kind in source.inputs.values()):
            about["texts"] = TEXTS_FORMAT
        if source.revision:
            about["revision"] = source.revision
        if source.features:
            about["features"] = source.features
        if source.task != "classification":
            about["task"] = source.task
        if source.inputs:
            about["inputs"] = [(name, str(kind)) for name, kind in source.inputs.items()]
        return cls(plan, about, listed)


def identity(fingerprint: str) -> str:
    """Return the name of a data set's folder."""
    return fingerprint[:IDENTITY_DIGITS]


def stored_settings(settings: DataSettings, name: str, plan: Plan) -> JsonObject:
    """Return the settings on which the bytes of a data set depend."""
    stored = settings.model_dump(mode="json", exclude=NOT_STORED)
    stored["check"] = check_for(settings, plan.examples())
    if stored["check"] != "sample":
        del stored["check_sample"]
    if stored["damaged"] == "warn":  # the images are the same as without the setting
        del stored["damaged"]
    if stored["truncated"] == "refuse":
        del stored["truncated"]
    if stored["near_duplicates"] != "group":
        del stored["near_duplicates"]
    if not stored["horizon"]:
        del stored["horizon"]
    if stored["missing"] == "mean":
        del stored["missing"]
    for setting in ("missing_values", "number_format"):
        if not stored[setting]:
            del stored[setting]
    if settings.text == TextSettings():
        del stored["text"]
    elif settings.text.vocabulary is not None:
        entries = "\n".join(read_vocabulary(settings.text.vocabulary))
        stored["text"]["vocabulary"] = hashlib.sha256(entries.encode()).hexdigest()
    stored["name"] = name
    if (fold := plan.fold or plan.forward) is not None:
        stored["fold"] = dataclasses.asdict(fold)
    return {setting: value for setting, value in stored.items() if value is not None or setting not in DESCRIBING}
