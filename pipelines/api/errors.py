"""Errors as Python's callers see them: `Interrupted`, and fixes worded as calls instead of commands."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from slipway.core.errors import UserError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# The value of an option in a fix, quoted or not; what follows its last character is punctuation.
_VALUE = r"(?:'[^']*'|[^\s']*[^\s',;.:)])"
_OPTIONS = rf"(?:--(?:set|hardware|target|runner|steps) {_VALUE})"
_RERUN = re.compile(rf"slipway run --(only|from-step) ([\w-]+) --from ({_VALUE})((?: {_OPTIONS})*)")
_START = re.compile(rf"slipway (run|rehearse)(?! --resume)((?: -c {_VALUE}| {_OPTIONS})*)")
_OPTION = re.compile(rf"{_OPTIONS}(?: {_OPTIONS})*")
_RUN = re.compile(rf"slipway (run --resume|status|cancel|explain) ({_VALUE})")
_PLAIN = re.compile(r"slipway (list|doctor)(?=$|[,;:.]| (?!-))")
_CALLS = {"list": "slipway.runs()", "doctor": "slipway.check()"}
_METHODS = {"run --resume": ".resume()", "status": "", "cancel": ".cancel()", "explain": ".error"}


class Interrupted(KeyboardInterrupt):
    """The cell that follows a run was interrupted; the text says what happens to the run, and how to continue."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of a traceback."""
        return str(self).splitlines()


def in_python(text: str | None) -> str | None:
    """Return a text with calls and arguments of the Python API in place of commands and options that have one."""
    if text is None:
        return None
    text = _RUN.sub(lambda match: f'slipway.runs()["{_unquoted(match[2])}"]{_METHODS[match[1]]}', text)
    text = _PLAIN.sub(lambda match: _CALLS[match[1]], text)
    text = _RERUN.sub(_rerun, text)
    text = _START.sub(lambda match: f"slipway.{match[1]}({_arguments(match[2])})", text)
    return _OPTION.sub(lambda match: _arguments(match[0]), text)


def _rerun(match: re.Match[str]) -> str:
    step = f'{match[1].replace("-", "_")}="{match[2]}"'
    arguments = ", ".join(filter(None, (_arguments(match[4]), step)))
    return f'slipway.runs()["{_unquoted(match[3])}"].rerun({arguments})'


def _unquoted(text: str) -> str:
    return shlex.split(text)[0]


def _arguments(options: str) -> str:
    """Return options of the command line as arguments of a call."""
    words = shlex.split(options)
    arguments: list[str] = []
    settings: dict[str, Any] = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        if option == "--set":
            name, _, text = value.partition("=")
            settings[name] = _literal(text)
        elif option == "-c":
            arguments.insert(0, repr(value))
        else:
            arguments.append(f"{option.removeprefix('--')}={_literal(value) if option == '--steps' else repr(value)}")
    if settings:
        pairs = ", ".join(f"{name!r}: {value!r}" for name, value in settings.items())
        arguments.append(f"settings={{{pairs}}}")
    return ", ".join(arguments)


def _literal(text: str) -> Any:
    """Return the value of a text in YAML; in a fix, it may also be a word such as VALUE."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


@contextmanager
def worded() -> Iterator[None]:
    """Word the fix of a user error for Python."""
    try:
        yield
    except UserError as error:
        error.message, error.fix = in_python(error.message) or "", in_python(error.fix)
        raise


def public(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wrap a function of the API so that the fixes of its errors are worded for Python."""

    @functools.wraps(function)
    def wrapped(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        with worded():
            return function(*arguments, **options)

    return wrapped
