"""What a source of examples is: listed by parts, in any order, and read example by example in worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

# The examples that a source gives under one split of its own (None where it has none) and one class.
Group = tuple[str | None, str]

SPLITS = ("train", "validation", "test")
MOST_IGNORED = 20


# One example as it is listed: its key (its name in the source, unique), its class, the source's own split (None where
# it has none), its bytes, a stamp that changes when the content does (a file's modification time in nanoseconds), the
# place where the source's reader finds it, where the key alone does not say, and what the source says of its group
# (data.group_by). A plain tuple, as there are many.
Entry = tuple[bytes, str, str | None, int, int, int, bytes]


@dataclass
class Ignored:
    """What a source passes over because it is no example: how many files, and the names of the first."""

    count: int = 0
    names: list[str] = field(default_factory=list)

    def add(self, key: bytes) -> None:
        self.count += 1
        self.names = sorted((*self.names, readable(key)))[:MOST_IGNORED]

    def merge(self, other: Ignored) -> None:
        self.count += other.count
        self.names = sorted(self.names + other.names)[:MOST_IGNORED]


def readable(key: bytes) -> str:
    """A key as text that can be shown and stored, whatever its bytes."""
    return key.decode("utf-8", "backslashreplace")


class Unusable(Exception):
    """An example that can not be used; the text says why. The run leaves it out or refuses (data.skip_corrupt)."""


class Reader(Protocol):
    """Reads examples in one process."""

    def read(self, key: bytes, place: int, size: int) -> bytes:
        """The example's encoded image.

        Raises:
            Unusable: It can not be read.
            UserError: The source changed since it was listed.
        """
        ...


class Source(Protocol):
    """Where examples come from.

    Attributes:
        name: What a data set of this source is called, unless the settings say otherwise.
        reference: The source as the user wrote it.
    """

    name: str
    reference: str

    def parts(self) -> list[Any]:
        """The pieces that are listed apart from each other, by any process, in a fixed order. Each can be pickled."""
        ...

    def entries(self, part: Any, ignored: Ignored, scratch: Path) -> Iterator[Entry]:
        """The examples of one part, in any order, never all in memory; notes what is no example in `ignored`.

        What can be read once only, in its own order, is kept in the folder `scratch` for the readers.
        """
        ...

    def groups(self, found: Iterable[Group]) -> dict[Group, Group]:
        """The split and class of each group as it was listed, where only all of them together say so."""
        ...

    def stamp(self) -> str | None:
        """What changes whenever anything in the source does, where that can be told without listing it."""
        ...

    def reader(self, scratch: Path) -> Reader:
        """A reader for the process that calls."""
        ...
