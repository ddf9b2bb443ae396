"""Consoles, exit codes and error output, shared by all commands."""

from __future__ import annotations

import codecs
import contextlib
import importlib
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import click
import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text
from typer.core import TyperGroup

from slipway.core import waiting
from slipway.core.errors import UserError, internal_error, lowered, shortened, system_error
from slipway.core.paths import MOUNTS
from slipway.core.values import JsonObject

if TYPE_CHECKING:
    from rich.progress import Progress

# Control characters, with which the content of a file could command the terminal.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Terminal(Console):
    """A console that shows control characters in texts, such as the names in a user's file, as escapes.

    Texts are whole lines, however long, so that paths and commands can be copied; tables have its width. A pipe or a
    file is never a terminal, also with FORCE_COLOR, which Jupyter sets.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*objects, **{"soft_wrap": all(isinstance(renderable, str) for renderable in objects), **options})

    @property
    def is_terminal(self) -> bool:
        return bool(getattr(self.file, "isatty", bool)())

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def printable(text: str) -> str:
    """Return `text` with control characters, except tabs and line breaks, as escapes such as \\x1b."""
    return CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


console = Terminal()
error_console = Terminal(stderr=True)

ASCII_MARKS = {"✓": "+", "✗": "x", "■": "#", "…": "...", "–": "-", "·": "."}
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REJECTED = 3
EXIT_DRIFTED = 4
EXIT_INTERRUPTED = 130

JSON_OPTION = "--json"
HELP_NAMES = {"-h", "--help"}
HELP_OPTIONS = {"help_option_names": sorted(HELP_NAMES, key=len)}
# What typer's help pages import and do not use: it renders Markdown and tracebacks.
UNUSED = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}


class Described(Protocol):
    """A result that is shown as lines, or as JSON."""

    def lines(self) -> list[str]:
        """Return the lines of output."""

    def as_dict(self) -> JsonObject:
        """Return it as JSON."""


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def user_errors(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wrap a command to show user errors on one screen, or with --json as an object on stdout, and exit with 2.

    A missing optional package counts as a user error. Ctrl-C ends a command with 130. With --json, any other exception
    is printed as an object, too.
    """

    @wraps(command)
    def wrapped(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        as_json = bool(options.get("as_json"))
        waiting.announce(say)
        try:
            _refuse_buckets(options)
            return command(*args, **options)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt as error:
            error_console.print(": ".join(["interrupted", *getattr(error, "__notes__", ())]), markup=False)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except Exception as error:
            mistake = _mistake_of(error)
            if mistake is None:
                if as_json:
                    text = f"{type(error).__name__}: {error}"
                    show_error(UserError(text, traceback=traceback.format_exc()), as_json=True)
                raise
            show_error(mistake, as_json=as_json)
            raise typer.Exit(EXIT_USAGE) from None
        finally:
            waiting.announce(None)

    return wrapped


@contextlib.contextmanager
def interrupted(changes: str) -> Iterator[None]:
    """Say, when a command is interrupted by Ctrl-C, what it may have changed, and the command that shows it."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(changes)
        raise


def _refuse_buckets(options: Mapping[str, object]) -> None:
    """Raise UserError for a path that is a bucket's URI: `Path` makes a folder called gs: of it."""
    for name, value in options.items():
        scheme = next((s for s in MOUNTS if isinstance(value, Path) and value.parts[:1] == (s.rstrip("/"),)), None)
        if scheme is not None:
            uri = scheme + str(value).partition("/")[2]
            [setting] = [p.opts[0] for p in click.get_current_context().command.params if p.name == name]
            raise UserError(
                f"{uri} is in a bucket, and the command reads and writes files of this machine here.",
                setting=setting,
                value=uri,
                allowed="a path of this machine",
                fix=f"name a path of this machine, from or to which gcloud storage cp -r copies {uri}",
            )


def _mistake_of(error: Exception) -> UserError | None:
    """Return the user error that an exception represents, or None if it is a bug in Slipway."""
    match error:
        case UserError():
            return error
        case OSError():
            return system_error(error)
        case ModuleNotFoundError():
            from slipway.trainer.engines.installed import missing_extra

            return missing_extra(error)
    return None


class Commands(TyperGroup):
    """The group of all commands; with --json among the arguments, prints usage errors as an object on stdout."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with _short_messages():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _short_messages():
            return super().invoke(ctx)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        run = partial(super().main, args, prog_name, complete_var, windows_expand_args=windows_expand_args, **extra)
        words = sys.argv[1:] if args is None else args
        if not HELP_NAMES.isdisjoint(words):
            import_help_pages()
        if not standalone_mode or JSON_OPTION not in words:
            return run(standalone_mode=standalone_mode)
        try:
            code = run(standalone_mode=False)
        except click.ClickException as error:
            near = next(iter(getattr(error, "possibilities", None) or ()), None)
            command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "slipway"
            mistake = UserError(error.format_message(), nearest=near, fix=f"{command} --help")
            show_error(mistake, as_json=True)
            code = error.exit_code
        except click.Abort:
            code = EXIT_INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


@contextlib.contextmanager
def _short_messages() -> Iterator[None]:
    """Shorten the long lines of usage errors, which repeat the arguments."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = shortened(error.message)  # declared final, but it is what every kind of error shows
        import_help_pages()
        raise


def import_help_pages() -> None:
    """Import typer's help pages, which show usage errors, too, without the modules that they do not use.

    These take longer to import than the rest of a help page.
    """
    unused = UNUSED.keys() - sys.modules.keys()
    for name in unused:
        sys.modules[name] = ModuleType(name)
        setattr(sys.modules[name], UNUSED[name], None)
    importlib.import_module("typer.rich_utils")
    for name in unused:
        del sys.modules[name]


def show_error(error: UserError, *, as_json: bool) -> None:
    """Print an error: one screen on stderr for people, or the object {"error": …} on stdout for programs."""
    if as_json:
        print_json({"error": error.as_dict()})
    else:
        print_error(str(error))


def print_error(text: str) -> None:
    """Print a message after "error:" on stderr."""
    error_console.print(f"[red]error:[/] {escape(lowered(text))}")


@contextlib.contextmanager
def output_errors() -> Iterator[None]:
    """End the process without a traceback if stdout is a closed pipe, or if an exception was not handled.

    The traceback of a bug is written to a file. Closed streams are opened on /dev/null before: the first file that a
    command opens would take their place.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 (for as long as the process runs)
            os.set_inheritable(getattr(sys, name).fileno(), True)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it again at its exit
        if isinstance(error, BrokenPipeError):
            sys.exit(EXIT_FAILED)
        mistake = system_error(error)
        show_error(mistake or internal_error(error), as_json=False)
        sys.exit(EXIT_FAILED if mistake is None else EXIT_USAGE)
    except Exception as error:
        mistake = error if isinstance(error, UserError) else None  # of an extension of another package
        show_error(mistake or internal_error(error), as_json=False)
        sys.exit(EXIT_FAILED if mistake is None else EXIT_USAGE)


def print_any_character() -> None:
    """Replace characters that the terminal's encoding lacks: marks by ASCII, letters by JSON escapes."""
    codecs.register_error("slipway", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="slipway")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(ASCII_MARKS.get(character) or json.dumps(character)[1:-1] for character in lacking), error.end


def say(line: str) -> None:
    """Print a progress message on stderr; stdout is reserved for the command's result."""
    error_console.print(escape(line))


def print_json(value: object) -> None:
    """Print the command's result as JSON."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def is_terminal() -> bool:
    """Return whether stdin is a terminal."""
    return sys.stdin.isatty()


def confirm_deletion(question: str) -> None:
    """Ask before something is deleted.

    Raises:
        UserError: stdin is not a terminal.
        typer.Exit: The answer is no.
    """
    if not is_terminal():
        raise UserError(
            "Deleting requires confirmation, and stdin is not a terminal.",
            setting="--yes",
            value=False,
            fix="--yes",
        )
    if not typer.confirm(question, err=True):
        raise typer.Exit(EXIT_INTERRUPTED)


def print_results(results: Sequence[Described], *, as_json: bool) -> None:
    """Print the lines of results, such as differences or actions, or all of them as JSON."""
    if as_json:
        print_json([result.as_dict() for result in results])
        return
    for result in results:
        for line in result.lines():
            console.print(escape(line))


def command_group(description: str) -> typer.Typer:
    """Return an empty group of commands, which shows its help if called without a command."""
    group = typer.Typer(help=description, suggest_commands=False, context_settings=HELP_OPTIONS)  # click does
    group.callback(invoke_without_command=True)(show_help_alone)
    return group


def show_help_alone(context: typer.Context) -> None:
    """Show the help of a command group that is called without a subcommand."""
    if context.invoked_subcommand is None:
        import_help_pages()
        typer.echo(context.get_help(), nl=False)
        raise typer.Exit


def progress_bar() -> Progress:
    """Return a progress bar that counts examples; only a terminal shows it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=error_console,
        transient=True,
        disable=not error_console.is_interactive,
    )
