"""Checksums of an exported model's files in its model.json, which are verified wherever the model is used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipway.core.errors import UserError

RECORD_FILE = "model.json"
# Entries of model.json: [size, SHA-256] by file, and the SHA-256 of all other entries.
FILES, CHECKSUM = "files", "record_checksum"


def seal(folder: Path, record: Mapping[str, object]) -> None:
    """Write model.json with `record` and the checksums of the folder's files."""
    content = {**record, FILES: files(folder)}
    (folder / RECORD_FILE).write_text(json.dumps({**content, CHECKSUM: _checksum(content)}, indent=2) + "\n")


def files(folder: Path) -> dict[str, list[int | str]]:
    """Return size and SHA-256 of each file in a model's folder but model.json, by path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: [path.stat().st_size, _digest(path)] for name, path in names.items() if name != RECORD_FILE}


def damage(folder: Path) -> str | None:
    """Return what is damaged in an exported model, such as "model.pt2 is missing".

    None for a whole model, and for one of another program, which has no checksums.

    Raises:
        OSError: The storage fails.
    """
    try:
        record = json.loads((folder / RECORD_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (IsADirectoryError, ValueError, RecursionError):
        return f"{RECORD_FILE} cannot be read"
    if not isinstance(record, dict) or not {FILES, CHECKSUM} & record.keys():
        return None
    if record.pop(CHECKSUM, None) != _checksum(record):
        return f"{RECORD_FILE} does not match its checksum"
    for name, (size, digest) in record[FILES].items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} bytes instead of {size:,}"
        if _digest(path) != digest:
            return f"{name} does not match its checksum"
    return None


def verify(folder: Path) -> None:
    """Raise UserError if the exported model in `folder` is damaged; OSError if the storage fails."""
    if what := damage(folder):
        raise UserError(
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
