"""The columns of a data set on its statistics page: the values of each in every split, beside each other."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from slipway.components.prepare_data.encoding.inputs import InputStatistics
from slipway.components.prepare_data.encoding.messages import all_values
from slipway.components.prepare_data.encoding.records import read_sample
from slipway.components.prepare_data.encoding.subwords import by_frequency
from slipway.core.formatting import brief, interval, number
from slipway.core.manifest import Input, Manifest

if TYPE_CHECKING:
    from numpy.typing import NDArray

BINS = 12  # of a histogram; of categories, the most frequent of the first split
# Histograms are those of the first examples of each split: at most so many, and so many values in all.
MAX_EXAMPLES, MAX_VALUES = 2000, 300_000
EXPLAINED = 40  # up to so many columns, pointing at a histogram shows its bins
LABEL = "label"  # the name of the target in the records
HEIGHT = 12
COMMON_WORDS = 5  # of a text, named with their counts


class Histogram(NamedTuple):
    """A column in a split: the outline of its histogram, what pointing at it shows, and its statistics in words."""

    outline: str
    title: str
    text: str


class Column(NamedTuple):
    """A column on the page: its name, what it is, and its histogram in each split."""

    name: str
    kind: str
    splits: list[Histogram]


Statistics = Mapping[str, Mapping[str, InputStatistics]]
# The values of a column in a split: numbers, or bytes.
Sample: TypeAlias = "NDArray[Any]"


def columns(folder: Path, manifest: Manifest, statistics: Statistics) -> tuple[list[Column], int]:
    """Return the target, if it is a number, and the inputs beside the image; and how many examples of a split the
    histograms have, 0 for all.

    Args:
        folder: The folder of the shards.
        manifest: The data set's manifest.
        statistics: The statistics of each split's inputs and target.
    """
    target = {LABEL: manifest.target} if manifest.target else {}
    chosen = {**target, **{name: column for name, column in manifest.inputs.items() if column.kind != "image"}}
    if not chosen:
        return [], 0
    most = max(1, min(MAX_EXAMPLES, MAX_VALUES // (len(chosen) * len(manifest.splits))))
    import numpy as np

    counts_read, samples = dict[str, int](), dict[str, dict[str, Sample]]()
    for split in manifest.splits:
        counts_read[split], samples[split] = _sample(folder, manifest, split, list(chosen), most)
    is_whole = all(count == manifest.splits[split].examples for split, count in counts_read.items())
    shown = []
    for name, about in chosen.items():
        sampled = [samples[split][name] for split in manifest.splits]
        counts, bins = _histograms(about, sampled)
        texts = [_words(about, statistics[split].get(name)) for split in manifest.splits]
        histograms = []
        for split_counts, text in zip(counts, texts, strict=True):
            pairs = (f"{bin_text}: {count:,}" for bin_text, count in zip(bins, split_counts, strict=True) if count)
            title = "\n".join(pairs) if len(chosen) <= EXPLAINED else ""
            histograms.append(Histogram(outline(split_counts), title, text))
        different = f", {'' if is_whole else 'at least '}{len(np.unique(np.concatenate(sampled))):,} different"
        size = f"[{','.join(map(str, about.stored_shape))}]" if about.stored_shape else ""
        shown.append(Column(manifest.target_name if name == LABEL else name, about.kind + size + different, histograms))
    return shown, 0 if is_whole else max(counts_read.values())


def _sample(
    folder: Path, manifest: Manifest, split: str, names: Sequence[str], most: int
) -> tuple[int, dict[str, Sample]]:
    """Return the number of the first examples of a split that are read, and their values without missing numbers."""
    import numpy as np

    shards = (folder / shard.file for shard in manifest.splits[split].shards)
    samples, count = {}, 0
    for name, features in read_sample(shards, names, most).items():
        feature_values, count = all_values(features), len(features)
        is_text = isinstance(feature_values[0], bytes)
        column = np.array(feature_values, object if is_text else np.float64)
        samples[name] = column if is_text else column[np.isfinite(column)]
    return count, samples


def _histograms(about: Input, sampled: Sequence[Sample]) -> tuple[list[list[int]], list[str]]:
    """Return the counts of each split's values in bins, and the bins: of dates by day, of texts by number of words."""
    if about.kind == "category":
        return _categories(sampled)
    if about.kind in ("number", "integer"):
        return _bins(sampled)
    import numpy as np
    import pyarrow

    from slipway.components.prepare_data.encoding.texts import days_of, words_of

    texts = [pyarrow.array([text.decode("utf-8", "replace") for text in cells], pyarrow.string()) for cells in sampled]
    if about.kind == "date":
        days = [days_of(column, about.order) for column in texts]
        return _bins([split_days[np.isfinite(split_days)] for split_days in days], named=_days)
    return _bins([words_of(column).value_lengths().to_numpy() for column in texts], named=_numbers_of_words)


