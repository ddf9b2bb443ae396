"""Output files of commands."""

from __future__ import annotations

from pathlib import Path

from slipway.core.errors import UserError


def check_folder_of(output: Path) -> None:
    """Check that the folder of an output file exists.

    Raises:
        UserError: Its folder does not exist.
    """
    if not output.absolute().parent.is_dir():
        raise UserError(
            f"The folder {output.parent} does not exist.",
            setting="-o",
            value=str(output),
            fix=f"mkdir -p {output.parent}",
        )
