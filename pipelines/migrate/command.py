"""Input and output of `slipway migrate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from slipway.core.errors import UserError
from slipway.pipelines.migrate.job import read_file
from slipway.pipelines.migrate.migration import Migration, from_arguments, migrate
from slipway.pipelines.options import check_folder_of


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
    return migrate(read_file(Path(arguments[0]), "migrate", fix), source=str(Path(arguments[0])))


def save(migration: Migration, output: Path) -> None:
    """Write the configuration, and unpack an archived program next to it.

    Raises:
        UserError: The file or a file of the program already exists, or the file's folder does not exist.
    """
    if output.exists():
        raise UserError(f"{output} already exists.", setting="-o", value=str(output), fix="choose another path for -o")
    check_folder_of(output)
    if migration.program is not None:
        migration.program.unpack(output.parent)
    output.write_text(migration.yaml)


def show(console: Console, migration: Migration) -> None:
    """Print the changes, the dropped settings, the open decisions, and what must change in the program."""
    lists = {
        "changed": migration.changed,
        "dropped": migration.dropped,
        "to decide": migration.decisions,
        "to change in the program": [str(change) for change in migration.program.changes] if migration.program else [],
    }
    for title, sentences in lists.items():
        if sentences:
            console.print(f"[bold]{title}[/]")
        for sentence in sentences:
            console.print(f"  - {escape(sentence)}")
