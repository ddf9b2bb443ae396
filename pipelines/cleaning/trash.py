"""The trash: what was deleted on this machine can be put back for a day.

It is a folder `.trash` beside what was deleted, in the same file system: deletion is a rename, and so is restoring.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from slipway.core.atomic import sync
from slipway.core.errors import UserError, nearest
from slipway.core.paths import short

FOLDER = ".trash"
SECONDS = 24 * 3600
# The beginning of the name of what is being removed; versions without a trash left it beside runs and data sets.
REMOVED = ".deleted-"


def discard(path: Path) -> None:
    """Move a folder to the trash beside it.

    Raises:
        OSError: It cannot be moved.
    """
    trash = path.parent / FOLDER
    trash.mkdir(exist_ok=True)
    os.utime(path)  # when it was deleted
    with contextlib.suppress(FileNotFoundError):
        _remove(trash / path.name)
    path.rename(trash / path.name)
    for folder in (trash, path.parent):
        sync(folder)


def empty(folders: Iterable[Path], seconds: float = SECONDS) -> None:
    """Remove what was moved to the trash of folders this long ago, and what a killed command has left."""
    for folder in folders:
        for path in (*folder.glob(f"{REMOVED}*"), *folder.glob(f"{FOLDER}/{REMOVED}*")):
            shutil.rmtree(path, ignore_errors=True)
        for path in _entries(folder):
            with contextlib.suppress(OSError):  # another command empties it, or it is another user's
                if path.stat().st_mtime < time.time() - seconds:
                    _remove(path)
        with contextlib.suppress(OSError):  # it is not empty
            (folder / FOLDER).rmdir()


def restore(name: str, folders: Iterable[Path]) -> Path:
    """Move a folder from the trash back, and return it.

    Args:
        name: The folder's name, or its path before it was deleted.
        folders: The folders in whose trash it may be.

    Raises:
        UserError: It is in none of them, or another one has its name.
    """
    known = {entry.parent.parent / entry.name: entry for folder in folders for entry in _entries(folder)}
    matching = [path for path in known if name in (path.name, short(str(path))) or Path(name).absolute() == path]
    if not matching:
        names = [short(str(path)) for path in known]
        near = nearest(name, names)
        raise UserError(
            f"There is no {name} in the trash.",
            setting="--restore",
            value=name,
            allowed=", ".join(names) or "the trash is empty",
            nearest=near,
            fix=f"slipway runs clean --restore {near}" if near else "slipway runs clean",
        )
    (path, *_) = matching
    if os.path.lexists(path):
        raise UserError(
            f"{short(str(path))} exists again.", setting="--restore", value=name, fix=f"mv {path} {path}-renamed"
        )
    known[path].rename(path)
    sync(path.parent)
    return path


def _entries(folder: Path) -> Iterator[Path]:
    trash = folder / FOLDER
    if trash.is_dir() and not trash.is_symlink():
        yield from (path for path in trash.iterdir() if path.is_dir() and not path.name.startswith(REMOVED))


def _remove(path: Path) -> None:
    """Remove a folder of the trash, by a name under which it cannot be restored when it is half removed."""
    removed = path.with_name(f"{REMOVED}{path.name}")
    if removed.exists():
        shutil.rmtree(removed)
    path.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)
