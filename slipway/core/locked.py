"""A split of a data set whose shards are kept apart, where only the step evaluate can read them: `slipway data lock`.

The data set's folder then has no shard of the split, but a file that names the folder with them. Its manifest, which
has their SHA-256, stays as it is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from slipway.core import manifest
from slipway.core.atomic import read_regular, replace_file
from slipway.core.errors import UserError
from slipway.core.manifest import LOCK_FILE, Shard
from slipway.core.paths import local_path

SPLIT = "test"


def folder_of(data: Path, split: str) -> Path:
    """Return the folder with a split's shards: the data set's, unless they are locked elsewhere."""
    location = location_of(data) if split == SPLIT else None
    return data if location is None else local_path(location)


def location_of(data: Path) -> str | None:
    """Return where the shards of a data set's test split are locked; None if they are not.

    Raises:
        UserError: The file that says so is damaged.
    """
    path = data / LOCK_FILE
    try:
        return str(json.loads(read_regular(path))[SPLIT])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} does not say where the test split is.", fix=f'write {{"test": "FOLDER"}} to {path}'
        ) from None


def lock(data: Path, target: str) -> int:
    """Move the shards of a data set's test split to a folder below `target`; return their number.

    A killed command leaves a whole split here or there; repeating it completes the move.

    Raises:
        UserError: The data set is damaged, or locked elsewhere.
    """
    shards = _shards(data)
    folder = local_path(target).expanduser().absolute() / data.parent.name / data.name
    known = location_of(data)
    if known is not None and local_path(known) != folder:
        raise UserError(
            f"The test split of {data} is locked in {known}.", setting="--to", value=target,
            fix=f"slipway data unlock {data}",
        )  # fmt: skip
    if known is None:
        manifest.verify(data, shards)
        folder.mkdir(parents=True, exist_ok=True)
        os.chmod(folder, 0o700)  # noqa: PTH101 (of a mounted bucket, it has no effect)
        _copy(shards, data, folder)
        replace_file(data / LOCK_FILE, json.dumps({SPLIT: str(folder)}).encode())
    for shard in shards:
        (data / shard.file).unlink(missing_ok=True)
    return len(shards)


def unlock(data: Path) -> int:
    """Move the shards of a data set's test split back; return their number, 0 if they were not locked.

    Raises:
        UserError: They cannot be read, or are damaged.
    """
    location = location_of(data)
    if location is None:
        return 0
    shards, folder = _shards(data), local_path(location)
    _copy(shards, folder, data)
    (data / LOCK_FILE).unlink()
    for shard in shards:
        (folder / shard.file).unlink(missing_ok=True)
    folder.rmdir()
    return len(shards)


def _shards(data: Path) -> Sequence[Shard]:
    splits = manifest.read(data).splits
    if SPLIT not in splits:
        raise UserError(f"The data set in {data} has no test split.", setting="DATASET", value=str(data))
    return splits[SPLIT].shards


def _copy(shards: Sequence[Shard], source: Path, target: Path) -> None:
    """Copy shards that are not at the target yet, each at once, and verify them."""
    for shard in shards:
        if not (target / shard.file).is_file():
            beside = target / f".{shard.file}.{os.getpid()}"
            shutil.copyfile(source / shard.file, beside)
            beside.replace(target / shard.file)
    manifest.verify(target, shards)
