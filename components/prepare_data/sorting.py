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


class ExampleKeys:
    """Finds keys that several examples have, and keys examples without one by a hash of their values.

    The file `path` is deleted at the end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._path.unlink, missing_ok=True)
        self._rows = self._stack.enter_context(database(self._path))
        self._rows.execute("CREATE TABLE keys (key BLOB, number INTEGER)")
        self._rows.execute("CREATE TABLE contents (digest BLOB, about BLOB)")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, key: bytes, number: int) -> None:
        """Add a key and the number of its example, or its line."""
        self._rows.execute("INSERT INTO keys VALUES (?, ?)", (key, number))

    def twice(self) -> tuple[bytes, int, int] | None:
        """Return the first of the shortest duplicate keys, with the first two numbers, or None."""
        rows = self._rows.execute("SELECT key, number FROM keys ORDER BY length(key), key, number")
        for (one, number), (other, next_number) in itertools.pairwise(rows):
            if one == other:
                return one, number, next_number
        return None

    def add_content(self, values: bytes, about: tuple[Any, ...]) -> None:
        """Add an example with these values; `about` is returned with its key."""
        digest = hashlib.blake2b(values, digest_size=DIGEST_BYTES).digest()
        self._rows.execute("INSERT INTO contents VALUES (?, ?)", (digest, marshal.dumps(about)))

    def by_content(self) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
        """Yield the key of each example, unique by a number where values are equal, and what was added with it."""
        rows = self._rows.execute("SELECT digest, about FROM contents ORDER BY digest, about")
        for digest, equal in itertools.groupby(rows, key=lambda row: row[0]):
            for number, (_, about) in enumerate(equal, 1):
                copy = b" copy %d" % number if number > 1 else b""
                yield b"row " + digest.hex().encode() + copy, marshal.loads(about)
