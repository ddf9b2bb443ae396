"""Atomic and durable file writes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from slipway.core.values import JsonObject

# Error numbers of a full disk and an exceeded quota.
FULL = (errno.ENOSPC, errno.EDQUOT)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a small file atomically and flush it to disk; on failure the old file is kept."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def append_line(path: Path | str, line: str) -> None:
    """Append a line with a single `write`, so that lines of concurrent processes do not interleave.

    A full disk can truncate a line; the next call then starts a new line.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = (b"\n" if is_torn else b"") + line.encode() + b"\n"
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def json_lines(data: bytes) -> list[JsonObject]:
    """Return the JSON objects in `data`, one per line; lines that cannot be parsed, such as torn ones, are skipped."""
    found = []
    for line in data.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
