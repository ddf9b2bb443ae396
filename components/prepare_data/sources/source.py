"""What a source of examples is: listed by parts, in any order, and read example by example in worker processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

# The examples that a source gives under one split of its own (None where it has none) and one class.
Group = tuple[str | None, str]

SPLITS = ("train", "validation", "test")
# The features that every stored example has.
OWN = ("image", "label", "key")
MOST_IGNORED = 20
MOST_UNUSABLE_NAMED = 100


# One example as it is listed: its key (its name in the source, unique), its class, the source's own split (None where
# it has none), its bytes, a stamp that changes when the content does (a file's modification time in nanoseconds), the
# place where the source's reader finds it, where the key alone does not say, and what the source says of its group
# (data.group_by). A plain tuple, as there are many.
Entry = tuple[bytes, str, str | None, int, int, int, bytes]


@dataclass
class Ignored:
    """What a source passes over while it is listed.

    Attributes:
        count: How many files are no examples.
        names: The names of the first of them.
        unusable_count: How many examples are so damaged that nothing of them can be listed; they count for
            data.skip_corrupt, as those do that cannot be used for what is found when they are read.
        unusable: The keys of the first of them, and why.
        unusable_digest: Follows from all of them.
    """

    count: int = 0
    names: list[str] = field(default_factory=list)
    unusable_count: int = 0
    unusable: list[tuple[bytes, str]] = field(default_factory=list)
    unusable_digest: bytes = b""

    def add(self, key: bytes) -> None:
        self.count += 1
        self.names = sorted((*self.names, readable(key)))[:MOST_IGNORED]

    def leave_out(self, key: bytes, reason: str) -> None:
        """Note an example of which nothing can be listed."""
        self.unusable_count += 1
        if len(self.unusable) < MOST_UNUSABLE_NAMED:
            self.unusable.append((key, reason))
        self.unusable_digest = hashlib.sha256(self.unusable_digest + repr((key, reason)).encode()).digest()

    def merge(self, other: Ignored) -> None:
        self.count += other.count
        self.names = sorted(self.names + other.names)[:MOST_IGNORED]
        self.unusable_count += other.unusable_count
        self.unusable = sorted(self.unusable + other.unusable)[:MOST_UNUSABLE_NAMED]
        self.unusable_digest += other.unusable_digest


def readable(key: bytes) -> str:
    """A key as text that can be shown and stored, whatever its bytes."""
    return key.decode("utf-8", "backslashreplace")


class Reader(Protocol):
    """Reads examples in one process."""

    def read(self, key: bytes, place: int, size: int) -> bytes:
        """The example's encoded image.

        Raises:
            Unusable: It cannot be read.
            UserError: The source changed since it was listed.
        """
        ...

    def further(self, place: int) -> Iterable[tuple[bytes, bytes]]:
        """The further features of the example that was read last: names and serialized tf.train.Features."""
        ...


class Source(Protocol):
    """Where examples come from.

    Attributes:
        name: What a data set of this source is called, unless the settings say otherwise.
        reference: The source as the user wrote it.
        features: The further features of each example, by name, as `features.json` describes them; {} without any.
        class_names: The classes' names of those that are labels, by name.
    """

    name: str
    reference: str
    features: dict[str, dict[str, Any]]
    class_names: dict[str, list[str]]

    def classes(self, found: Iterable[str]) -> list[str]:
        """All classes in the order of their labels, where those of the listed examples are `found`."""
        ...

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


class Plain:
    """What a source is that has nothing but images and labels, which are sorted by name."""

    features: dict[str, dict[str, Any]] = {}  # noqa: RUF012
    class_names: dict[str, list[str]] = {}  # noqa: RUF012

    def classes(self, found: Iterable[str]) -> list[str]:
        return sorted(found)


class PlainReader:
    """What a reader is of a source without further features."""

    def further(self, place: int) -> Iterable[tuple[bytes, bytes]]:  # noqa: ARG002
        return ()
