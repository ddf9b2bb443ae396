"""Errors for names of a notebook that a captured function cannot use."""

from __future__ import annotations

import builtins
import functools
import io
import re
from collections.abc import Mapping
from types import MethodType
from typing import Any

from slipway.core.errors import UserError, nearest
from slipway.pipelines.notebook.literals import MAX_CHARACTERS
from slipway.pipelines.notebook.sources import TO_A_FILE

# What IPython calls the inputs, the outputs and the folders of a session.
_HISTORY = re.compile(r"_+|_i+|_i?\d+|_[iod]h|In|Out")
_OF_IPYTHON = ("display", "exit", "quit")
# Functions that reach names which the source does not show.
_DYNAMIC = ("eval", "exec", "globals")


def is_builtin(name: str, notebook: Mapping[str, Any]) -> bool:
    """Return whether a name stands for Python's own function in a run, also where IPython has replaced that."""
    if name in _DYNAMIC or name in _OF_IPYTHON or name == "get_ipython" or not hasattr(builtins, name):
        return False
    return name not in notebook or _is_of_ipython(notebook[name])


def refuse_name(name: str, user: str, notebook: Mapping[str, Any]) -> None:
    """Raise UserError if a run does not have what `name` stands for in the notebook, or if it stands for nothing."""
    if name == "get_ipython":
        raise UserError(
            f"{user} uses a magic or a shell command (get_ipython), which only a notebook has.",
            fix=f"remove the line with % or ! from {user}; subprocess.run starts commands",
        )
    if name in _OF_IPYTHON and (name not in notebook or _is_of_ipython(notebook[name])):
        raise UserError(
            f"{user} calls {name}, which only a notebook has.", fix=f"remove {name} from {user}, or use print"
        )
    if "get_ipython" in notebook and _HISTORY.fullmatch(name):
        raise UserError(
            f"{user} uses {name}, the notebook's history of inputs or outputs.",
            fix="assign the value to a variable in a cell, and use that",
        )
    if name in _DYNAMIC and name not in notebook:
        raise UserError(
            f"{user} calls {name}, which may use any name of the notebook.",
            fix=f"write {user} without {name}, or {TO_A_FILE}",
        )
    if name not in notebook:
        raise undefined(name, user, notebook)


def undefined(name: str, user: str, notebook: Mapping[str, Any]) -> UserError:
    """Return the error for a name that the notebook does not define."""
    return UserError(
        f"{user} uses {name}, which the notebook does not define.",
        nearest=nearest(name, [defined for defined in notebook if not defined.startswith("_")]),
        fix=f"run the cell that defines or imports {name}, or correct the name",
    )


def uncapturable(name: str, value: Any, user: str, description: str | None = None) -> UserError:
    """Return the error for a value that cannot be written as source text.

    Args:
        name: Its name in the notebook.
        value: The value.
        user: The function that uses it; the same as `name` for what is to be captured itself.
        what: A description of the value.
    """
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.").removeprefix("__main__.")
    description, fix = (
        description or f"an object of the type {kind}",
        f"create it inside of {user}, or pass it as an argument",
    )
    if isinstance(value, functools.partial):
        called = getattr(value.func, "__name__", "FUNCTION")
        description, fix = "a functools.partial", f"write it as a function: def {name}(…): return {called}(…)"
    elif isinstance(value, MethodType):
        description, fix = (
            f"a method of an object ({value.__qualname__})",
            f"write a function that creates the object: def {name}(…): …",
        )
    elif isinstance(value, io.IOBase):
        description, fix = f"an open file ({kind})", f"open it inside of {user}"
    elif hasattr(value, "shape") and (hasattr(value, "dtype") or hasattr(value, "dtypes")):
        description = f"{'a table' if hasattr(value, 'dtypes') else 'an array'} ({kind})"
        fix = f"load it inside of {user} from a file of the project, or compute it there"
    elif isinstance(value, list | tuple | set | dict | str | bytes):
        fix = f"create it inside of {user}, or write it to a file of the project and read that in {user}"
        description = (
            f"{description}; at most {MAX_CHARACTERS:,} can be captured"
            if "characters" in description
            else f"a {kind} with {description}"
        )
    if name == user:
        return UserError(
            f"{name} is {description}, not a function or class that can be captured.",
            fix=fix if "write" in fix else f"pass a function: def {name}(…): …",
        )
    return UserError(f"{user} uses {name}, {description}, which cannot be captured from a notebook.", fix=fix)


def _is_of_ipython(value: object) -> bool:
    """Return whether IPython defines a value; its `open` has the name and module of Python's."""
    module = getattr(value, "__globals__", {}).get("__name__") or type(value).__module__
    return str(module).partition(".")[0] in ("IPython", "ipykernel")
