"""Image counts by class, size and encoding, and skipped images; counted per shard, then combined."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict

from slipway.components.prepare_data.encoding.image import ImageInfo
from slipway.components.prepare_data.examples import Damaged, Undecodable, Unusable, readable
from slipway.components.prepare_data.validation.problems import Problem
from slipway.core.manifest import Split

MOST_SIZES = 32
MOST_DAMAGED = 100
MOST_LABELS_NAMED = 10
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
    and `largest` are [height, width] by number of pixels. `left_out` contains (key, reason) of unusable images and
    `left_out_count` is their number.
    `decoded` counts the images decoded in full, `undecodable` those that only this showed to be unusable, `damaged`
    those that decoders accept with warnings; `damaged_images` contains (key, warning) of the first of these that are
    used. All other fields exclude unusable images. `turned` counts images whose EXIF data tells viewers to rotate or
    mirror them.
    """

    model_config = KEYS_IN_JSON
    classes: dict[int, int] = {}
    encodings: dict[str, int] = {}
    gray: int = 0
    turned: int = 0
    sizes: list[Size] = []
    other_sizes: int = 0
    sides: dict[int, int] = {}
    smallest: tuple[int, int] | None = None
    largest: tuple[int, int] | None = None
    left_out_count: int = 0
    left_out: list[tuple[bytes, str]] = []
    decoded: int = 0
    undecodable: int = 0
    damaged: int = 0
    damaged_images: list[tuple[bytes, str]] = []

    @property
    def examples(self) -> int:
        """The number of images, excluding skipped ones."""
        return sum(self.classes.values())


class TallyCounter:
    """Counts the images of one shard. At most `most_left_out` skipped images are named; the others are only counted."""

    def __init__(self, *, most_left_out: int) -> None:
        self._most_left_out = most_left_out
        self._classes: dict[int, int] = {}
        self._infos: dict[ImageInfo, int] = {}
        self._sizes: dict[tuple[int, int], Size] = {}
        self._left_out: list[tuple[bytes, str]] = []
        self._left_out_count = 0
        self._decoded = 0
        self._undecodable = 0
        self._damaged = 0
        self._damaged_images: list[tuple[bytes, str]] = []
        self._other = Tally()

    def add(self, key: bytes, label: int, info: ImageInfo | None, damage: str = "", *, decoded: bool) -> None:
        """Count one example, its image if it has one, whether its images were decoded in full, and their damage."""
        self._classes[label] = self._classes.get(label, 0) + 1
        if damage and decoded:
            self._damaged += 1
            if len(self._damaged_images) < MOST_DAMAGED:
                self._damaged_images.append((key, damage))
        if info is None:
            return
        if info.damage:
            info = info._replace(damage="")
        self._decoded += decoded
        if info in self._infos:
            self._infos[info] += 1
        else:
            self._add_new(key, info)

    def skip(self, key: bytes, reason: Unusable) -> None:
        """Count an unusable image."""
        self._left_out_count += 1
        self._undecodable += isinstance(reason, Undecodable)
        if isinstance(reason, Damaged):
            self._damaged += 1
            self._decoded += 1
        if len(self._left_out) < self._most_left_out:
            self._left_out.append((key, str(reason)))

    def _add_new(self, key: bytes, info: ImageInfo) -> None:
        size = Size(height=info.height, width=info.width, count=0, first=key)
        if len(self._infos) < MOST_SIZES:
            self._infos[info] = 1
            self._sizes.setdefault((info.height, info.width), size)
            return
        other = self._other
        other.other_sizes += 1
        other.encodings[info.encoding] = other.encodings.get(info.encoding, 0) + 1
        other.gray += info.gray
        other.turned += info.turned
        pair = (info.height, info.width)
        other.sides[min(pair)] = other.sides.get(min(pair), 0) + 1
        other.smallest = min(other.smallest or pair, pair, key=_pixels)
        other.largest = max(other.largest or pair, pair, key=_pixels)

    def tally(self) -> Tally:
        """Return the counts."""
        encodings, sides = Counter(self._other.encodings), Counter(self._other.sides)
        for info, count in self._infos.items():
            encodings[info.encoding] += count
            sides[min(info.height, info.width)] += count
            self._sizes[info.height, info.width].count += count
        ends = [pair for pair in (self._other.smallest, self._other.largest) if pair] + list(self._sizes)
        return Tally(
            classes=dict(sorted(self._classes.items())),
            encodings=dict(sorted(encodings.items())),
            gray=self._other.gray + sum(count for info, count in self._infos.items() if info.gray),
            turned=self._other.turned + sum(count for info, count in self._infos.items() if info.turned),
            sizes=list(self._sizes.values()),
            other_sizes=self._other.other_sizes,
            sides=sides,
            smallest=min(ends, key=_pixels, default=None),
            largest=max(ends, key=_pixels, default=None),
            left_out_count=self._left_out_count,
            left_out=self._left_out,
            decoded=self._decoded + self._undecodable,
            undecodable=self._undecodable,
            damaged=self._damaged,
            damaged_images=self._damaged_images,
        )


