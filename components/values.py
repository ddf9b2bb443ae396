"""Values as they come through a pipeline."""

from __future__ import annotations

from typing import Any


def whole_numbers(value: Any) -> Any:
    """`value` with every float that is whole as an int again: a pipeline carries all numbers in lists as floats."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    return value
