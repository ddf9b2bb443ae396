"""Rows in temporary SQLite databases, which sort on disk: memory use does not grow with their number."""

from __future__ import annotations

import contextlib
import errno
import itertools
import marshal
import pickle
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Of a row's values.
DIGEST_BYTES = 8
# Examples in memory before they are written.
HELD = 1024


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

    The file `path` and those beside it are deleted at the end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digests = path.with_name(f"{path.name}.digests")
        self._contents = path.with_name(f"{path.name}.contents")
        self._held: list[tuple[bytes, bytes]] = []

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        for path in (self._path, self._digests, self._contents):
            self._stack.callback(path.unlink, missing_ok=True)
        self._rows = self._stack.enter_context(database(self._path))
        self._rows.execute("CREATE TABLE keys (key BLOB, number INTEGER)")
        self._rows.execute("CREATE TABLE contents (digest BLOB, about BLOB)")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, key: bytes, number: int) -> None:
        """Add a key and the number of its example, or its line."""
        self.add_all([(key, number)])

    def add_all(self, keys: Iterable[tuple[bytes, int]]) -> None:
        """Add keys and the numbers of their examples."""
        self._rows.executemany("INSERT INTO keys VALUES (?, ?)", keys)

    def twice(self) -> tuple[bytes, int, int] | None:
        """Return the first of the shortest duplicate keys, with the first two numbers, or None."""
        rows = self._rows.execute("SELECT key, number FROM keys ORDER BY length(key), key, number")
        for (key, number), (next_key, next_number) in itertools.pairwise(rows):
            if key == next_key:
                return key, number, next_number
        return None

    def add_digests(self, examples: Iterable[tuple[bytes, Iterable[Any]]]) -> None:
        """Add examples by the hashes of their values, and what is returned with their keys."""
        self._held += [(digest, marshal.dumps(tuple(about))) for digest, about in examples]
        if len(self._held) >= HELD:
            self._write()

    def _write(self) -> None:
        with self._digests.open("ab") as digests, self._contents.open("ab") as contents:
            digests.write(b"".join([digest for digest, _ in self._held]))
            pickle.dump(self._held, contents)
        self._held.clear()

    def by_content(self) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
        """Yield the key of each example, unique by a number where values are equal, and what was added with it."""
        if self._held:
            self._write()
        if not self._contents.exists():
            return
        several = self._several()
        with self._contents.open("rb") as file:
            while file.peek(1):
                entries = pickle.load(file)
                is_equal = _are_in(several, [digest for digest, _ in entries])
                self._rows.executemany("INSERT INTO contents VALUES (?, ?)", itertools.compress(entries, is_equal))
                for digest, about in itertools.compress(entries, ~is_equal):
                    yield b"row " + digest.hex().encode(), marshal.loads(about)
        rows = self._rows.execute("SELECT digest, about FROM contents ORDER BY digest, about")
        for digest, equal in itertools.groupby(rows, key=lambda row: row[0]):
            for number, (_, about) in enumerate(equal, 1):
                copy = b" copy %d" % number if number > 1 else b""
                yield b"row " + digest.hex().encode() + copy, marshal.loads(about)

    def _several(self) -> NDArray[np.uint64]:
        """Return the digests that several examples have, in order."""
        import numpy as np

        digests = np.memmap(self._digests, np.uint64, "r+")
        digests.sort()  # in the file: memory use does not grow with their number
        return np.unique(digests[1:][digests[1:] == digests[:-1]])


def _are_in(several: NDArray[np.uint64], digests: list[bytes]) -> NDArray[np.bool_]:
    import numpy as np

    if not len(several):
        return np.zeros(len(digests), np.bool_)
    hashes = np.frombuffer(b"".join(digests), np.uint64)
    return several[np.searchsorted(several[:-1], hashes)] == hashes
