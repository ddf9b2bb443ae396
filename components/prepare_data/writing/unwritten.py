"""Shards of a table that are not written, since nothing is kept of it: their records are encoded when they are read."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Literal

from slipway.components.prepare_data.writing.shards import ShardTask, ShardWriter

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


@dataclass(frozen=True)
class UnwrittenShard:
    """A shard whose examples were only validated.

    Attributes:
        writer: What would have written it.
        task: Its task.
    """

    writer: ShardWriter
    task: ShardTask

    def open(self, _mode: Literal["rb"], /) -> BinaryIO:
        """Return a file from which its records are read, in order."""
        return io.BufferedReader(_Stream(self.writer.encoded(self.task)))


class _Stream(io.RawIOBase):
    """Reads parts of a file that are made one after the other."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer)
        while not self._rest:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._rest = memoryview(part)
        count = min(len(target), len(self._rest))
        target[:count], self._rest = self._rest[:count], self._rest[count:]
        return count
