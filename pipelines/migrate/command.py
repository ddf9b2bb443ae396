"""What `slipway migrate` reads, writes and prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from slipway.core.errors import UserError
from slipway.pipelines.cli.output import check_folder_of
from slipway.pipelines.migrate.migration import Migration, from_arguments, migrate


def migration_of(source: Path | None, arguments: Sequence[str] = ()) -> Migration:
    """The migration of a file, or of gcloud's flags where no file is given.

    Raises:
        UserError: There is no such file, neither or both are given, or the old service would have refused the job.
    """
    if (source is None) == (not arguments):
        raise UserError(
            "One job is migrated: from a file, or from gcloud's flags behind --.",
            setting="migrate",
            value=str(source) if source else None,
            allowed="slipway migrate config.yaml, or slipway migrate -- JOB --scale-tier=BASIC_GPU …",
            fix="slipway migrate config.yaml",
        )
    if source is None:
        return from_arguments(list(arguments))
    if not source.is_file():
        raise UserError(
            f"There is no file {source}.", setting="migrate", value=str(source), fix="give the path of a config.yaml"
        )
    try:
        return migrate(source.read_text(), source=str(source))
    except UnicodeDecodeError:
        raise UserError(f"{source} is not text in UTF-8.", setting="migrate", value=str(source)) from None


def save(migration: Migration, output: Path) -> None:
    """Write the configuration.

    Raises:
        UserError: There is such a file already, or no such folder.
    """
    if output.exists():
        raise UserError(
            f"{output} exists: it is not written over.",
            setting="-o",
            value=str(output),
            fix="choose another name for -o",
        )
    check_folder_of(output)
    output.write_text(migration.yaml)


def show(console: Console, migration: Migration) -> None:
    """Print what was changed, what was dropped and what a person has to decide."""
    lists = {"changed": migration.changed, "dropped": migration.dropped, "to decide": migration.decisions}
    for title, sentences in lists.items():
        if sentences:
            console.print(f"[bold]{title}[/]")
        for sentence in sentences:
            console.print(f"  - {escape(sentence)}", highlight=False, soft_wrap=True)
