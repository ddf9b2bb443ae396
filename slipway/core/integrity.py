"""Checksums of a model's files, which are verified wherever the model is used.

They are in the model.json that Slipway exports, or beside the files of another program's model.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slipway.core import formats
from slipway.core.atomic import read_regular
from slipway.core.errors import UserError

RECORD_FILE = "model.json"
# The checksums of another program's model.
CHECKSUMS_FILE = ".slipway.json"
# Of a registered version; another program's file of this name is not part of it.
REGISTRATION_FILE = "metadata.json"
# The signed provenance of a registered version; see `slipway.core.statement`.
STATEMENT_FILE = "provenance.intoto.jsonl"
# The signature of a registered version in the format of OpenSSF, for other programs.
SIGNATURE_FILE = "model.sig"
# What the metadata of artifacts and registered versions call the checksum of the checksums.
FILES_CHECKSUM = "files_checksum"
# Entries of either file: [size, SHA-256] by file, and the SHA-256 of all other entries.
FILES, CHECKSUM = "files", "record_checksum"


def seal(folder: Path, record: Mapping[str, object], file: str = RECORD_FILE, *, but: str = "") -> None:
    """Write `file`, model.json or CHECKSUMS_FILE, with `record` and the checksums of the folder's files but `but`."""
    excluded = (file, REGISTRATION_FILE, STATEMENT_FILE, but)
    kept = {name: digest for name, digest in files(folder).items() if name not in excluded}
    content = {formats.KEY: formats.FORMAT, **record, FILES: kept}
    (folder / file).write_text(json.dumps({**content, CHECKSUM: _checksum(content)}, indent=2) + "\n")


def files(folder: Path) -> dict[str, list[int | str]]:
    """Return size and SHA-256 of each file in a model's folder, by path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): [path.stat().st_size, file_digest(path)] for path in paths}


def damages(folder: Path) -> Iterator[str]:
    """Yield what is damaged in a model, such as "model.pt2 is missing"; nothing for one without checksums.

    Raises:
        UserError: A newer version of Slipway wrote the model.
        OSError: The storage fails.
    """
    file = _file(folder)
    try:
        record = json.loads(read_regular(folder / file))
        if file == RECORD_FILE and not (isinstance(record, dict) and {FILES, CHECKSUM} & record.keys()):
            return
        if not isinstance(record, dict) or record.pop(CHECKSUM, None) != _checksum(record):
            yield f"{file} does not match its checksum"
            return
    except (FileNotFoundError, NotADirectoryError):
        return
    except (ValueError, RecursionError):
        yield f"{file} cannot be read"
        return
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        yield f"{file} is not a regular file"
        return
    formats.check(record, folder / file)
    if not _is_list_of_files(record.get(FILES)):
        yield f"{file} has no list of files with size and SHA-256"
        return
    for name, (size, digest) in record[FILES].items():
        path, shown = folder / name, name if name.isprintable() else ascii(name)
        if not path.is_file():
            yield f"{shown} is missing"
        elif path.stat().st_size != size:
            yield f"{shown} has {path.stat().st_size:,} bytes instead of {size:,}"
        elif file_digest(path) != digest:
            yield f"{shown} does not match its checksum"


def checksum(folder: Path) -> str | None:
    """Return the checksum of the checksums of a model that is not damaged; None if it has none."""
    try:
        record = json.loads((folder / _file(folder)).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    digest = record.get(CHECKSUM) if isinstance(record, dict) else None
    return None if digest is None else str(digest)


def damage(folder: Path) -> str | None:
    """Return the first of `damages`, None if there is none."""
    return next(damages(folder), None)


def verify(folder: Path) -> None:
    """Raise UserError if the model in `folder` is damaged; OSError if the storage fails."""
    if problem := damage(folder):
        raise damaged(folder, problem)


def damaged(folder: Path, problem: str) -> UserError:
    """Return the error for a damaged model."""
    return UserError(
        f"The model in {folder} is damaged: {problem}.",
        fix="restore it from a copy; or export a run's model again: slipway run --resume RUN",
    )


def unsealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a model.json without the format and the checksums."""
    return {name: value for name, value in record.items() if name not in (formats.KEY, FILES, CHECKSUM)}


def _file(folder: Path) -> str:
    return CHECKSUMS_FILE if (folder / CHECKSUMS_FILE).exists() else RECORD_FILE


def _is_list_of_files(listed: object) -> bool:
    """Return whether a JSON value is one that `seal` writes,."""
    return isinstance(listed, dict) and all(
        isinstance(entry, list) and [type(value) for value in entry] == [int, str] for entry in listed.values()
    )


def _checksum(record: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
