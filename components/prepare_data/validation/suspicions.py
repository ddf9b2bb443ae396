"""What suggests that a split flatters: names of columns and files, and examples that nearly equal each other."""

from __future__ import annotations

import contextlib
import io
import math
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from slipway.components.prepare_data.encoding.messages import all_values
from slipway.components.prepare_data.encoding.messages import values as values_of
from slipway.components.prepare_data.encoding.records import ShardFile, read_sample
from slipway.components.prepare_data.examples import SPLITS
from slipway.components.prepare_data.validation import input_scores
from slipway.components.prepare_data.validation.input_scores import Value
from slipway.components.prepare_data.validation.quick_model import (
    Column,
    Floats,
    Integers,
    Sample,
    squared_distances,
)
from slipway.components.prepare_data.validation.thumbnails import PIXELS, SIDE, thumbnail
from slipway.core.dates import PATTERNS
from slipway.core.manifest import Input, Manifest

# The examples that are compared.
MAX_EXAMPLES = 1500
# The last words of the names of columns whose values name what several examples have in common, and of times.
GROUP_WORD = re.compile(
    "(id|uuid|guid|nr|no|num|number|code|key|ref|hash|mrn|ssn|email|customer|cust|client|user|username|patient|subject|"
    "person|participant|member|account|acct|household|family|session|visit|device|machine|sensor|engine|unit|vehicle|"
    "driver|batch|lot|specimen|sample|case|group|cluster|fold|source|file|filename|video|clip|recording|photo|scene|"
    "speaker|author|reviewer|donor|animal|plate|slide|well|site|plot|track|trip|order|hospital|clinic|school|scanner|"
    "camera|station|farm|employee|emp|student|player)(s|id)?"
)
TIME_WORD = re.compile("year|yr|month|quarter|week|date|datetime|timestamp|epoch|season|ts")
# Columns of numbers that are called so alone, are more often durations, unless most values occur once.
DURATION_WORD = re.compile("day|time|period|tick")
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# Texts such as P-0017, cust_3 and hexadecimal digits.
CODE = re.compile(rb"[A-Za-z]{0,12}[-_#: ]?\d{1,12}[A-Za-z]?|[0-9a-f-]{8,}", re.IGNORECASE)
# Groups have so many examples on average, and there are at least so many.
MIN_GROUP, MIN_GROUPS = 1.3, 8
# Two examples are nearly equal if they are nearer than a part of the distance to the tenth neighbor: at most MAX_NEAR,
# and so near that few are by chance, which depends on the number of dimensions.
MAX_NEAR, NEIGHBORS, CHANCE = 0.6, 10, 0.02
# The name of a file without its last number.
SERIES = re.compile(r"^(.*?)[-_ .]*\d+[a-zA-Z]?$")
TEXT_COLUMNS = 32
# The kinds of features that are compared.
COMPARABLE = re.compile(r"number|integer|category|text|date(_...)?")
MIN_TIMES = 10
# The least fraction of examples that nearly equal another one.
MIN_NEAR = 0.15
# What groups images, as sentences name it.
SERIES_OF_NAMES, NEAR_DUPLICATES = "series of file names", "look"


