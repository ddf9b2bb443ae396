"""Files that are there whole or not at all, and on the disk when that is said."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

# The error numbers of a disk, or a quota, that is used up.
FULL = (errno.ENOSPC, errno.EDQUOT)


def replace_file(path: Path, content: bytes) -> None:
    """Write a small file so that it is there whole, on the disk, or is what it was."""
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
    """Append a line with one `write`, so that lines stay whole though several processes append to the file.

    A full disk can cut a line short; the next one then starts on a line of its own.
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


def json_lines(data: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects in `data`, one a line; skips lines that cannot be parsed, such as a torn one."""
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
    """Have a file's content, or the names in a folder, on the disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
