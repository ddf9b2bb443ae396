"""The statistics page of a prepared data set, based on `slipway.components.page`."""

from __future__ import annotations

import io
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slipway.components import page
from slipway.components.prepare_data.encoding.messages import values
from slipway.components.prepare_data.encoding.records import read_examples, stored_parts
from slipway.components.prepare_data.examples import readable
from slipway.components.prepare_data.publishing.columns import Statistics, columns
from slipway.components.prepare_data.sources.source import Ignored
from slipway.components.prepare_data.validation.duplicates import Copy
from slipway.components.prepare_data.validation.network_input import as_network_sees
from slipway.components.prepare_data.validation.sampling import sentence
from slipway.components.prepare_data.validation.tally import Tally
from slipway.core.formatting import brief
from slipway.core.manifest import Manifest, TaskName

FILE_NAME = "statistics.html"
TEMPLATE = Path(__file__).with_name(FILE_NAME)
CLASSES_SHOWN = 30  # of more, the largest and the smallest
COLUMNS_SHOWN = 60
SIZES_SHOWN = 8  # more are a histogram
BINS = 12
# From this ratio of the largest to the smallest side on, the bins of the histogram are powers of two.
WIDE_RANGE = 16
SAMPLES = 32
NEAR_SHOWN = 100
MAX_RECORDS_READ = 512
# Ratios of width to height: the largest of a bin, and its name.
RATIOS = (
    (0.6, "upright, below 3:5"),
    (0.9, "upright"),
    (1.1, "about square"),
    (1.6, "wide"),
    (math.inf, "wide, above 8:5"),
)
LARGEST_INLINE = 8192
THUMBNAIL = 96
FEATURE_EXAMPLES = 4
FEATURES_NAMED = 12
MAX_VALUES = 8
MAX_CHARACTERS = 80


class Sample(NamedTuple):
    """A sample image on the page: its bytes as a data: URI, its class and its key."""

    uri: str
    label: str
    key: str


class ClassCounts(NamedTuple):
    """A class on the page, with its number of images in each split and in all."""

    name: str
    counts: list[int]
    total: int


class AdditionalFeature(NamedTuple):
    """An additional feature on the page: name, kind, and values of some examples as texts or image URIs."""

    name: str
    kind: str
    texts: list[str]
    images: list[str]


def write_statistics(
    folder: Path,
    manifest: Manifest,
    tally: Tally,
    ignored: Ignored,
    statistics: Statistics,
    near: Sequence[Copy] = (),
) -> None:
    """Write `statistics.html` to the shards' folder: class balance, inputs, sizes, samples, features, skipped examples.

    Args:
        folder: The folder of the shards.
        manifest: The data set's manifest.
        tally: The counts of its examples and images.
        ignored: What was ignored while listing the source.
        statistics: The statistics of the inputs and of the target in each split.
        near: The images that look the same as one in another split.
    """
    classes = class_counts(manifest)
    additional = [feature for feature in additional_features(folder, manifest) if feature.name not in manifest.inputs]
    shown_columns, sampled = columns(folder, manifest, statistics)
    half = CLASSES_SHOWN // 2
    content = page.render(
        TEMPLATE,
        columns=shown_columns,
        columns_shown=COLUMNS_SHOWN,
        sampled=sampled,
        ratios=list(ratio_bins(folder, manifest)) if manifest.has_image else [],
        manifest=manifest,
        tally=tally,
        ignored=ignored,
        checked=sentence(manifest.checked) if manifest.checked else "",
        item="image" if manifest.has_image else "example",
        category="label" if manifest.task == "multilabel" else "class",
        sides=list(side_bins(tally.sides)) if len(tally.sizes) > SIZES_SHOWN or tally.other_sizes else [],
        classes=classes,
        shown=classes if len(classes) <= CLASSES_SHOWN else [*classes[:half], *classes[-half:]],
        others=classes[half:-half] if len(classes) > CLASSES_SHOWN else [],
        largest=max((row.total for row in classes), default=0),
        smallest=min((row.total for row in classes), default=0),
        near=[(readable(copy.key), copy.split, readable(copy.kept), copy.keeper) for copy in near[:NEAR_SHOWN]],
        near_count=len(near),
        samples=list(samples(folder, manifest)) if manifest.has_image else [],
        features=additional,
        stored=list(manifest.features),
        most_named=FEATURES_NAMED,
    )
    (folder / FILE_NAME).write_text(content, encoding="utf-8")


def class_counts(manifest: Manifest) -> list[ClassCounts]:
    """Return the image counts of each class, in label order, or by descending size if there are many classes."""
    counts_by_class = {name: [split.classes[name] for split in manifest.splits.values()] for name in manifest.classes}
    rows = [ClassCounts(name, counts, sum(counts)) for name, counts in counts_by_class.items()]
    return rows if len(rows) <= CLASSES_SHOWN else sorted(rows, key=lambda row: -row.total)