@dataclass(frozen=True)
class Examples:
    """A sample of the examples of a data set.

    Attributes:
        manifest: The data set's manifest.
        keys: Their keys.
        labels: The index of the class, or the target, of each.
        splits: The index of the split of each.
        columns: The values of their features of one value, by name.
    """

    manifest: Manifest
    keys: list[bytes]
    labels: Floats
    splits: Integers
    columns: Mapping[str, list[Value]]

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs that are compared."""
        return [name for name in self.manifest.inputs if name in self.columns]

    @property
    def metric(self) -> str:
        """What the quick model is measured by."""
        return "R²" if self.manifest.task == "regression" else "AUC"

    def take(self, rows: Integers) -> Examples:
        """Return these examples."""
        index = rows.tolist()
        columns = {name: [values[row] for row in index] for name, values in self.columns.items()}
        keys = [self.keys[row] for row in index]
        return Examples(self.manifest, keys, self.labels[rows], self.splits[rows], columns)


def read_examples_of(shards: Mapping[str, Sequence[ShardFile]], manifest: Manifest) -> Examples:
    """Read a sample of all splits, in proportion to their sizes; of the features, those that all examples have."""
    names = [name for name, kind in manifest.features.items() if COMPARABLE.fullmatch(kind)]
    try:
        columns, splits = _columns(shards, manifest, names)
    except KeyError:  # records need not have a feature that is no input
        columns, splits = _columns(shards, manifest, [name for name in names if name in manifest.inputs])
    keys, labels = cast("list[bytes]", columns.pop("key")), np.array(columns.pop("label"), np.float64)
    whole = {name: values for name, values in columns.items() if len(values) == len(keys)}
    return Examples(manifest, keys, labels, np.array(splits), whole)


def _columns(
    shards: Mapping[str, Sequence[ShardFile]], manifest: Manifest, names: Sequence[str]
) -> tuple[dict[str, list[Value]], list[int]]:
    """Return the values of the keys, the labels and these features, and the index of each example's split.

    Raises:
        KeyError: An example does not have one of them.
    """
    total = sum(split.examples for split in manifest.splits.values())
    columns: dict[str, list[Value]] = {name: [] for name in ("key", "label", *names)}
    splits: list[int] = []
    for split, files in shards.items():
        count = -(-manifest.splits[split].examples * MAX_EXAMPLES // max(total, MAX_EXAMPLES))
        for name, features in read_sample(files, columns, count).items():
            columns[name] += all_values(features)
        splits += [SPLITS.index(split)] * (len(columns["key"]) - len(splits))
    return columns, splits


def sample_of(examples: Examples, shards: Mapping[str, Sequence[ShardFile]]) -> Sample:
    """Return the inputs of the network, as the quick model sees them: of a table, one for each of the network's."""
    manifest = examples.manifest
    inputs = [_input(examples.columns[name], manifest.inputs[name]) for name in examples.inputs]
    if manifest.has_image:
        inputs.append(Column("block", _thumbnails(shards, examples)))
    task: Literal["classification", "regression"] = "regression" if manifest.task == "regression" else "classification"
    return Sample(inputs, examples.labels, task)


def _input(values: Sequence[Value], feature: Input) -> Column:
    if feature.kind in ("number", "integer"):
        return Column("number", np.array(values, np.float64))
    texts = [value if isinstance(value, bytes) else str(value).encode() for value in values]
    if feature.kind == "date":
        return Column("number", input_scores.days(texts, feature.order))
    if feature.kind == "text":
        counts = np.zeros((len(texts), TEXT_COLUMNS))
        for row, text in enumerate(texts):
            for word in text.lower().split():
                counts[row, zlib.crc32(word) % TEXT_COLUMNS] += 1
        return Column("block", counts)
    return Column("category", codes_of(texts).astype(np.float64))


def _thumbnails(shards: Mapping[str, Sequence[ShardFile]], examples: Examples) -> Floats:
    """Return the examples' images as gray thumbnails, [examples, pixels]; of one that is not decodable, zeros."""
    from PIL import Image

    result = np.zeros((len(examples.keys), PIXELS))
    row = 0
    for split, files in shards.items():
        count = int((examples.splits == SPLITS.index(split)).sum())
        for feature in read_sample(files, ["image"], count)["image"]:
            encoded = cast("bytes", values_of(feature)[0])
            with contextlib.suppress(OSError), Image.open(io.BytesIO(encoded)) as opened:
                opened.draft("L", (2 * SIDE, 2 * SIDE))
                result[row] = np.frombuffer(thumbnail(opened), np.uint8)
            row += 1
    return result


