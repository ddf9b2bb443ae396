"""Conversion of values that pass through a pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

# A JSON object whose fields are known to the code that reads it.
JsonObject: TypeAlias = dict[str, Any]

# Pillow's limit of an image's pixels, above which it assumes a decompression bomb; no larger image is accepted.
MAX_PIXELS = 89_478_485

# What stands for a missing number in a cell of a table, in lower case; pandas writes and reads the same.
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))


def is_missing(text: str) -> bool:
    """Whether a cell of a table has no number."""
    return text.lower() in MISSING


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
