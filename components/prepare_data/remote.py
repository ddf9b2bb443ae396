"""Files in buckets that are not mounted, as on Beam's workers: copied, and read many at once."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import BinaryIO

from slipway.components.prepare_data.examples import Example, Unusable
from slipway.core import buckets
from slipway.core.buckets import objects
from slipway.core.errors import UserError
from slipway.core.paths import is_mounted

CLOUD_MOUNT = "/gcs"
# Examples of a shard that are read at once, and their size in memory; one that is larger is read on its own.
IN_FLIGHT = buckets.THREADS
AHEAD_BYTES = 64 << 20

_copying = threading.Lock()


def is_remote(path: Path) -> bool:
    """Whether `path` is in a bucket that is not mounted on this machine."""
    return path.is_relative_to(CLOUD_MOUNT) and not is_mounted(path)


def uri(path: Path) -> str:
    """Return the gs:// URI of a path below the mount point."""
    return f"{buckets.SCHEME}{path.relative_to(CLOUD_MOUNT).as_posix()}"


def read_range(path: Path, start: int, size: int) -> bytes:
    """Return `size` bytes of a local or remote file from `start`, or fewer at its end."""
    if is_remote(path):
        return objects().read(uri(path), start, size)
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)


def open_file(path: Path, size: int) -> BinaryIO:
    """Open a local or remote file for reading; at least `size` bytes of a remote one are requested at once."""
    return objects().open_object(uri(path), size) if is_remote(path) else path.open("rb")


def fetch(path: Path, target: Path) -> None:
    """Copy a local or remote file to the local `target`."""
    if is_remote(path):
        objects().download(uri(path), target)
    else:
        shutil.copyfile(path, target)


def content(path: Path) -> bytes:
    """Return the bytes of a remote file.

    Raises:
        FileNotFoundError: There is no such file.
    """
    return objects().read(uri(path))


def local_copies(folder: Path, names: Sequence[str]) -> Path:
    """Return a folder of this machine with these files of `folder`: itself, if it is not remote."""
    if not names or not is_remote(folder):
        return folder
    with _copying:  # all threads of the process use one copy
        return _copied(folder, tuple(names))


@functools.cache
def _copied(folder: Path, names: tuple[str, ...]) -> Path:
    target = Path(tempfile.mkdtemp(prefix="slipway-"))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    for name in names:
        fetch(folder / name, target / name)
    return target


def store(source: Path, target: Path) -> None:
    """Copy a local file to `target`, which may be remote, atomically."""
    if is_remote(target):
        objects().upload(source, uri(target))
        return
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, beside)
    beside.replace(target)


class ReadAhead:
    """Reads examples of which it started to read the next ones before they were asked for.

    Args:
        read: Reads one example: receives its key, offset and size. Called in several threads.
    """

    def __init__(self, read: Callable[[bytes, int, int], bytes]) -> None:
        self._read = read
        self._started: dict[tuple[bytes, int], Future[bytes]] = {}

    def ahead(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Yield the examples in their order, each while those after it are read."""
        following: deque[Example] = deque()
        size = 0
        try:
            for example in examples:
                self._start(example)
                following.append(example)
                size += example[2]
                while len(following) >= IN_FLIGHT or size > AHEAD_BYTES:
                    size -= following[0][2]
                    yield following.popleft()
            while following:
                yield following.popleft()
        finally:
            for started in self._started.values():
                started.cancel()
            self._started.clear()

    def read(self, key: bytes, offset: int, size: int) -> bytes:
        """Return the data of an example; raises what reading it raises."""
        started = self._started.pop((key, offset), None)
        return started.result() if started else self._read(key, offset, size)

    def _start(self, example: Example) -> None:
        key, _, size, offset = example
        if size <= AHEAD_BYTES:
            self._started[key, offset] = buckets.threads().submit(self._read, key, offset, size)


class RemoteFiles:
    """Reads files below a folder in a bucket, and those with absolute paths."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files = ReadAhead(self._read)

    def ahead(self, examples: Iterable[Example]) -> Iterator[Example]:
        return self._files.ahead(examples)

    def read(self, key: bytes, offset: int, size: int) -> bytes:
        return self._files.read(key, offset, size)

    def _read(self, key: bytes, offset: int, size: int) -> bytes:  # noqa: ARG002
        path = self._root / os.fsdecode(key)
        if not path.is_relative_to(CLOUD_MOUNT):
            raise Unusable(f"it cannot be read: {path} is not in a bucket")
        try:
            data = objects().read(uri(path))
        except FileNotFoundError as error:
            raise Unusable(f"it cannot be read: {error.strerror}") from None
        if len(data) != size:
            raise UserError(
                f"{uri(path)} changed while the data set was prepared: it has {len(data):,} bytes, not {size:,}.",
                setting="data.source",
                fix="run again when no other process writes to the source",
            )
        return data

    def additional(self, offset: int) -> tuple[()]:  # noqa: ARG002
        return ()
