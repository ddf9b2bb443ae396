"""Build dataclasses from JSON or YAML data, checking every key and type.

Replaces pydantic, whose import alone takes longer than everything else in `slipway hardware`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import date
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Row = TypeVar("Row")


def build(kind: type[Row], values: Any, where: str) -> Row:
    """Build a `kind` (a dataclass) from a mapping. `where` names the location in errors.

    Raises:
        ValueError: A key is unknown or missing, or a value has the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} is not a mapping: {values!r}")
    name = f"{where} {values.get('name', '')}".rstrip()
    hints, required = _shape(cast(Any, kind))
    unknown, missing = set(values) - set(hints), required - set(values)
    if unknown or missing:
        raise ValueError(f"{name}: unknown keys {sorted(unknown)}, missing keys {sorted(missing)}")
    return kind(**{key: _value(hints[key], value, f"{name}, {key}") for key, value in values.items()})


@lru_cache(maxsize=32)
def _shape(kind: Any) -> tuple[dict[str, Any], set[str]]:
    """Return a dataclass's types by field, and its fields without a default."""
    hints = get_type_hints(kind)
    own = fields(kind)
    required = {field.name for field in own if field.default is MISSING and field.default_factory is MISSING}
    return {field.name: hints[field.name] for field in own}, required


def _value(expected: Any, value: Any, where: str) -> Any:
    """Convert `value` to `expected`: lists to tuples, ISO dates to `date`."""
    origin, arguments = get_origin(expected), get_args(expected)
    if is_dataclass(expected) and isinstance(expected, type):
        return build(expected, value, where)
    if origin in (Union, types.UnionType):
        inner = next(argument for argument in arguments if argument is not type(None))
        return None if value is None else _value(inner, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(arguments[0], item, where) for item in value)
    if origin is dict and isinstance(value, dict):
        return {_value(arguments[0], key, where): _value(arguments[1], item, where) for key, item in value.items()}
    if origin is Literal and value in arguments:
        return value
    if expected is float and type(value) in (int, float) and value >= 0:
        return float(value)
    if expected is date and isinstance(value, str):
        return date.fromisoformat(value)
    if (expected is int and type(value) is int and value >= 0) or (
        expected in (str, bool, date) and type(value) is expected
    ):
        return value
    raise ValueError(f"{where}: {value!r} is not {expected}")
