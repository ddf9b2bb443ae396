"""Atomic and durable file writes, and reads that cannot wait."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import stat
from pathlib import Path

from slipway.core.values import JsonObject

# Error numbers of a full disk and an exceeded quota.
FULL = (errno.ENOSPC, errno.EDQUOT)


# A temporary file that is older belongs to no live write.
STALE_SECONDS = 3600
# Bytes of the largest file that is read as a whole, the manifest of millions of shards.
MAX_READ = 1 << 30


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a small file atomically and durably; if that fails before the rename, the old file is kept.

    Without `durable`, the disk is not asked to flush the file. Temporary files that earlier failures could not remove
    are removed.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            now = os.fstat(file.fileno()).st_mtime
        beside.replace(path)
        if durable:
            sync(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):  # the first error is the one to report
            beside.unlink()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
    for left in path.parent.glob(f".{glob.escape(path.name)}.[0-9]*"):
        with contextlib.suppress(OSError):
            if now - left.stat().st_mtime > STALE_SECONDS:
                left.unlink()


def read_regular(path: Path, most: int = MAX_READ) -> bytes:
    """Return the content of a file; never waits, as for a FIFO without a writer.

    Raises:
        OSError: It cannot be read, is not a regular file, or has more than `most` bytes.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return content


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
    objects = []
    for line in data.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            objects.append(value)
    return objects


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system whose folders cannot be flushed
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Flush a folder and everything in it to disk; links are not followed."""
    for parent, _, names in os.walk(folder, topdown=False):
        for path in (Path(parent, name) for name in names):
            if stat.S_ISREG(path.lstat().st_mode):
                sync(path)
        sync(Path(parent))
