"""What all commands share: where they print, the codes that they exit with, how a user's mistake is shown."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from trainer.errors import UserError

console = Console()
error_console = Console(stderr=True)

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
        except UserError as error:
            error_console.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
            raise typer.Exit(EXIT_USAGE) from None

    return wrapped  # type: ignore[return-value]


def say(line: str) -> None:
    """Say on stderr how the work goes; stdout is for what the command gives."""
    error_console.print(escape(line), highlight=False, soft_wrap=True)


def show_help_alone(context: typer.Context) -> None:
    """Show the help of a group of commands that is called without one."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)
        raise typer.Exit
