"""Objects in buckets, for which an extension has the clients."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from slipway import extensions
from slipway.core.errors import UserError

SCHEME = "gs://"
# Requests of a process at once, each in a thread with a connection of its own.
THREADS = 32


class Objects(Protocol):
    """Reads and writes objects by their URI; a missing object is a FileNotFoundError, denied access a UserError."""

    def read(self, uri: str, start: int = 0, size: int | None = None) -> bytes:
        """Return the bytes of an object, or `size` of them from `start`, fewer at its end."""

    def open_object(self, uri: str, size: int) -> BinaryIO:
        """Open an object for reading; at least `size` bytes are requested at once."""

    def download(self, uri: str, target: Path) -> None:
        """Copy an object to a file."""

    def upload(self, source: Path, uri: str) -> None:
        """Copy a file to an object, atomically."""


@functools.cache
def threads() -> ThreadPoolExecutor:
    """Return the threads of this process for requests."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="objects")


def objects() -> Objects:
    """Return what reads and writes the objects of buckets.

    Raises:
        UserError: No extension does.
    """
    references = extensions.references("objects")
    if not references:
        raise UserError(
            f"No extension is installed that reads {SCHEME} buckets.", fix="copy the files to a folder of this machine"
        )
    return cast("Objects", extensions.load(references[0]))
