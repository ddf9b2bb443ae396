"""Checksums of an exported model's files in its model.json, which are verified wherever the model is used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slipway.core.errors import UserError

RECORD_FILE = "model.json"
# Entries of model.json: [size, SHA-256] by file, and the SHA-256 of all other entries.
FILES, CHECKSUM = "files", "record_checksum"


def seal(folder: Path, record: Mapping[str, object]) -> None:
    """Write model.json with `record` and the checksums of the folder's files."""
    content = {**record, FILES: {name: one for name, one in files(folder).items() if name != RECORD_FILE}}
    (folder / RECORD_FILE).write_text(json.dumps({**content, CHECKSUM: _checksum(content)}, indent=2) + "\n")


def files(folder: Path) -> dict[str, list[int | str]]:
    """Return size and SHA-256 of each file in a model's folder, by path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): [path.stat().st_size, _digest(path)] for path in paths}


def damages(folder: Path) -> Iterator[str]:
    """Yield what is damaged in an exported model, such as "model.pt2 is missing".

    Nothing for a whole model, and for one of another program, which has no checksums.

    Raises:
        OSError: The storage fails.
    """
    try:
        record = json.loads((folder / RECORD_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return
    except (IsADirectoryError, ValueError, RecursionError):
        yield f"{RECORD_FILE} cannot be read"
        return
    if not isinstance(record, dict) or not {FILES, CHECKSUM} & record.keys():
        return
    if record.pop(CHECKSUM, None) != _checksum(record):
        yield f"{RECORD_FILE} does not match its checksum"
        return
    for name, (size, digest) in record[FILES].items():
        path = folder / name
        if not path.is_file():
            yield f"{name} is missing"
        elif path.stat().st_size != size:
            yield f"{name} has {path.stat().st_size:,} bytes instead of {size:,}"
        elif _digest(path) != digest:
            yield f"{name} does not match its checksum"


def is_sealed(folder: Path) -> bool:
    """Return whether a model has checksums, if it is not damaged."""
    try:
        return CHECKSUM in json.loads((folder / RECORD_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return False


def damage(folder: Path) -> str | None:
    """Return the first of `damages`, None if there is none."""
    return next(damages(folder), None)


def verify(folder: Path) -> None:
    """Raise UserError if the exported model in `folder` is damaged; OSError if the storage fails."""
    if what := damage(folder):
        raise damaged(folder, what)


def damaged(folder: Path, what: str) -> UserError:
    """Return the error for a damaged model."""
    return UserError(
        f"The model in {folder} is damaged: {what}.",
        fix="restore it from a copy; or export a run's model again: slipway run --resume RUN",
    )


def unsealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a model.json without the checksums."""
    return {name: value for name, value in record.items() if name not in (FILES, CHECKSUM)}


def _checksum(record: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