def _days(low: float, high: float) -> str:
    return f"{_day(low)} to {_day(high)}"


def _day(days: float) -> str:
    return (date(1970, 1, 1) + timedelta(days=math.floor(days))).isoformat()


def _numbers_of_words(low: float, high: float) -> str:
    return f"{interval(low, high, digits=3)} words"


def _bins(
    sampled: Sequence[Sample], named: Callable[[float, float], str] = lambda low, high: interval(low, high, digits=3)
) -> tuple[list[list[int]], list[str]]:
    """Return the counts of each split's numbers in bins between the smallest and the largest of all, and the bins."""
    import numpy as np

    everything = np.concatenate([np.asarray(sample, np.float64) for sample in sampled])
    if not len(everything):
        return [[] for _ in sampled], []
    edges = np.histogram_bin_edges(everything, BINS)
    counts = [np.histogram(np.asarray(sample, np.float64), edges)[0].tolist() for sample in sampled]
    return counts, [named(low, high) for low, high in itertools.pairwise(edges.tolist())]


def _categories(sampled: Sequence[Sample]) -> tuple[list[list[int]], list[str]]:
    """Return the counts of the first split's most frequent categories in each split, and their names."""
    counters = [Counter(sample) for sample in sampled]
    common = [name for name, _ in sorted(counters[0].items(), key=lambda item: (-item[1], item[0]))[:BINS]]
    names = [name.decode("utf-8", "replace") or "missing" if isinstance(name, bytes) else str(name) for name in common]
    return [[counter[name] for name in common] for counter in counters], names


def outline(counts: Sequence[int]) -> str:
    """Return the path of a histogram's bars, 3 units wide each and at most `HEIGHT` high; "" without a value."""
    largest = max(counts, default=0)
    if not largest:
        return ""
    path, before = f"M0 {HEIGHT}", 0.0
    for count in counts:
        height = round(HEIGHT * count / largest, 1) or (0.4 if count else 0.0)
        path += f"v{before - height:.3g}h3" if height != before else "h3"
        before = height
    return f"{path}v{before:.3g}z"


def _words(about: Input, stats: InputStatistics | None) -> str:
    """Return the statistics of a column in a split as people say them."""
    if stats is None or not stats.count:
        return f"{stats.missing:,} missing" if stats and stats.missing else "no values"
    parts = list(_OF.get(about.kind, _of_numbers)(stats))
    return "; ".join([*parts, f"{stats.missing:,} missing"] if stats.missing else parts)


def _of_numbers(stats: InputStatistics) -> Iterator[str]:
    if stats.minimum is not None and stats.maximum is not None:
        constant = stats.minimum == stats.maximum
        yield f"always {brief(stats.minimum)}" if constant else f"{brief(stats.minimum)} to {brief(stats.maximum)}"
    if len(stats.sums) == len(stats.squares) == 1:
        yield f"mean {number(stats.means[0], digits=3)} ± {number(stats.deviations[0], digits=3)}"


def _of_categories(stats: InputStatistics) -> Iterator[str]:
    categories = {name: count for name, count in stats.categories.items() if name}
    if categories:
        name, count = min(categories.items(), key=lambda item: (-item[1], item[0]))
        yield f"mostly {name} ({count / stats.count:.0%})" if len(categories) > 1 else f"always {name}"
    if empty := stats.categories.get("", 0):
        yield f"{empty:,} missing"


def _of_dates(stats: InputStatistics) -> Iterator[str]:
    if stats.minimum is not None and stats.maximum is not None:
        yield _days(stats.minimum, stats.maximum)


def _of_texts(stats: InputStatistics) -> Iterator[str]:
    common = by_frequency(stats.categories)[:COMMON_WORDS]
    yield f"{len(stats.categories):,} different words: " + ", ".join(f"{word} ({count:,})" for word, count in common)


_OF = {"category": _of_categories, "date": _of_dates, "text": _of_texts}
