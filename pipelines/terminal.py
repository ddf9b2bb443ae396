"""What all commands share: where they print, the codes that they exit with, how a user's mistake is shown."""

from __future__ import annotations

import codecs
import io
import json
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from trainer.errors import UserError, system_error

console = Console()
error_console = Console(stderr=True)

ASCII_MARKS = {"✓": "+", "✗": "x", "■": "#", "…": "...", "–": "-", "·": "."}
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REJECTED = 3
EXIT_INTERRUPTED = 130

Command = TypeVar("Command", bound=Callable[..., Any])


def user_errors(command: Command) -> Command:
    """Show a user's mistake on one screen and exit with 2."""

    @wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except (UserError, OSError) as error:
            mistake = error if isinstance(error, UserError) else system_error(error)
            if mistake is None:
                raise
            error_console.print(f"[red]error:[/] {escape(str(mistake))}", highlight=False, soft_wrap=True)
            raise typer.Exit(EXIT_USAGE) from None

    return wrapped  # type: ignore[return-value]


def print_any_character() -> None:
    """Print characters that the terminal's encoding lacks in another form: marks as ASCII, letters as JSON escapes."""
    codecs.register_error("slipway", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="slipway")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(ASCII_MARKS.get(character) or json.dumps(character)[1:-1] for character in lacking), error.end


def say(line: str) -> None:
    """Say on stderr how the work goes; stdout is for what the command gives."""
    error_console.print(escape(line), highlight=False, soft_wrap=True)
