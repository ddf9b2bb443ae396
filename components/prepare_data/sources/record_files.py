"""Read TFRecord files sequentially, recovering after damaged records, and by position."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from slipway.components.prepare_data.encoding.records import CHECKSUM, LENGTH, masked_crc32c
from slipway.components.prepare_data.remote import is_remote, open_remote
from slipway.core.errors import UserError

HEADER_BYTES = LENGTH.size + CHECKSUM.size
SEARCH_BYTES = 1 << 20
MOST_OPEN = 64
# Possible starts of a record: the 8-byte length is below 2**40.
POSSIBLE_LENGTH = re.compile(rb"(?=.{5}\0\0\0)", re.DOTALL)


class Found(NamedTuple):
    """A record: its offset, its message, and the reason if it cannot be used (the message is then empty)."""

    place: int
    message: bytes
    reason: str | None


def scan(path: Path) -> Iterator[Found]:
    """Yield all records of a file in order. Damaged bytes are reported and skipped up to the next intact record."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        place = 0
        while place < size:
            header = file.read(HEADER_BYTES)
            length = _length(header)
            if length is None:
                following = _next_record(file, place + 1, size)
                many = f"{following - place:,} bytes from byte {place:,} on"
                yield Found(place, b"", f"{many} are damaged; the records in them are lost")
                place = following
                file.seek(place)
                continue
            message, checksum = file.read(length), file.read(CHECKSUM.size)
            if len(checksum) < CHECKSUM.size:
                yield Found(place, b"", "the file ends inside it")
                return
            good = CHECKSUM.unpack(checksum)[0] == masked_crc32c(message)
            yield Found(place, message if good else b"", None if good else "its checksum is wrong")
            place += HEADER_BYTES + length + CHECKSUM.size


def _length(header: bytes) -> int | None:
    """Return the length of the record that starts with `header`, or None if it is not a valid header."""
    if len(header) < HEADER_BYTES or CHECKSUM.unpack(header[LENGTH.size :])[0] != masked_crc32c(header[: LENGTH.size]):
        return None
    return int.from_bytes(header[: LENGTH.size], "little")


def _next_record(file: BinaryIO, place: int, size: int) -> int:
    """Return the offset of the next record at or after `place`, or the file size if there is none."""
    while place < size:
        file.seek(place)
        data = file.read(SEARCH_BYTES + HEADER_BYTES)
        for match in POSSIBLE_LENGTH.finditer(data):
            start = match.start()
            length = _length(data[start : start + HEADER_BYTES])
            if length is not None and place + start + HEADER_BYTES + length + CHECKSUM.size <= size:
                return place + start
        place += SEARCH_BYTES
    return size


class RecordFiles:
    """Reads records by file number and offset; keeps a limited number of files open."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._open: OrderedDict[int, BinaryIO] = OrderedDict()

    def read(self, number: int, place: int, size: int) -> bytes:
        """Return the message, `size` bytes long, of the record at offset `place` in file `number`.

        Raises:
            UserError: The file changed since it was listed.
        """
        file = self._file(number)
        file.seek(place)
        data = file.read(HEADER_BYTES + size + CHECKSUM.size)
        message = data[HEADER_BYTES : HEADER_BYTES + size]
        if _length(data[:HEADER_BYTES]) != size or data[HEADER_BYTES + size :] != CHECKSUM.pack(masked_crc32c(message)):
            raise UserError(
                f"{self._paths[number]} changed while the data set was prepared.",
                setting="data.source",
                fix="run again when no other process writes to the source",
            )
        return message

    def _file(self, number: int) -> BinaryIO:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        if len(self._open) == MOST_OPEN:
            self._open.popitem(last=False)[1].close()
        path = self._paths[number]
        self._open[number] = open_remote(path) if is_remote(path) else path.open("rb", buffering=0)
        return self._open[number]
