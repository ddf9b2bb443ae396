"""Files that a command writes where the user says."""

from __future__ import annotations

from pathlib import Path

from slipway.core.errors import UserError


def check_folder_of(output: Path) -> None:
    """See that a file can be written there.

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
