"""Python source text of constants: numbers, text, and containers of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import PurePath

# Longer constants belong in a file.
MAX_CHARACTERS = 100_000


class NotLiteralError(ValueError):
    """A value that no literal stands for; its text is what the value is, such as "an object of the type set"."""


def literal(value: object) -> str:
    """Return the expression for a constant, which may need `import pathlib`.

    Args:
        value: A bool, number, text, bytes, None, Ellipsis, range or path, or a list, tuple, set, frozenset or dict of
            these; scalars of NumPy become Python's.

    Raises:
        NotLiteralError: The value is something else, contains itself, or has a text of more than `MAX_CHARACTERS`.
    """
    text = _expression(value, ())
    if len(text) > MAX_CHARACTERS:
        raise NotLiteralError(f"a constant of {len(text):,} characters")
    return text


def has_path(value: object) -> bool:
    """Return whether a constant is or contains a path."""
    if isinstance(value, dict):
        return any(has_path(element) for pair in value.items() for element in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(has_path, value))
    return isinstance(value, PurePath)


def _expression(value: object, outer: tuple[object, ...]) -> str:
    if any(value is ancestor for ancestor in outer):
        raise NotLiteralError("a container that contains itself")
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        scalar = value.item()
        value = float(str(value)) if type(scalar) is float else scalar  # as it is shown: float32(0.002) is 0.002
    container = _CONTAINERS.get(type(value))
    if container is not None:
        return container(value, (*outer, value))
    if value is None or value is ... or type(value) in (bool, str, bytes, range):
        return "..." if value is ... else repr(value)
    if type(value) is int:
        return repr(value) if abs(value) < 10**100 else hex(value)  # Python limits the digits of decimal numbers
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f'float("{value!r}")'
    if type(value) is complex:
        return f"complex({_expression(value.real, ())}, {_expression(value.imag, ())})"
    if isinstance(value, PurePath) and type(value).__module__.partition(".")[0] == "pathlib":
        name = type(value).__name__.removeprefix("Posix").removeprefix("Windows")
        return f"pathlib.{name}({str(value)!r})"
    raise NotLiteralError(_description(value))


def _set(value: set[object] | frozenset[object], outer: tuple[object, ...]) -> str:
    """Return a set in the order of its elements' texts: its own order changes from one process to the next."""
    elements = ", ".join(sorted(_expression(element, outer) for element in value))
    if type(value) is frozenset:
        return f"frozenset({{{elements}}})" if value else "frozenset()"
    return f"{{{elements}}}" if value else "set()"


def _dict(value: dict[object, object], outer: tuple[object, ...]) -> str:
    pairs = (f"{_expression(key, outer)}: {_expression(element, outer)}" for key, element in value.items())
    return f"{{{', '.join(pairs)}}}"


def _joined(values: list[object] | tuple[object, ...], outer: tuple[object, ...]) -> str:
    return ", ".join(_expression(element, outer) for element in values)


_CONTAINERS: dict[type, Callable[..., str]] = {
    list: lambda value, outer: f"[{_joined(value, outer)}]",
    tuple: lambda value, outer: f"({_joined(value, outer)}{',' if len(value) == 1 else ''})",
    set: _set,
    frozenset: _set,
    dict: _dict,
}


def _description(value: object) -> str:
    kind = type(value)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"an object of the type {name}"
