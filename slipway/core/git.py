"""The git checkout of a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

from slipway.core.errors import UserError


def git(folder: Path, *arguments: str) -> str:
    """Return the output of a git command in `folder`.

    Raises:
        UserError: git is not installed, or the folder is not in a checkout.
    """
    try:
        answer = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UserError("git is not installed; images contain the files that it tracks.", fix="install git") from None
    if answer.returncode:
        raise UserError(
            f"{folder} is not in a git checkout; images contain the files that git tracks.",
            fix=f"git -C {folder} init && git -C {folder} add . && git -C {folder} commit -m start",
        )
    return answer.stdout


def git_commit(folder: Path) -> str | None:
    """Return the commit checked out in `folder`, with "-dirty" for modified files; None without git."""
    try:
        return git(folder, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*").strip()
    except UserError:
        return None
