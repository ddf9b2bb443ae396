"""A table's columns as trees receive them: one for each number and category, with NaN for a missing number."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from slipway.core.errors import UserError
from slipway.core.manifest import Input, Manifest
from slipway.core.values import stored_name
from slipway.trainer.data.features import MAX_INDICATORS, Features
from slipway.trainer.data.images import as_it_is

ROWS_TOGETHER = 1024
# Prefix of a column's name in data.group_by.
COLUMN = "column:"
# How values of a column are stored, by its kind; others are text.
_GROUPS = {"number": tf.float32, "integer": tf.int64}


@dataclass(frozen=True)
class Table:
    """The rows of a split.

    Attributes:
        x: The columns, float32 [rows, columns].
        y: The classes' positions, or the standardized target, [rows].
        categories: The indices of columns that are categories.
        groups: The number of each row's group, [rows]; None without data.group_by.
        classes: The number of classes; 0 for a target.
    """

    x: NDArray[np.float32]
    y: NDArray[Any]
    categories: list[int]
    groups: NDArray[np.int64] | None
    classes: int


def columns(inputs: Any, manifest: Manifest) -> tf.Tensor:
    """Return a table's decoded inputs as columns, float32 [batch, columns].

    A number has one column, NaN if it is missing; a category one with its position, which is 0 if the training split
    does not have it; a date those of its features.
    """
    parts = []
    for name, feature in manifest.all_inputs.items():
        values = tf.cast(tf.convert_to_tensor(inputs[name]), tf.float32)
        values = tf.reshape(values, [tf.shape(values)[0], math.prod(values.shape[1:])])
        if feature.nullable:  # the last one says whether it is missing
            values = tf.where(values[:, -1:] > 0, tf.constant(np.nan, tf.float32), values[:, :-1])
        parts.append(values)
    return tf.concat(parts, axis=1)


def width(manifest: Manifest) -> int:
    """Return the number of `columns`."""
    return sum(map(_width, manifest.all_inputs.values()))


def matrix_width(manifest: Manifest) -> int:
    """Return the number of columns of `slipway.trainer.data.features.matrix`."""
    return sum(
        feature.values if feature.kind == "category" and feature.values <= MAX_INDICATORS else math.prod(feature.shape)
        for feature in manifest.all_inputs.values()
    )


def _width(feature: Input) -> int:
    return math.prod(feature.shape) - feature.nullable


def read(files: Sequence[Path], manifest: Manifest) -> Table:
    """Return the rows of a split's shards, `slipway.training.Data.files`.

    Raises:
        UserError: The data set has images or texts, or several labels for each row.
    """
    check(manifest)
    features, group = Features(manifest), _group(manifest)

    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        inputs, labels = features.parse(records)
        groups = next(iter(tf.io.parse_example(records, group).values())) if group else tf.zeros_like(labels)
        return columns(inputs, manifest), labels, groups

    batches = tf.data.TFRecordDataset([*map(str, files)]).batch(ROWS_TOGETHER).map(as_it_is(parse))
    x, y, groups = map(np.concatenate, zip(*batches.as_numpy_iterator(), strict=True))
    return Table(x, y, categories(manifest), _numbered(groups, manifest) if group else None, len(manifest.classes))


def categories(manifest: Manifest) -> list[int]:
    """Return the indices of the `columns` that are categories."""
    inputs = manifest.all_inputs.values()
    starts = np.cumsum([0, *map(_width, inputs)])[:-1].tolist()
    return [start for start, feature in zip(starts, inputs, strict=True) if feature.kind == "category"]


def check(manifest: Manifest) -> None:
    """Raise UserError if trees cannot be trained on a data set."""
    unsuitable = [name for name, feature in manifest.all_inputs.items() if feature.kind in ("image", "text")]
    if unsuitable:
        name = unsuitable[0]
        raise UserError(
            f"Trees are trained on numbers, categories and dates; {name} is {manifest.all_inputs[name].kind}.",
            setting="data.inputs",
            value=[*manifest.all_inputs],
            fix=f"leave {', '.join(unsuitable)} out of data.inputs",
        )
    if manifest.task == "multilabel":
        raise UserError(
            "Trees have one label for each row, not several.",
            setting="task",
            value=manifest.task,
            allowed="classification, regression",
            fix="slipway init FOLDER --table FILE --label COLUMN, for a network",
        )


def _group(manifest: Manifest) -> dict[str, tf.io.FixedLenFeature]:
    """Return how the group of a record, or the key that has it, is parsed; nothing without data.group_by."""
    rule = manifest.settings.get("group_by")
    if rule is None:
        return {}
    name = stored_name(str(rule).removeprefix(COLUMN)) if str(rule).startswith(COLUMN) else "key"
    kind = manifest.features.get(name, "text")
    if name != "key" and name not in manifest.features:
        raise UserError(
            f"The records have no feature {name}, which data.group_by names.",
            setting="data.group_by",
            value=rule,
            allowed=", ".join(manifest.features) or "no groups",
            fix="--set data.group_by=null",
        )
    return {name: tf.io.FixedLenFeature([], _GROUPS.get(kind, tf.string))}


def _numbered(groups: NDArray[Any], manifest: Manifest) -> NDArray[np.int64]:
    """Return the number of each row's group."""
    rule = str(manifest.settings["group_by"])
    if not rule.startswith(COLUMN):
        matches = (re.search(rule, key.decode("utf-8", "surrogateescape")) for key in groups)
        groups = np.array([match[1] if match else "" for match in matches])
    return np.unique(groups.astype(str), return_inverse=True)[1].astype(np.int64)
