"""Rows in temporary SQLite databases, which sort on disk: memory use does not grow with their number."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import marshal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

# Of a row's values.
DIGEST_BYTES = 8


@contextlib.contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a temporary database, which sorts in files beside it. It is not flushed to disk: no other run reads it.

    Raises:
        OSError: The disk is full, or cannot be read or written.
    """
    folder = str(path.parent).replace("'", "''")
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            for setting in ("journal_mode = OFF", "synchronous = OFF", f"temp_store_directory = '{folder}'"):
                connection.execute(f"PRAGMA {setting}")
            yield connection
            connection.commit()
    except sqlite3.OperationalError as error:
        number = errno.ENOSPC if error.sqlite_errorcode == sqlite3.SQLITE_FULL else errno.EIO
        raise OSError(number, str(error), str(path)) from None


class SortedRows:
    """Keys and values, sorted in the temporary file `path`, which is deleted at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._path.unlink, missing_ok=True)
        self._rows = self._stack.enter_context(database(self._path))
        self._rows.execute("CREATE TABLE rows (key BLOB, value)")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _add(self, key: bytes, value: object) -> None:
        self._rows.execute("INSERT INTO rows VALUES (?, ?)", (key, value))

    def _sorted(self) -> Iterator[tuple[bytes, Any]]:
        return self._rows.execute("SELECT key, value FROM rows ORDER BY length(key), key, value")


class UniqueKeys(SortedRows):
    """Keys and their line numbers."""

    def add(self, key: bytes, line: int) -> None:
        """Add a key and its line number."""
        self._add(key, line)

    def twice(self) -> tuple[bytes, int, int] | None:
        """Return the first of the shortest duplicate keys, with its first two lines, or None."""
        for (one, line), (other, next_line) in itertools.pairwise(self._sorted()):
            if one == other:
                return one, line, next_line
        return None


class EqualRows(SortedRows):
    """Rows of a table, or examples without a key, by a hash of their values."""

    def add(self, values: bytes, about: tuple[Any, ...]) -> None:
        """Add a row with these values; `about` is returned with it."""
        self._add(hashlib.blake2b(values, digest_size=DIGEST_BYTES).digest(), marshal.dumps(about))

    def keyed(self) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
        """Yield a key of each row, unique by a number where rows are equal, and what was added with it."""
        for digest, equal in itertools.groupby(self._sorted(), key=lambda row: row[0]):
            for number, (_, about) in enumerate(equal, 1):
                copy = b" copy %d" % number if number > 1 else b""
                yield b"row " + digest.hex().encode() + copy, marshal.loads(about)
