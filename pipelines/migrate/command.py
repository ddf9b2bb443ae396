"""`slipway migrate`: its input and output."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from slipway.core.errors import UserError
from slipway.pipelines.migrate import migration
from slipway.pipelines.migrate.job import read_file
from slipway.pipelines.migrate.migration import Migration, from_arguments
from slipway.pipelines.options import check_folder_of
from slipway.pipelines.terminal import console, error_console, user_errors


@user_errors
def migrate(
    source: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]", help="A config.yaml, or gcloud's flags after --.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The run configuration to write; stdout by default."),
    ] = None,
) -> None:
    """Convert an AI Platform Training job into a run configuration."""
    migrated = migration_of(source or [])
    if output is None:
        sys.stdout.write(migrated.yaml)
        show(error_console, migrated)
        return
    save(migrated, output)
    show(console, migrated)
    console.print(f"{output}: resolve the lines marked DECIDE, then run")
    if migrated.program and migrated.program.archive and output.parent != Path():  # where the program is importable
        console.print(f"  cd {output.parent}")
        output = Path(output.name)
    console.print(f"  slipway doctor -c {output} --target vertex")


def migration_of(arguments: Sequence[str]) -> Migration:
    """Migrate a job file, or gcloud's flags.

    Raises:
        UserError: The file does not exist, or there are no arguments.
    """
    fix = "slipway migrate config.yaml"
    if not arguments:
        raise UserError(
            "migrate requires either a job file or gcloud flags after --, not both.",
            setting="migrate",
            value=None,
            allowed="slipway migrate config.yaml, or slipway migrate -- JOB --scale-tier=BASIC_GPU …",
            fix=fix,
        )
    if len(arguments) > 1 or arguments[0].startswith("-"):
        return from_arguments(list(arguments))
    return migration.migrate(read_file(Path(arguments[0]), "migrate", fix), source=str(Path(arguments[0])))


def save(migrated: Migration, output: Path) -> None:
    """Write the configuration, and unpack an archived program next to it.

    Raises:
        UserError: The file or a file of the program already exists, or the file's folder does not exist.
    """
    if output.exists():
        raise UserError(f"{output} already exists.", setting="-o", value=str(output), fix="choose another path for -o")
    check_folder_of(output)
    if migrated.program is not None:
        migrated.program.unpack(output.parent)
    output.write_text(migrated.yaml)


def show(shown: Console, migrated: Migration) -> None:
    """Print the changes, the dropped settings, the open decisions, and what must change in the program."""
    lists = {
        "changed": migrated.changed,
        "dropped": migrated.dropped,
        "to decide": migrated.decisions,
        "to change in the program": [str(change) for change in migrated.program.changes] if migrated.program else [],
    }
    for title, sentences in lists.items():
        if sentences:
            shown.print(f"[bold]{title}[/]")
        for sentence in sentences:
            shown.print(f"  - {escape(sentence)}")
