"""Operations of this process on files below a folder: counted, and one of them, or all from it on, made to fail.

Python's own calls are replaced: open, os.open, write, sendfile, fsync, rename, unlink and their relatives, through the
file objects of `open` with their buffers. What C libraries do themselves, such as sqlite3, is not seen.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

# The functions of `os` that each operation stands for, besides `open` and writes.
OPERATIONS = {
    "open": ("open", "mkdir", "symlink"),
    "write": ("write", "sendfile"),
    "fsync": ("fsync",),
    "rename": ("rename", "replace"),
    "unlink": ("unlink", "remove", "rmdir"),
}
Mode = Literal["EIO", "ENOSPC", "short"]


@dataclass(frozen=True)
class Fault:
    """The failure of the operation with this number, from 1, and with `lasting` of all later ones of its kind.

    A short write writes half of the data; with `lasting`, the disk is full from then on.
    """

    operation: str
    number: int
    mode: Mode
    lasting: bool

    def __str__(self) -> str:
        return f"{self.operation} {self.number} {self.mode}{' from there on' if self.lasting else ''}"


class Disk:
    """Counts the operations below `root`, and fails those of `fault`."""

    def __init__(self, root: Path, fault: Fault | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._root = root.resolve()
        self._fault = fault

    def at(self, operation: str, path: Any, size: int = 0) -> int:
        """Count an operation; return how many of `size` bytes to write.

        Raises:
            OSError: It fails.
        """
        if not self.has(path):
            return size
        self.counts[operation] += 1
        fault, number = self._fault, self.counts[operation]
        if fault is None or fault.operation != operation or number < fault.number:
            return size
        if number > fault.number and not fault.lasting:
            return size
        if fault.mode == "short" and number == fault.number:
            return max(1, size // 2)
        code = errno.EIO if fault.mode == "EIO" else errno.ENOSPC
        raise OSError(code, os.strerror(code), os.fspath(path) if isinstance(path, str | os.PathLike) else None)

    def has(self, path: Any) -> bool:
        """Return whether a path, or an open file by its descriptor, is below the root."""
        if isinstance(path, int):
            try:
                path = Path(f"/proc/self/fd/{path}").readlink()
            except OSError:
                return False
        return Path(os.fsdecode(path)).absolute().is_relative_to(self._root)

    @contextmanager
    def failing(self) -> Iterator[Disk]:
        """Return a context in which this process's operations are those of this disk."""
        with pytest.MonkeyPatch.context() as patch:
            for operation, names in OPERATIONS.items():
                for name in names:
                    patch.setattr(os, name, self._replacement(operation, name, getattr(os, name)))
            opened = self._opener(builtins.open)
            patch.setattr(builtins, "open", opened)
            patch.setattr(io, "open", opened)
            yield self

    def _replacement(self, operation: str, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def at_path(path: Any, *arguments: Any, **named: Any) -> Any:
            where = path
            if (folder := named.get("dir_fd")) is not None and not isinstance(path, int):
                where = Path(f"/proc/self/fd/{folder}").readlink() / os.fsdecode(path)
            self.at(operation, where)
            return original(path, *arguments, **named)

        def write(descriptor: int, data: Any) -> int:
            return original(descriptor, data[: self.at("write", descriptor, len(data))])

        def sendfile(target: int, source: int, offset: int | None, count: int) -> int:
            left = max(0, os.fstat(source).st_size - (offset or 0))
            return original(target, source, offset, self.at("write", target, min(count, left)) if left else count)

        def symlink(source: Any, path: Any, *arguments: Any, **named: Any) -> None:
            self.at(operation, path)
            original(source, path, *arguments, **named)

        return {"write": write, "sendfile": sendfile, "symlink": symlink}.get(name, at_path)

    def _opener(self, original: Callable[..., Any]) -> Callable[..., Any]:
        disk = self

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                view = memoryview(data).cast("B")
                return super().write(view[: disk.at("write", self.fileno(), len(view))]) or 0

        def opened(
            file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
            newline: Any = None, closefd: bool = True, opener: Any = None,
        ) -> Any:  # fmt: skip
            if not disk.has(file):
                return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
            if not isinstance(file, int):
                disk.at("open", file)
            if not set(mode) & set("wxa+"):
                return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
            raw = Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            if buffering == 0:
                return raw
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

        return opened


def faults(counts: Counter[str]) -> list[Fault]:
    """Return every fault of an undisturbed act with these counts."""
    return [
        Fault(operation, number, mode, lasting)
        for operation, count in counts.items()
        for number in range(1, count + 1)
        for mode in (("EIO", "ENOSPC", "short") if operation == "write" else ("EIO", "ENOSPC"))
        for lasting in (False, True)
    ]
