"""Lines of a file, none of which is longer than a limit, so that a file of one line does not use up the memory."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from slipway.core.tables.batch import Mistake

MAX_LINE = 64 << 20


class Lines:
    """A binary file whose lines, and with `check_row` its rows, have at most MAX_LINE bytes.

    Args:
        file: The open file.
        path: Its path, for messages.
        mistake: Returns the error of a file with a message.
    """

    def __init__(self, file: IO[bytes], path: object, mistake: Mistake) -> None:
        self._file, self._path, self._mistake = file, path, mistake
        self.read, self.seek, self.tell = file.read, file.seek, file.tell

    def readline(self) -> bytes:
        """Return the next line, b"" at the end.

        Raises:
            UserError: It is longer than MAX_LINE; no more of it is read.
        """
        line = self._file.readline(MAX_LINE + 1)
        self.check_row(len(line))
        return line

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def check_row(self, size: int) -> None:
        """Raise UserError if a row of this size is too long."""
        if size > MAX_LINE:
            raise self._mistake(
                f"{self._path} has a line or row of more than {MAX_LINE >> 20} MB.",
                fix=f"check its line breaks and quotes: head -c 1000 {shlex.quote(str(self._path))}",
            )
