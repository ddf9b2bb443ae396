"""Conversion of values that pass through a pipeline."""

from __future__ import annotations

import ast
import contextlib
import datetime
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

# A JSON object whose fields are known to the code that reads it.
JsonObject: TypeAlias = dict[str, Any]

# Pillow's limit of an image's pixels, above which it assumes a decompression bomb; no larger image is accepted.
MAX_PIXELS = 89_478_485

# What every record has; a column with one of these names is stored as source_NAME.
RECORD_NAMES = ("image", "label", "key")
# An option among the arguments of a program; a negative number is none.
OPTION = re.compile(r"-+[A-Za-z]")

# The canonical truth values, which are those of Python and pandas.
TRUTHS = ("True", "False")
# A number without an exponent or leading zeros: its whole part, and its decimals without zeros at their end.
DECIMAL = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.([0-9]*[1-9])?0*)?")

# What stands for a missing number in a cell of a table, in lower case: of pandas, of Excel, and by hand.
# A text that Python reads as NaN, such as -nan, is missing, too.
MISSING = frozenset((
    "", "na", "n/a", "nan", "null", "none", "nat", "<na>", "#na", "#n/a", "#n/a n/a", "1.#ind", "-1.#ind",
    "1.#qnan", "-1.#qnan", "#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!", "-", ".", "?",
))  # fmt: skip


def stored_name(name: str) -> str:
    """Return the name under which a record has an additional feature; names that clash with ours get a prefix."""
    return f"source_{name}" if name in RECORD_NAMES else name


def is_missing(text: str) -> bool:
    """Whether a cell of a table has no number."""
    return text.lower() in MISSING


def text_of(value: object) -> str:
    """Return the text of a value in a cell, as pandas writes it: True, 1.0, 2026-11-24, 2026-11-24 10:30:00, 1.50."""
    if isinstance(value, datetime.datetime):
        text = value.isoformat(" ")
        return text.removesuffix(" 00:00:00")
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def canonical(text: str) -> str:
    """Return the one text of a truth value or a number that pandas, JSON, Arrow and R write differently: True, 1, 1.5.

    Other texts, such as 007, are returned as they are.
    """
    if match := DECIMAL.fullmatch(text):
        return f"{match[1]}.{match[2]}" if match[2] else match[1]
    return text.capitalize() if text.capitalize() in TRUTHS else text


def parts_of(text: str) -> list[str]:
    """Return the values of a cell with several: a list of JSON or Python, without gaps, or separated by spaces."""
    if not (text.startswith("[") and text.endswith("]")):
        return text.split()
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError):
            return [text_of(part) for part in read(text) if part is not None]
    return text[1:-1].replace(",", " ").split()  # an array of NumPy


def whole_numbers(value: Any) -> Any:
    """Return `value` with integral floats converted back to int: KFP passes all numbers in lists as floats."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    return value


def leaves(values: Mapping[str, object], before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield every value of nested mappings that is not a mapping or an empty one, with the keys that lead to it."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*before, name))
        else:
            yield (*before, name), value


def dotted(values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the `leaves` of nested mappings with their dotted names, such as "train.epochs"."""
    return ((".".join(keys), value) for keys, value in leaves(values))


def by_option(arguments: Sequence[str]) -> dict[str, str | int | float]:
    """Return a program's arguments by option, numbers as such; true is an option without a value.

    An argument without an option has its position as its name. Of an option that is given twice, the last one counts.
    """
    options: dict[str, str | int | float] = {}
    option = ""
    for position, argument in enumerate(arguments, 1):
        if OPTION.match(argument):
            name, equals, value = argument.lstrip("-").partition("=")
            options[name], option = number(value) if equals else True, "" if equals else name
        else:
            options[option or str(position)], option = number(argument), ""
    return options


def number(text: str) -> str | int | float:
    """Return the number that a text is, or the text."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            value: int | float = kind(text)
            return value if math.isfinite(value) else text
    return text


def spoken(values: Iterable[object]) -> str:
    """Return the values in words: "1, 2 or 4"."""
    *first, last = [str(value) for value in values]
    return f"{', '.join(first)} or {last}" if first else last


def write_metadata(*artifacts: Any) -> None:
    """Write files for metadata-only artifacts: KFP repeats a finished step if an output file is missing."""
    for artifact in artifacts:
        path = Path(artifact.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(artifact.metadata))
