"""Image counts by class, size and encoding, and skipped images; counted per shard, then combined."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from slipway.components.prepare_data.encoding.image import ImageInfo
from slipway.components.prepare_data.examples import Damaged, Problem, Undecodable, Unusable, readable
from slipway.core.images import FORMATS
from slipway.core.manifest import Split

MAX_SIZES = 32
# The height and width that networks for photographs usually have, such as those trained on ImageNet.
PHOTOGRAPH_SIDE = 224
MAX_DAMAGED = 100
MAX_LABELS_NAMED = 10
# The fields of a tally that are added up: numbers and lists.
SUMS = ("gray", "other_sizes", "skipped_count", "skipped", "decoded", "undecodable", "damaged",
        "damaged_images")  # fmt: skip
COUNTERS = ("classes", "encodings", "formats", "sides", "converted")
# Keys are arbitrary bytes.
KEYS_IN_JSON = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class Size(BaseModel):
    """The number of images of one size, in pixels, and the key of the first."""

    model_config = KEYS_IN_JSON
    height: int
    width: int
    count: int
    first: bytes


class Tally(BaseModel):
    """Image counts.

    `classes` counts by class; for other tasks than classification, all examples are of class 0. `sizes` contains the
    first sizes found, `other_sizes` counts images of other sizes, `sides` all images by their shorter side; `smallest`
    and `largest` are [height, width] by number of pixels. `skipped` contains (key, reason) of unusable images and
    `skipped_count` is their number.
    `decoded` counts the images decoded in full, `undecodable` those that only this showed to be unusable, `damaged`
    those that decoders accept with warnings; `damaged_images` contains (key, warning) of the first of these that are
    used. All other fields exclude unusable images. `encodings` counts by the format in which images are stored,
    `formats` by that in the source. `converted` counts images that are stored differently than in the source, by how.
    """

    model_config = KEYS_IN_JSON
    classes: dict[int, int] = {}
    encodings: dict[str, int] = {}
    formats: dict[str, int] = {}
    gray: int = 0
    converted: dict[str, int] = {}
    sizes: list[Size] = []
    other_sizes: int = 0
    sides: dict[int, int] = {}
    smallest: tuple[int, int] | None = None
    largest: tuple[int, int] | None = None
    skipped_count: int = 0
    skipped: list[tuple[bytes, str]] = []
    decoded: int = 0
    undecodable: int = 0
    damaged: int = 0
    damaged_images: list[tuple[bytes, str]] = []

    @property
    def examples(self) -> int:
        """The number of images, excluding skipped ones."""
        return sum(self.classes.values())

    def add_images(self, info: ImageInfo, count: int) -> None:
        """Count images with the same properties, except by class and size."""
        shorter = min(info.height, info.width)
        self.encodings[info.encoding] = self.encodings.get(info.encoding, 0) + count
        name = FORMATS[info.format or info.encoding].name
        self.formats[name] = self.formats.get(name, 0) + count
        self.sides[shorter] = self.sides.get(shorter, 0) + count
        self.gray += count * info.gray
        for how in conversions(info):
            self.converted[how] = self.converted.get(how, 0) + count
        self.extend((info.height, info.width))

    def extend(self, *sizes: tuple[int, int] | None) -> None:
        """Extend the range from the smallest to the largest image."""
        known = [size for size in (self.smallest, self.largest, *sizes) if size]
        self.smallest = min(known, key=_pixels, default=None)
        self.largest = max(known, key=_pixels, default=None)


class TallyCounter:
    """Counts the images of one shard. Names at most `max_skipped_named` skipped images, and only counts the others."""

    def __init__(self, *, max_skipped_named: int) -> None:
        self._max_skipped_named = max_skipped_named
        self._classes: Counter[int] = Counter()
        self._infos: dict[ImageInfo, int] = {}
        self._first: dict[tuple[int, int], bytes] = {}
        self._decoded = 0
        self._tally = Tally()

    def add(self, key: bytes, label: int, info: ImageInfo | None, damage: str = "", *, decoded: bool) -> None:
        """Count one example, its image if it has one, whether its images were decoded in full, and their damage."""
        self._classes[label] += 1
        if damage and decoded:
            self._tally.damaged += 1
            if len(self._tally.damaged_images) < MAX_DAMAGED:
                self._tally.damaged_images.append((key, damage))
        if info is None:
            return
        if info.damage:
            info = info._replace(damage="")
        self._decoded += decoded
        if info in self._infos:
            self._infos[info] += 1
        elif len(self._infos) < MAX_SIZES:
            self._infos[info] = 1
            self._first.setdefault((info.height, info.width), key)
        else:
            self._tally.other_sizes += 1
            self._tally.add_images(info, 1)

    def add_classes(self, counts: Mapping[int, int]) -> None:
        """Add the numbers of examples without images, by class."""
        self._classes.update(counts)

    def skip(self, key: bytes, reason: Unusable) -> None:
        """Count an unusable image."""
        tally = self._tally
        tally.skipped_count += 1
        tally.undecodable += isinstance(reason, Undecodable)
        tally.damaged += isinstance(reason, Damaged)
        self._decoded += isinstance(reason, Undecodable | Damaged)
        if len(tally.skipped) < self._max_skipped_named:
            tally.skipped.append((key, str(reason)))

    def tally(self) -> Tally:
        """Return the counts; nothing can be counted afterwards."""
        tally = self._tally
        tally.classes, tally.decoded = dict(self._classes), self._decoded
        counts: Counter[tuple[int, int]] = Counter()
        for info, count in self._infos.items():
            tally.add_images(info, count)
            counts[info.height, info.width] += count
        tally.sizes = [
            Size(height=size[0], width=size[1], count=counts[size], first=key) for size, key in self._first.items()
        ]
        return tally


def combine(tallies: Iterable[Tally]) -> Tally:
    """Combine the tallies of several shards, in order."""
    result = Tally()
    counters: dict[str, Counter[Any]] = {name: Counter() for name in COUNTERS}
    sizes: dict[tuple[int, int], Size] = {}
    for tally in tallies:
        for name, counter in counters.items():
            counter.update(getattr(tally, name))
        for name in SUMS:
            total = getattr(result, name)
            total += getattr(tally, name)
            setattr(result, name, total)
        for size in tally.sizes:
            pair = (size.height, size.width)
            if pair in sizes:
                sizes[pair].count += size.count
            elif len(sizes) < MAX_SIZES:
                sizes[pair] = size.model_copy()
            else:
                result.other_sizes += size.count
        result.extend(tally.smallest, tally.largest)
    for name, counter in counters.items():
        setattr(result, name, dict(sorted(counter.items())))
    result.sizes = list(sizes.values())
    result.skipped.sort()
    result.damaged_images = sorted(result.damaged_images)[:MAX_DAMAGED]
    return result


def notes(classes: Iterable[str], tally: Tally) -> list[str]:
    """Return notes on a usable data set: classes with nearly equal names, converted images."""
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    texts = []
    for names in alike.values():
        if len(names) > 1:
            # Names that differ only in their Unicode form look identical unless they are escaped.
            same = len({unicodedata.normalize("NFC", name) for name in names}) < len(names)
            listed = ", ".join(map(ascii if same else repr, names))
            texts.append(
                f"The names of some classes differ only in case, spaces or Unicode form: {listed}. They are treated as "
                "different classes. If they are the same class, rename them in the source."
            )
    if tally.converted:
        listed = "; ".join(f"{count:,} {how}" for how, count in tally.converted.items())
        texts.append(f"Some of the {tally.examples:,} images are stored differently than in the source: {listed}.")
    return texts


def conversions(info: ImageInfo) -> list[str]:
    """Return how a stored image differs from the source's."""
    differences = [f"from {FORMATS[info.format].name} to {info.encoding.upper()}"] if info.format else []
    differences += ["turned upright by their EXIF orientation"] * (info.orientation != 1)
    differences += ["from CMYK to RGB"] * info.cmyk
    return differences + ["resized"] * info.resized


