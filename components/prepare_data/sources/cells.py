"""The cells of a CSV file: the kinds of its columns, missing values, and labels of each task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.messages import bytes_feature
from slipway.components.prepare_data.sources.images import is_image
from slipway.components.prepare_data.sources.source import LABEL_SEPARATOR, Unusable
from slipway.core.errors import UserError
from slipway.core.manifest import TaskName

# Separates the names in a label cell of the task multilabel.
SEPARATOR = "|"
# What stands for a missing number, in lower case; pandas writes and reads the same.
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
# A column with more different texts than this is a key or free text rather than a category, unless it is declared.
MOST_INFERRED = 1000


class NotANumber(ValueError):
    """A label of the task regression that is text."""


def infer_kinds(
    rows: Iterable[tuple[int, list[str]]], places: Mapping[str, int], mistake: Callable[[str, str], UserError]
) -> dict[str, Kind]:
    """Infer the kinds of columns from all rows: number if every cell is a number or missing, else category.

    Args:
        rows: The rows, without the header, each with its line.
        places: The position of each column.
        mistake: Returns the error with a message and a fix.

    Raises:
        UserError: A column is neither.
    """
    numeric = dict.fromkeys(places, True)
    some = dict.fromkeys(places, False)
    texts: dict[str, set[str]] = {name: set() for name in places}
    for _, row in rows:
        for name, place in places.items():
            text = row[place].strip()
            if numeric[name] and not is_missing(text):
                some[name] = True
                numeric[name] = is_number(text)
            if len(texts[name]) <= MOST_INFERRED:
                texts[name].add(text)
    found = {}
    for name in places:
        if numeric[name] and some[name]:
            found[name] = Kind("number")
            continue
        given = texts[name] - {""}
        if given and all(is_image(text.encode()) for text in given):
            raise mistake(
                f"The column {name} has paths of images.", f"--set data.image={name}, or name the inputs: data.inputs"
            )
        if len(texts[name]) > MOST_INFERRED:
            raise mistake(
                f"The column {name} has more than {MOST_INFERRED:,} different texts; a category has fewer.",
                f"name the inputs without it, --set 'data.inputs=[COLUMN, …]', or --set data.features.{name}=category",
            )
        found[name] = Kind("category")
    return found


def is_missing(text: str) -> bool:
    """Whether a cell has no number."""
    return text.lower() in MISSING


def is_number(text: str) -> bool:
    """Whether a cell is a number, finite or not."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def label_cell(task: TaskName, text: str, name: str) -> tuple[str, bytes | None]:
    """Return the label of a listed example, and the Feature of a label that is not one class.

    Args:
        task: What is learned.
        text: The cell.
        name: The column.

    Raises:
        Unusable: A target is missing or not finite, or a name is not printable.
        NotANumber: A target is text.
    """
    if task == "regression":
        if not is_missing(text) and not is_number(text):
            raise NotANumber
        target = math.nan if is_missing(text) else float(text)
        try:
            feature = Kind("number").encode(target)
        except Unusable:
            target = math.inf
        if not math.isfinite(target):
            raise Unusable(f"its target in the column {name} is {text or 'empty'}, not a finite number")
        return "", feature
    if task == "multilabel":
        names = sorted({part.strip() for part in text.split(SEPARATOR)} - {""})
        return LABEL_SEPARATOR.join(names), bytes_feature(part.encode() for part in names)
    return text, None
