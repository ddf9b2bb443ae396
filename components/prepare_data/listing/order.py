"""Splits in time (data.order_by): the earliest examples train, later ones validate, and the latest test.

What orders an example, a number or the days of its date, is stored beside the list of its part. When all parts are
listed, the bounds of the splits are chosen among all values, and the lists are written again as if the source had named
the splits. Equal values are in one split. The examples of a group of data.group_by have the value of its latest one.
Memory: 9 bytes for each example, and 24 more with groups.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.examples import SPLITS, Group
from slipway.components.prepare_data.listing.entries import Entries, read_blocks, write_block
from slipway.components.prepare_data.listing.parts import ORDER, OrderOf, PartList, pattern_match, sort_part
from slipway.components.prepare_data.listing.split import Fold
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.source import ListedRows, coded
from slipway.core import dates
from slipway.core.errors import UserError


def order_reader(settings: DataSettings) -> OrderOf | None:
    """Return the function that reads what orders each row, or None without data.order_by."""
    if settings.order_by is None:
        return None
    described = settings.features if isinstance(settings.features, Mapping) else {}
    kind = str(described.get(settings.order_column or "", ""))
    parts = Kind.parse(kind).order if kind.startswith("date") else "ymd"
    return functools.partial(_read, settings.order_by, is_pattern=settings.order_column is None, parts=parts)


def _read(order_by: str, batch: ListedRows, *, is_pattern: bool, parts: dates.Order) -> NDArray[np.void]:
    texts, index = batch.order or ((), np.zeros(0, np.int64))
    if is_pattern:
        if batch.keys is None:
            raise UserError(
                "The examples have no names in which data.order_by could be found.",
                setting="data.order_by",
                value=order_by,
                allowed="column:NAME",
                fix="--set data.order_by=column:NAME",
            )
        texts, index = coded(pattern_match("data.order_by", order_by, key).replace(b"_", b"-") for key in batch.keys)
    return order_values(texts, parts)[index]


def order_values(texts: Sequence[bytes], parts: dates.Order) -> NDArray[np.void]:
    """Return the values of texts, of the type `ORDER`: numbers, or the days since 1970 of dates with these `parts`."""
    import pyarrow  # which sources without tables do not need

    from slipway.components.prepare_data.encoding.texts import days_of

    strings = pyarrow.array([text.decode(errors="replace").strip() for text in texts], pyarrow.string())
    result = np.zeros(len(texts), ORDER)
    days = days_of(strings, parts)
    result["is_date"] = ~np.isnan(days)
    result["value"] = np.where(result["is_date"], days, [*map(_number, strings.to_pylist())])
    return result


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


@dataclass(frozen=True)
class Bounds:
    """Where splits begin: the first value of validation and of test, and the first that is not used (a later fold's).

    `horizon` is how long before the next split an example must be to be used.
    """

    validation: float
    test: float
    end: float
    horizon: float

    def splits(self, values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the index of the split of each value, and whether it is used."""
        split = np.searchsorted([self.validation, self.test], values, "right")
        following = np.array([self.validation, self.test, math.inf])[split]
        return split, (values < self.end) & (values + self.horizon <= following)


def bounds_of(values: NDArray[np.float64], settings: DataSettings, fold: Fold | None = None) -> Bounds:
    """Choose the bounds of the splits, so that their sizes are as near to data.split as equal values allow.

    The test splits of `fold.of` folds follow each other; each has 1 / (fold.of + 1) of the examples, as those of
    scikit-learn's TimeSeriesSplit, and is tested by a model of what is before it.

    Raises:
        UserError: There are too few different values.
    """
    different, counts = np.unique(values, return_counts=True)
    folds = fold.of if fold else 1
    if len(different) < folds + 2:
        raise UserError(
            f"data.order_by gives the examples {len(different)} different value{'s' * (len(different) != 1)}: train, "
            f"validation and {f'{folds} test splits' if fold else 'test'} need at least {folds + 2}.",
            setting="data.order_by",
            value=settings.order_by,
            allowed="a column, or a part of the keys, with more different numbers or dates",
            fix="--set data.order_by=null, to divide the examples at random",
        )
    before = np.cumsum(counts) - counts
    total, fractions = len(values), settings.split

    def nearest(target: float, low: int, high: int) -> int:
        return low + int(np.argmin(np.abs(before[low : high + 1] - target)))

    if fold is None:
        starts = [nearest(total * (1 - fractions.test), 2, len(different) - 1)]
    else:
        starts = [1]
        for left in range(folds, 0, -1):
            target = total - left * (total // (folds + 1))
            starts.append(nearest(target, max(starts[-1] + 1, 2), len(different) - left))
        starts = starts[1 + fold.number :]
    learned = fractions.train / (fractions.train + fractions.validation)
    validation = nearest(before[starts[0]] * learned, 1, starts[0] - 1)
    end = different[starts[1]] if len(starts) > 1 else math.inf
    return Bounds(float(different[validation]), float(different[starts[0]]), float(end), settings.horizon)


def divide_in_time(
    parts: Sequence[PartList], names: Mapping[Group, Group], settings: DataSettings, fold: Fold | None, item: str
) -> list[str]:
    """Divide the examples of listed parts among the splits; return sentences about them for the user.

    Args:
        parts: The lists, which are written again, with groups of the final names.
        names: The final names of the groups.
        settings: The user's settings.
        fold: The fold that is the test split; see `bounds_of`.
        item: What an example is called.

    Raises:
        UserError: The source defines splits, has numbers and dates, or too few different values.
    """
    _refuse_splits(names.values(), settings)
    orders = [np.fromfile(part.order, ORDER) for part in parts if part.order]
    everything = np.concatenate(orders) if orders else np.zeros(0, ORDER)
    if everything["is_date"].any() and not everything["is_date"].all():
        raise UserError(
            f"Some values of {_name(settings)} are numbers, and some are dates.",
            setting="data.order_by",
            value=settings.order_by,
            allowed="only numbers, or only dates",
            fix="write all as dates (2026-11-25); or --set data.order_by=null, to divide the examples at random",
        )
    values = everything["value"].copy()
    if settings.group_by is not None:
        values = _of_latest(np.concatenate([block.rows["rank"] for part in parts for block in _blocks(part)]), values)
    bounds = bounds_of(values, settings, fold)
    ends = np.cumsum([len(order) for order in orders])
    for part, of_part in zip(parts, np.split(values, ends[:-1]), strict=True):
        _rewrite(part, of_part, names, bounds)
    return _notes(values, bounds, settings, is_date=bool(everything["is_date"].any()), item=item)


def _refuse_splits(groups: Iterable[Group], settings: DataSettings) -> None:
    splits = {split for split, _ in groups} - {None}
    if not splits <= {"train"}:
        raise UserError(
            f"The source defines splits ({', '.join(sorted(map(str, splits)))}), so data.order_by cannot.",
            setting="data.order_by",
            value=settings.order_by,
            allowed="only for sources without splits",
            fix="--set data.order_by=null, to keep the source's splits; or remove these from the source",
        )


def _name(settings: DataSettings) -> str:
    return settings.order_column or f"data.order_by={settings.order_by}"


def _blocks(part: PartList) -> Iterable[Entries]:
    [path] = part.paths
    return read_blocks(path)


def _of_latest(ranks: NDArray[np.uint64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest value of each example's group, of which all examples have one rank."""
    different, group = np.unique(ranks, return_inverse=True)
    latest = np.full(len(different), -math.inf)
    np.maximum.at(latest, group, values)
    return latest[group]


def _rewrite(part: PartList, values: NDArray[np.float64], names: Mapping[Group, Group], bounds: Bounds) -> None:
    """Write a part's list with the splits of its entries, without those that are not used; sort it if it has keys."""
    labels = [names[group][1] for group in part.examples]
    counts: Counter[Group] = Counter()
    sizes: Counter[Group] = Counter()
    numbers: dict[int, int] = {}
    divided = part.paths[0].with_name(f"{part.paths[0].name}-divided")
    start = 0
    with divided.open("wb") as file:
        for block in _blocks(part):
            split, is_used = bounds.splits(values[start : start + len(block)])
            start += len(block)
            used = block.take(np.flatnonzero(is_used))
            codes, index = np.unique(used.rows["group"] * len(SPLITS) + split[is_used], return_inverse=True)
            used.rows["group"] = np.array([numbers.setdefault(code, len(numbers)) for code in codes.tolist()])[index]
            write_block(file, used)
            totals = [np.bincount(index, weights, len(codes)).tolist() for weights in (None, used.rows["size"])]
            for code, count, size in zip(codes.tolist(), *totals, strict=True):
                group = SPLITS[code % len(SPLITS)], labels[code // len(SPLITS)]
                counts[group] += count
                sizes[group] += int(size)
    divided.replace(part.paths[0])
    part.examples, part.bytes = counts, sizes
    if part.order is not None:
        part.order.unlink()
        part.order = None
    if not part.is_table:
        sort_part(part)


def _notes(
    values: NDArray[np.float64], bounds: Bounds, settings: DataSettings, *, is_date: bool, item: str
) -> list[str]:
    """Return sentences about the periods of the splits and the examples that are not used."""
    split, is_used = bounds.splits(values)

    def written(value: float) -> str:
        if not is_date:
            return f"{value:.15g}"
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=value)
        return moment.strftime("%Y-%m-%d" if value.is_integer() else "%Y-%m-%d %H:%M:%S")

    periods = []
    for number, name in enumerate(SPLITS):
        inside = values[(split == number) & is_used]
        if not len(inside):
            raise UserError(
                f"data.horizon leaves no {item} in the split {name}.",
                setting="data.horizon",
                value=settings.horizon,
                allowed="less than the time between the splits",
                fix="--set data.horizon=0, or larger fractions of the splits before the test split",
            )
        periods.append(f"{name} {written(inside.min())} to {written(inside.max())}")
    notes = [f"The splits are in the order of {_name(settings)}: {', '.join(periods)}."]
    later = values >= bounds.end
    if later.any():
        notes.append(f"{int(later.sum()):,} {item}s of later folds are not used.")
    near = int((~is_used & ~later).sum())
    if near:
        notes.append(f"{near:,} {item}s within data.horizon ({settings.horizon:g}) of the next split are not used.")
    return notes