def side_bins(sides: Mapping[int, int]) -> Iterator[tuple[str, int]]:
    """Yield the histogram of the images' shorter sides: the range of a bin, in pixels, and its number of images."""
    low, high = min(sides), max(sides)
    if high >= WIDE_RANGE * low:
        edges = [2**power for power in range(low.bit_length() - 1, high.bit_length() + 1)]
    else:
        least = (high - low + 1) / BINS
        step = next(step for power in range(6) for step in (10**power, 2 * 10**power, 5 * 10**power) if step >= least)
        edges = list(range(low // step * step, high + step + 1, step))
    for start, end in itertools.pairwise(edges):
        if start <= high:
            name = f"{start:,}–{end - 1:,}" if end - start > 1 else f"{start:,}"
            yield name, sum(count for side, count in sides.items() if start <= side < end)


def ratio_bins(folder: Path, manifest: Manifest) -> Iterator[tuple[str, int]]:
    """Yield the histogram of width by height of the first images of the training split, if they differ."""
    if not manifest.resize:
        return
    from slipway.serving.kinds import image_size  # imports NumPy

    counts: Counter[str] = Counter()
    for features in _first_examples(folder, manifest, MAX_RECORDS_READ):
        width, height = image_size(stored_parts(features)[0])
        counts[next(name for largest, name in RATIOS if width <= largest * height)] += 1
    yield from ((name, counts[name]) for _, name in RATIOS)


def samples(folder: Path, manifest: Manifest) -> Iterator[Sample]:
    """Yield images from the start of the first training shard, balanced across classes where possible."""
    classified = manifest.task == "classification"
    classes = len(manifest.classes) if classified else 1
    most = -(-SAMPLES // classes)
    by_label: dict[int, list[Sample]] = {}
    for features in _first_examples(folder, manifest, MAX_RECORDS_READ):
        enough = sum(map(len, by_label.values())) >= SAMPLES
        if enough and len(by_label) >= min(classes, SAMPLES):
            break
        image, key, label = stored_parts(features)
        if len(of_class := by_label.setdefault(int(label[0]) if classified else 0, [])) < most:
            of_class.append(
                Sample(
                    _inline(_seen(image, manifest)), label_text(manifest.task, manifest.classes, label), readable(key)
                )
            )
    # Of each class the first image, then of each the second, and so on.
    ranked = sorted((rank, label) for label, of_class in by_label.items() for rank in range(len(of_class)))[:SAMPLES]
    for index, rank in sorted((label, rank) for rank, label in ranked):
        yield by_label[index][rank]


def _seen(image: bytes, manifest: Manifest) -> bytes:
    """Return a stored image as the network sees it, as a PNG; as it is, if it cannot be decoded."""
    file = io.BytesIO()
    try:
        as_network_sees(image, manifest).save(file, "PNG")
    except OSError:  # data.check did not decode it
        return image
    return file.getvalue()


def label_text(task: TaskName, classes: Sequence[str], label: Sequence[bytes | float | int]) -> str:
    """Return a stored label as text: the class, the labels, or the target."""
    if task == "regression":
        return brief(float(label[0]))
    if task == "multilabel":
        names = [name for name, indicator in zip(classes, label, strict=True) if indicator]
        return ", ".join(names) or "no label"
    return classes[int(label[0])]


def additional_features(folder: Path, manifest: Manifest) -> list[AdditionalFeature]:
    """Return the additional features with their values in the first examples of the first training shard."""
    by_name = {name: AdditionalFeature(name, kind, [], []) for name, kind in manifest.features.items()}
    if not by_name:
        return []
    for features in _first_examples(folder, manifest, FEATURE_EXAMPLES):
        kept_of: dict[str, dict[str, bytes]] = {name: {} for name in by_name}
        for stored, value in features.items():
            key = stored.decode("utf-8", "replace")
            parents = itertools.accumulate(key.split("/")[:-1], "{}/{}".format)
            for name in kept_of.keys() & ({key} if key in by_name else set(parents)):
                kept_of[name][key] = value
        for name, feature in by_name.items():
            kept = kept_of[name]
            if feature.kind.startswith("image"):
                image_values = [image for value in kept.values() for image in values(value)[:1]]
                feature.images.extend(_inline(image) for image in image_values if isinstance(image, bytes))
            else:
                feature.texts.append("; ".join(_shown(key, name, value) for key, value in sorted(kept.items())))
    return list(by_name.values())


def _first_examples(folder: Path, manifest: Manifest, count: int) -> Iterator[dict[bytes, bytes]]:
    return itertools.islice(read_examples([folder / manifest.splits["train"].shards[0].file]), count)


def _shown(key: str, name: str, feature: bytes) -> str:
    """Format the values of a stored feature as a short text; nested features are prefixed with their path."""
    feature_values = values(feature)
    texts = [readable(value) if isinstance(value, bytes) else brief(value) for value in feature_values[:MAX_VALUES]]
    text = ", ".join(texts) + (", …" if len(feature_values) > MAX_VALUES else "")
    inner = key[len(name) + 1 :]
    text = text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"
    return f"{inner}: {text}" if inner else text


def _inline(image: bytes) -> str:
    """Return the image as a data: URI, scaled down if it is large."""
    encoding = "png" if image.startswith(b"\x89PNG") else "jpeg"
    if len(image) > LARGEST_INLINE:
        from PIL import Image

        with Image.open(io.BytesIO(image)) as opened:
            opened.draft("RGB", (THUMBNAIL, THUMBNAIL))
            small = opened.convert("RGB")
            small.thumbnail((THUMBNAIL, THUMBNAIL))
            buffer = io.BytesIO()
            small.save(buffer, "JPEG", quality=80)
        image, encoding = buffer.getvalue(), "jpeg"
    return page.data_uri(encoding, image)
