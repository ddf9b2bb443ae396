"""Slices of the test split (`evaluate.slices`): which examples belong to each, before anything is predicted."""

from __future__ import annotations

import itertools
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.measured import Batch, Mask
from slipway.core.errors import UserError, nearest
from slipway.core.formatting import brief
from slipway.core.manifest import Manifest
from slipway.serving.kinds import image_size
from slipway.trainer.engines import builder
from slipway.trainer.hooks import FUNCTION_PATTERN

SETTING = "evaluate.slices"
CONTRACT = "a function of an example's inputs by name, a dict, that returns the name of its slice, or None for none"
# A column with more values has a slice for each of the most frequent ones; numbers have one for each quarter.
MAX_VALUES = 20
SIZES = ("width", "height")  # of the image, in pixels
OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
CONDITION = re.compile(rf"\s*(.+?)\s*({'|'.join(OPERATORS)})\s*(.+?)\s*")


@dataclass(frozen=True)
class Slice:
    """A part of the split: its name, and whether each example belongs to it, [examples]."""

    name: str
    mask: Mask


def find(settings: Sequence[str], data: Manifest, read: Callable[[], Iterator[Batch]]) -> list[Slice]:
    """Return the slices that the settings name, of which each has an example.

    Args:
        settings: `evaluate.slices`.
        data: The data set's manifest.
        read: Yields the split's examples in batches, in order.

    Raises:
        UserError: A column does not exist or has no single value; a condition compares a column with another kind of
            value; a function cannot be imported or fails.
    """
    readers = {text: _reader(text, data) for text in settings}
    if not readers:
        return []
    arrays: dict[str, list[NDArray[Any]]] = {text: [] for text in readers}
    for batch in read():
        for text, values_of in readers.items():
            arrays[text].append(values_of(batch))
    slices: dict[str, Slice] = {}
    for text, parts in arrays.items():
        for part in _slices(text, np.concatenate(parts)):
            copies = itertools.count(2)
            name = part.name
            while name in slices:  # such as those of a function that returns 1 and "1"
                name = f"{part.name} ({next(copies)})"
            if part.mask.any():
                slices[name] = replace(part, name=name)
    return list(slices.values())


def check(columns: Sequence[str], data: Manifest) -> None:
    """Check columns, and conditions on columns; raises as `find`."""
    for text in columns:
        _reader(text, data)


def _reader(text: str, data: Manifest) -> Callable[[Batch], NDArray[Any]]:
    """Return the function from a batch to what a setting is about, [batch]: values, booleans, or names or None."""
    is_column = text in data.inputs  # whose name may look like a function or a condition
    if re.fullmatch(FUNCTION_PATTERN, text) and not is_column:
        return _function(text, data)
    condition = None if is_column else CONDITION.fullmatch(text)
    name = condition[1] if condition else text
    values_of = _column(name, data)
    if condition is None:
        return values_of
    compare, limit = OPERATORS[condition[2]], condition[3].strip("'\"")
    if name not in SIZES and data.inputs[name].kind == "category":
        return lambda batch: np.array([bool(compare(value, limit)) for value in values_of(batch)])
    try:
        number = float(limit)
    except ValueError:
        raise UserError(
            f"{limit!r} is not a number, as the column {name} has.", setting=SETTING, value=text, allowed=f"{name}>1.5"
        ) from None
    return lambda batch: np.asarray(compare(values_of(batch), number), bool)


def _column(name: str, data: Manifest) -> Callable[[Batch], NDArray[Any]]:
    """Return the function from a batch to the values of a column, or to a side of the images."""
    about = data.inputs.get(name)
    if about is None and name in SIZES and data.has_image:
        side = SIZES.index(name)
        images = data.signature["image"]
        return lambda batch: np.array([image_size(image)[side] for image in batch.features[images].numpy()])
    names = [
        column
        for column, data_input in data.inputs.items()
        if data_input.kind != "image" and not data_input.stored_shape
    ]
    names += SIZES if data.has_image else ()
    if about is None or name not in names:
        near = nearest(name, names)
        raise UserError(
            f"The data set {data.name} has no column {name} of one value per example.",
            setting=SETTING,
            value=name,
            allowed=f"{', '.join(names) or 'module:function'}; a condition such as {names[0] if names else 'x'}>1; "
            "or module:function",
            nearest=near,
            fix=f"--set {SETTING}='[{near}]'" if near else None,
        )
    stored = data.signature[name]
    if about.kind == "category":
        return lambda batch: np.array(
            [value.decode(errors="replace") for value in batch.features[stored].numpy()], object
        )
    return lambda batch: batch.features[stored].numpy()


def _function(text: str, data: Manifest) -> Callable[[Batch], NDArray[Any]]:
    """Return the function from a batch to the names that the user's function returns for its examples."""
    called = builder.load(text, SETTING, CONTRACT)

    def named(batch: Batch) -> NDArray[Any]:
        features = {name: batch.features[key].numpy() for name, key in data.signature.items()}
        names = np.empty(len(batch.keys), object)
        for index in range(len(batch.keys)):
            try:
                with builder.user_code():
                    names[index] = called({name: values[index] for name, values in features.items()})
            except Exception as error:
                raise UserError(
                    f"The function {text} {builder.what_happened(error)}",
                    setting=SETTING,
                    value=text,
                    allowed=CONTRACT,
                    fix=f"fix the function; it was called with the example {batch.key(index)}",
                ) from error
        return names

    return named


def _distinct(edges: Sequence[float]) -> list[str]:
    """Format different numbers with as few digits as distinguish them."""
    texts, digits = [brief(edge) for edge in edges], 4
    while len(set(texts)) < len(edges):
        digits += 1
        texts = [f"{edge:,.{digits}g}" for edge in edges]
    return texts


def _slices(text: str, values: NDArray[Any]) -> Iterator[Slice]:
    """Yield the slices of a setting from the values of all examples."""
    if values.dtype == bool:
        yield Slice(text, values)
    elif values.dtype.kind == "f":
        known = values[np.isfinite(values)]
        edges = np.unique(np.quantile(known, [0, 0.25, 0.5, 0.75, 1])).tolist() if len(known) else []
        shown = _distinct(edges)
        for index in range(len(edges) - 1):
            is_last = index == len(edges) - 2
            below = values <= edges[index + 1] if is_last else values < edges[index + 1]
            yield Slice(f"{text} {shown[index]} to {shown[index + 1]}", (values >= edges[index]) & below)
        yield Slice(f"{text} missing", np.isnan(values))
    else:
        for value, _ in Counter(values[values != None].tolist()).most_common(MAX_VALUES):  # noqa: E711
            yield Slice(f"{text}={value}", np.asarray(values == value, bool))