def missing_labels(splits: Mapping[str, Split]) -> list[str]:
    """Return a note for each split without an example of some labels, which only the task multilabel permits."""
    texts = []
    for name, split in splits.items():
        missing = [label for label, count in split.classes.items() if not count]
        if missing:
            listed = ", ".join(missing[:MAX_LABELS_NAMED]) + (", …" if len(missing) > MAX_LABELS_NAMED else "")
            texts.append(f"The split {name} has no example with the labels {listed}.")
    return texts


def several_sizes(tally: Tally, source: str) -> list[Problem]:
    """Return the problem that names two images of different sizes, if there are any; it proposes the usual size."""
    if len(tally.sizes) < 2:
        return []
    first, second = (
        f"{readable(size.first)} has {size.height}x{size.width} pixels (height x width)" for size in tally.sizes[:2]
    )
    height, width = proposed_size(tally)
    return [
        Problem(
            f"The images have several sizes: {first}, {second}.",
            setting="data.image_size",
            value=None,
            allowed=f"the [height, width] to which all images of {source} are resized",
            accepting=f"[{height}, {width}]",
            otherwise="another size",
        )
    ]


def proposed_size(tally: Tally) -> tuple[int, int]:
    """Return a size for images of several sizes: that of most of them, or a square, for photographs one of networks."""
    usual = max(tally.sizes, key=lambda size: size.count)
    if usual.count * 2 >= tally.examples and max(usual.height, usual.width) <= PHOTOGRAPH_SIDE:
        return usual.height, usual.width
    side = min(usual_side(tally), PHOTOGRAPH_SIDE)
    return side, side


def usual_side(tally: Tally) -> int:
    """Return the median of the images' shorter sides, in pixels."""
    passed = 0
    for side, count in sorted(tally.sides.items()):
        passed += count
        if passed * 2 >= tally.examples:
            return side
    raise ValueError("there are no images")


def _pixels(size: tuple[int, int]) -> tuple[int, int, int]:
    return (size[0] * size[1], *size)
