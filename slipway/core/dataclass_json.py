"""Dataclasses as JSON: written, and read with a check of the type of every value.

For files that light commands read: importing pydantic, which reads the settings, takes longer than the rest of such a
command.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")


def read(kind: type[Kind], content: bytes) -> Kind:
    """Return the instance of a dataclass that JSON describes.

    The types of fields are str, int, float, bool, datetime, Literal, Any, dataclasses, lists and dicts of these, and
    any of them or None.

    Raises:
        ValueError: It is not JSON, a key is unknown or missing, or a value has another type.
    """
    try:
        instance: Kind = _typed(kind, json.loads(content))
    except (RecursionError, TypeError) as error:  # nested too deep; a missing key
        raise ValueError(str(error)) from None
    return instance


def text(value: object) -> str:
    """Return `plain(value)` as JSON on several lines."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False)


def plain(value: Any) -> Any:
    """Return dataclasses, or values with dataclasses in them, as values of JSON; None for NaN and infinities."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def _types(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name."""
    return get_type_hints(kind)


def _typed(kind: Any, value: Any) -> Any:
    """Return a value of JSON as one of type `kind`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (other,) = (argument for argument in arguments if argument is not NoneType)
        return None if value is None else _typed(other, value)
    if origin is list and isinstance(value, list):
        return [_typed(arguments[0], item) for item in value]
    if origin is dict and isinstance(value, dict):
        return {key: _typed(arguments[1], item) for key, item in value.items()}
    if is_dataclass(kind) and isinstance(value, dict):
        types = _types(kind)  # type: ignore[arg-type]
        if unknown := value.keys() - types.keys():
            raise ValueError(f"{', '.join(sorted(unknown))}: unknown in {kind}")
        return kind(**{name: _typed(types[name], item) for name, item in value.items()})  # type: ignore[operator]
    if kind is datetime and isinstance(value, str):
        return datetime.fromisoformat(value)
    if kind is float and type(value) is int:
        return float(value)
    if kind is Any or type(value) is kind or (origin is Literal and value in arguments):
        return value
    raise ValueError(f"{value!r} is not {kind}")