def combine(tallies: Iterable[Tally]) -> Tally:
    """Combine the tallies of several shards, in order."""
    classes: Counter[int] = Counter()
    encodings: Counter[str] = Counter()
    sides: Counter[int] = Counter()
    sizes: dict[tuple[int, int], Size] = {}
    result = Tally()
    for tally in tallies:
        classes.update(tally.classes)
        encodings.update(tally.encodings)
        sides.update(tally.sides)
        result.gray += tally.gray
        result.turned += tally.turned
        result.other_sizes += tally.other_sizes
        result.left_out_count += tally.left_out_count
        result.left_out += tally.left_out
        result.decoded += tally.decoded
        result.undecodable += tally.undecodable
        result.damaged += tally.damaged
        result.damaged_images += tally.damaged_images
        for size in tally.sizes:
            pair = (size.height, size.width)
            if pair in sizes:
                sizes[pair].count += size.count
            elif len(sizes) < MOST_SIZES:
                sizes[pair] = size.model_copy()
            else:
                result.other_sizes += size.count
        ends = [pair for pair in (result.smallest, result.largest, tally.smallest, tally.largest) if pair]
        result.smallest = min(ends, key=_pixels, default=None)
        result.largest = max(ends, key=_pixels, default=None)
    result.classes = dict(sorted(classes.items()))
    result.encodings = dict(sorted(encodings.items()))
    result.sizes = list(sizes.values())
    result.sides = dict(sorted(sides.items()))
    result.left_out.sort()
    result.damaged_images = sorted(result.damaged_images)[:MOST_DAMAGED]
    return result


def notes(classes: Iterable[str], tally: Tally) -> list[str]:
    """Return notes on a usable data set: classes with nearly equal names, images with EXIF orientations."""
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    found = []
    for names in alike.values():
        if len(names) > 1:
            # Names that differ only in their Unicode form look identical unless they are escaped.
            same = len({unicodedata.normalize("NFC", name) for name in names}) < len(names)
            listed = ", ".join(map(ascii if same else repr, names))
            found.append(
                f"The names of some classes differ only in case, spaces or Unicode form: {listed}. They are treated as "
                "different classes. If they are the same class, rename them in the source."
            )
    if tally.turned:
        found.append(
            f"{tally.turned:,} of {tally.examples:,} images have an EXIF orientation. Neither training nor the "
            "exported model applies it; both use the pixels as stored. To train on upright images, rotate the files, "
            "for instance with mogrify -auto-orient FILES, and send rotated images to the model as well."
        )
    return found


def missing_labels(splits: Mapping[str, Split]) -> list[str]:
    """Return a note for each split without an example of some labels, which only the task multilabel permits."""
    found = []
    for name, split in splits.items():
        missing = [label for label, count in split.classes.items() if not count]
        if missing:
            listed = ", ".join(missing[:MOST_LABELS_NAMED]) + (", …" if len(missing) > MOST_LABELS_NAMED else "")
            found.append(f"The split {name} has no example with the labels {listed}.")
    return found


def several_sizes(tally: Tally, source: str) -> list[Problem]:
    """Return the problem that names two images of different sizes, if there are any; it proposes the usual size."""
    if len(tally.sizes) < 2:
        return []
    first, second = (
        f"{readable(size.first)} has {size.height}x{size.width} pixels (height x width)" for size in tally.sizes[:2]
    )
    usual = max(tally.sizes, key=lambda size: size.count)
    return [
        Problem(
            f"The images have several sizes: {first}, {second}.",
            setting="data.image_size",
            value=None,
            allowed=f"the [height, width] to which all images of {source} are resized",
            accepting=f"[{usual.height}, {usual.width}]",
            otherwise="another size",
        )
    ]


def _pixels(size: tuple[int, int]) -> tuple[int, int, int]:
    return (size[0] * size[1], *size)
