"""Objects in Cloud Storage, read and written by many threads of one process, without a mount."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slipway.components.cloud.refusals import message_of
from slipway.components.cloud.retries import NOT_FOUND, status_of
from slipway.core.buckets import SCHEME, THREADS
from slipway.core.errors import UserError

DENIED = (401, 403)
# Requests for a range of which two have to return the same bytes.
MAX_READS = 4

_lock = threading.Lock()


def read(uri: str, start: int = 0, size: int | None = None) -> bytes:
    """Return the bytes of an object as they are stored, or `size` of them from `start`, fewer at its end: one request.

    The client verifies the checksum of a whole object; a caller of a range verifies one of its own.

    Raises:
        FileNotFoundError: There is no such object.
        UserError: Access is denied.
    """
    if size == 0:
        return b""
    end = None if size is None else start + size - 1
    with _errors_of(uri):
        return _downloaded(_blob(uri), start, end)


def open_object(uri: str, size: int) -> io.BufferedReader:
    """Open an object for reading; at least `size` bytes are requested at once. See `read` for errors.

    Ranges have no checksum, so two requests for the same bytes have to agree.
    """
    with _errors_of(uri):
        blob = _blob(uri)
        blob.reload()  # also determines the generation that all requests ask for
    return io.BufferedReader(_Compared(blob, uri), size)


class _Compared(io.RawIOBase):
    """An object that is read in ranges, each of them twice.

    Raises:
        OSError: The answers to several requests for a range differ.
    """

    def __init__(self, blob: Any, uri: str) -> None:
        self._blob, self._uri, self._position = blob, uri, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._blob.size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._blob.size) - 1
        if end < self._position:
            return 0
        earlier: set[bytes] = set()
        for _ in range(MAX_READS):
            with _errors_of(self._uri):
                data = _downloaded(self._blob, self._position, end)
            if data in earlier:
                break
            earlier.add(data)
        else:
            raise OSError(errno.EIO, "the answers to requests for the same bytes differ", self._uri)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def download(uri: str, target: Path) -> None:
    """Copy an object to a local file; see `read` for errors."""
    with _errors_of(uri):
        _blob(uri).download_to_filename(str(target), raw_download=True)


def upload(source: Path, uri: str) -> None:
    """Copy a local file to an object, which appears at once and whole; see `read` for errors."""
    with _errors_of(uri):
        _blob(uri).upload_from_filename(str(source))


def _downloaded(blob: Any, start: int, end: int | None) -> bytes:
    """Return the bytes of an object from `start` to `end` inclusive, none if it ends before `start`."""
    from google.api_core.exceptions import RequestRangeNotSatisfiable

    try:
        data: bytes = blob.download_as_bytes(start=start or None, end=end, raw_download=True)
    except RequestRangeNotSatisfiable:
        return b""
    return data


def _blob(uri: str) -> Any:
    bucket, _, name = uri.removeprefix(SCHEME).partition("/")
    with _lock:
        client = _client()
    return client.bucket(bucket).blob(name)


@functools.cache
def _client() -> Any:
    """The client of this process, whose default retries are those that the service documents."""
    from google.cloud import storage
    from requests.adapters import HTTPAdapter

    client = storage.Client(project=None)
    # Otherwise all but ten connections are closed after a request. One more: it reads the bucket's metadata for traces.
    for session in (client._http, client._http._auth_request.session):
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(pool_maxsize=THREADS + 1))
    return client


@contextlib.contextmanager
def _errors_of(uri: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        status = status_of(error)
        if status == NOT_FOUND:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), uri) from None
        if status in DENIED:
            bucket = uri.removeprefix(SCHEME).partition("/")[0]
            raise UserError(
                f"Access to {uri} is denied: {message_of(error)}.",
                fix=f"grant the account of the workers roles/storage.objectUser on gs://{bucket}",
            ) from None
        raise