def suspected_groups(examples: Examples, alike: Collection[Sequence[bytes]]) -> dict[str, Integers]:
    """Return the group of each example, by the name of what groups them: columns, series of names, near duplicates."""
    manifest = examples.manifest
    sources = {name: manifest.sources.get(name, name) for name in examples.columns}
    candidates: dict[str, Sequence[Value]] = {
        sources[name]: values for name, values in examples.columns.items() if _names_groups(sources[name], values)
    }
    if manifest.has_image:
        candidates[SERIES_OF_NAMES] = [_series(key) for key in examples.keys]
        groups = {key: b"%d" % number for number, keys in enumerate(alike) for key in keys}
        candidates[NEAR_DUPLICATES] = [groups.get(key, key) for key in examples.keys]
    result = {}
    for name, values in candidates.items():
        codes = codes_of([key if value == b"" else value for value, key in zip(values, examples.keys, strict=True)])
        counts = np.bincount(codes)
        classes = len({*examples.labels.tolist()}) if manifest.task == "classification" else 0
        if len(counts) >= max(MIN_GROUPS, 2 * classes) and len(codes) >= MIN_GROUP * len(counts):
            result[name] = codes
    return result


def _names_groups(name: str, values: Sequence[Value]) -> bool:
    """Return whether a column's values are called, or written, like what several examples have in common."""
    if any(isinstance(value, float) and not (value.is_integer() or math.isnan(value)) for value in values):
        return False
    texts = [value for value in {*values} if isinstance(value, bytes) and value]
    if texts and any(re.fullmatch(pattern, texts[0].decode(errors="replace")) for pattern in PATTERNS.values()):
        return False
    if GROUP_WORD.fullmatch(_last_word(name)):
        return True
    return bool(texts) and sum(bool(CODE.fullmatch(text)) for text in texts) > 0.9 * len(texts)


def _last_word(name: str) -> str:
    words = WORD.findall(name)
    return words[-1].lower() if words else ""


def _series(key: bytes) -> bytes:
    folder, _, name = key.decode(errors="replace").rpartition("/")
    match = SERIES.match(name.rpartition(".")[0] or name)
    return f"{folder}/{match[1]}".encode() if match and match[1] else key


def suspected_times(examples: Examples) -> dict[str, Floats]:
    """Return what orders the examples in time, by column."""
    result = {}
    for name, values in examples.columns.items():
        source = examples.manifest.sources.get(name, name)
        if isinstance(values[0], bytes):
            candidates = [input_scores.days(values, order) for order in PATTERNS]
        else:
            candidates = [np.array(values, np.float64)] if _names_times(source, values) else []
        times = next((times for times in candidates if not np.isnan(times).any()), np.zeros(0))
        if len(np.unique(times)) >= MIN_TIMES:
            result[source] = times
    return result


def _names_times(name: str, values: Sequence[Value]) -> bool:
    """Return whether a column's numbers are called like times."""
    is_time = DURATION_WORD.fullmatch(name.lower()) and len({*values}) > len(values) / 2
    return bool(is_time or TIME_WORD.fullmatch(_last_word(name)))


def nearly_equal(sample: Sample) -> Integers | None:
    """Return the group of each example, of those that nearly equal each other; None if few do, or nearly all."""
    numbers = [np.nan_to_num(column.values) for column in sample.inputs if column.kind == "number"]
    if not numbers:
        return None
    points = np.column_stack(numbers)
    points = (points - points.mean(axis=0)) / (points.std(axis=0) + 1e-12)
    distances = squared_distances(points)
    for column in sample.inputs:
        if column.kind == "category":
            distances[column.values[:, None] != column.values[None]] += 1
    np.fill_diagonal(distances, np.inf)
    tenth = np.partition(distances, NEIGHBORS - 1, axis=1)[:, NEIGHBORS - 1]
    variances = np.linalg.eigvalsh(np.atleast_2d(np.cov(points.T)))
    dimensions = variances.sum() ** 2 / max((variances**2).sum(), 1e-12)
    part = min(MAX_NEAR, CHANCE ** (1 / max(dimensions, 1e-12)))
    near = distances < part**2 * np.minimum(tenth[:, None], tenth[None])
    if near.any(axis=1).mean() < MIN_NEAR:
        return None
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    _, codes = connected_components(coo_array(near), directed=False)
    return None if np.bincount(codes).max() > len(codes) / 4 else cast("Integers", codes.astype(np.int64))


def codes_of(values: Sequence[Value]) -> Integers:
    """Return the index of each value among the different ones."""
    numbers: dict[Value, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)
