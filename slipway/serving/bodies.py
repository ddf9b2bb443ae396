"""The bodies of requests, and the memory that all of them may use."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

from starlette.types import Message, Receive

from slipway.serving.batching import Busy
from slipway.serving.kinds import BadRequest
from slipway.serving.settings import ServerSettings

# Why the task of a request is cancelled.
EVICTED = "evicted"
GZIP = (b"gzip", b"x-gzip")


class Refused(Exception):
    """A request that is answered with an error; `status` is its HTTP code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Bodies:
    """Receives bodies of at most `max_body` bytes, and of at most `max_bodies` bytes together."""

    def __init__(self, settings: ServerSettings) -> None:
        self._max_body, self._max_bodies = settings.max_body, settings.max_bodies
        self._reserved = 0
        self._incomplete: dict[asyncio.Task[Any] | None, int] = {}  # bytes that have arrived, oldest first

    async def read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """Return a body, and reserve its memory as it arrives, until `release`.

        Raises:
            Refused: The body is too large or incomplete.
            Busy: There is no memory for it.
        """
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._max_body:
            raise self._too_large()
        task = asyncio.current_task()
        parts: list[bytes] = []
        size, more = 0, True
        try:
            while more:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "The client closed the connection.")
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
                size += len(parts[-1])
                self._reserved += len(parts[-1])
                if size > self._max_body:
                    raise self._too_large()
                if more:
                    self._incomplete[task] = size
                    self._evict()
                if self._reserved > self._max_bodies:
                    raise Busy
        except BaseException as error:
            self._reserved -= size
            if task is not None and error.args == (EVICTED,):
                task.uncancel()
                raise Refused(408, "The request took too long to arrive: others need its memory.") from None
            raise
        finally:
            self._incomplete.pop(task, None)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def unpacked(self, body: bytes, encoding: bytes) -> bytes:
        """Return a body without its content encoding, and reserve the memory that it needs in addition."""
        if encoding == b"identity":
            return body
        if encoding not in GZIP:
            raise Refused(415, f"The content encoding {encoding.decode('latin-1')} is unknown: use gzip, or none.")
        unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            unpacked = unpack.decompress(body, self._max_body + 1)
        except zlib.error:
            raise BadRequest("The body is not gzip, as its content encoding says") from None
        if len(unpacked) > self._max_body:
            raise self._too_large()
        if not unpack.eof:
            raise BadRequest("The body is gzip that is cut short")
        self._reserved += len(unpacked) - len(body)
        return unpacked

    def release(self, body: bytes) -> None:
        """Release the memory of a body."""
        self._reserved -= len(body)

    def _evict(self) -> None:
        """Refuse the requests whose bodies have been arriving for longest, until the others fill half of the memory."""
        while sum(self._incomplete.values()) > self._max_bodies // 2:
            oldest = next(iter(self._incomplete))
            del self._incomplete[oldest]
            if oldest is asyncio.current_task():
                raise Busy
            if oldest is not None:
                oldest.cancel(EVICTED)

    def _too_large(self) -> Refused:
        return Refused(413, f"The body has more than {self._max_body:,} bytes.")
