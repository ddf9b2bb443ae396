"""Find inputs that alone predict the target, such as a copy of it: what the network learns is then useless."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from slipway.components.prepare_data.encoding.messages import all_values
from slipway.components.prepare_data.encoding.records import read_columns
from slipway.core.manifest import Manifest

# The training examples that are compared: fewer with many inputs.
MAX_EXAMPLES = 10_000
MAX_VALUES = 2_000_000
FEWEST_EXAMPLES = 50
# Of an input that does not predict the target in these, no others are compared.
FIRST_EXAMPLES = 1000
# Fewer examples outside the largest class, or fewer different targets, may be separated by chance.
FEWEST_OTHERS = 10
# Texts that predict the target must occur this often on average; a key predicts anything.
FEWEST_OF_CATEGORY = 5
CORRELATION = 0.9999
MAX_NAMED = 5
COMPARED = ("number", "integer", "category")

Value: TypeAlias = bytes | float | int


def leak_notes(folder: Path, manifest: Manifest) -> list[str]:
    """Return a note on the inputs that alone predict the class or the target, if there are any.

    Args:
        folder: The folder of the shards.
        manifest: The data set's manifest.
    """
    names = [name for name, each in manifest.inputs.items() if each.kind in COMPARED and not each.stored_shape]
    if not names or manifest.task == "multilabel":
        return []
    most = min(MAX_EXAMPLES, max(FEWEST_EXAMPLES, MAX_VALUES // len(names)))
    labels, columns = _read(folder, manifest, names, FIRST_EXAMPLES)
    suspects = [name for name in names if _is_suspect(columns[name], labels, manifest.inputs[name].kind, manifest.task)]
    if not suspects:
        return []
    labels, columns = _read(folder, manifest, suspects, most)
    others = len(labels) - max(Counter(labels).values(), default=0)
    if others < FEWEST_OTHERS:
        return []
    leaks = []
    for name, column in columns.items():
        is_category = manifest.inputs[name].kind == "category"
        if column == labels:
            leaks.append(f"{name} (equal to it)")
        elif _determines(column, labels) if is_category else _orders(column, labels, manifest.task):
            leaks.append(name)
    if not leaks:
        return []
    named = ", ".join(leaks[:MAX_NAMED]) + (f" and {len(leaks) - MAX_NAMED:,} more" if len(leaks) > MAX_NAMED else "")
    target = "target" if manifest.task == "regression" else "class"
    those = f"The input {named} alone predicts" if len(leaks) == 1 else f"Each of the inputs {named} alone predicts"
    return [
        f"{those} the {target} in all {len(labels):,} training examples compared. If it is not known when the model is "
        "used, exclude it: data.inputs names the inputs."
    ]


def _read(
    folder: Path, manifest: Manifest, names: Sequence[str], count: int
) -> tuple[list[Value], dict[str, list[Value]]]:
    """Return the labels and the inputs of the first training examples."""
    shards = (folder / shard.file for shard in manifest.splits["train"].shards)
    label, *columns = map(all_values, read_columns(shards, ["label", *names], count).values())
    return label, dict(zip(names, columns, strict=True))


def _is_suspect(column: Sequence[Value], labels: Sequence[Value], kind: str, task: str) -> bool:
    """Whether an input predicts the target in some examples, so that more must be compared."""
    if kind == "category":
        return len(set(zip(column, labels, strict=True))) == len(set(column))
    return (task == "regression" and _correlation(column, labels) is None) or _orders(column, labels, task)


def _determines(column: Sequence[Value], labels: Sequence[Value]) -> bool:
    """Whether all examples of each category have one label."""
    pairs, categories = set(zip(column, labels, strict=True)), set(column)
    return len(pairs) == len(categories) <= len(column) / FEWEST_OF_CATEGORY


def _orders(column: Sequence[Value], labels: Sequence[Value], task: str) -> bool:
    """Whether numbers are proportional to the targets, or each class has a range of numbers of its own.

    Missing ones, NaN, are not compared with targets; of a class, they are a range.
    """
    if task == "regression":
        found = _correlation(column, labels)
        return found is not None and found > CORRELATION
    column = [math.inf if value != value else value for value in column]
    pairs = set(zip(column, labels, strict=True))
    ranges = sum(1 for _ in itertools.groupby(label for _, label in sorted(pairs)))
    return len(pairs) == len(set(column)) and ranges == len(set(labels))


def _correlation(column: Sequence[Value], labels: Sequence[Value]) -> float | None:
    """Return the absolute correlation of numbers with targets; None if there are too few different ones."""
    import numpy as np

    found, targets = np.array(column, dtype=np.float64), np.array(labels, dtype=np.float64)
    given = ~np.isnan(found)
    found, targets = found[given], targets[given]
    if len(found) < FEWEST_OTHERS or not found.std() or not targets.std():
        return None
    return float(abs(np.corrcoef(found, targets)[0, 1]))
