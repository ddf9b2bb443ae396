"""Checkpoint storage: one folder per step and a pointer to the newest; incomplete folders are ignored.

`step-00000120/` holds `state.npz` (the arrays) and `checkpoint.json` (step, the arrays' names and checksum, the run's
identity and the training loop's state, with one checksum over all of these), which is written last. `latest` names the
newest complete folder and is replaced atomically, so the folder that it names is complete even if the process is
killed. Folders are never renamed: a mounted bucket cannot do that atomically.

If arrays are sharded, each other process writes what it holds of them into `state-00001.npz` and so on, with its record
`part-00001.json`. The chief commits the checkpoint, with their number in `checkpoint.json`, once all have written.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipway.core import events, formats
from slipway.core.atomic import FULL, append_line, replace_file
from slipway.core.errors import UserError
from slipway.trainer.checkpoint.parts import Array, Indices, Parts

POINTER = "latest"
STATE_FILE = "state.npz"
RECORD_FILE = "checkpoint.json"
WENT_BACK_FILE = "went-back.txt"
_FOLDER = re.compile(r"step-(\d{8,})")
# Seconds before each repetition of a read that failed.
READ_WAITS = (1.0, 2.0, 4.0, 8.0)
# Error numbers that say what is in the folder; any other one says nothing about the checkpoint.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)

# What reading a damaged checkpoint raises.
DAMAGED = (OSError, ValueError, RecursionError, zipfile.BadZipFile)

Value = TypeVar("Value")

logger = logging.getLogger(__name__)


class StorageUnavailable(UserError):
    """A checkpoint cannot be read, which says nothing about its content; another attempt may succeed."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint after `step` steps: `state` (arrays by name) and `record` (JSON values).

    `number` is the same on all processes that write one with sharded arrays, and another one for each save.
    """

    step: int
    state: dict[str, NDArray[np.generic] | Parts]
    record: dict[str, dict[str, Any]]
    number: float = 0.0

    @property
    def is_sharded(self) -> bool:
        """Whether each process has to write its part."""
        return any(isinstance(array, Parts) for array in self.state.values())


class Checkpoints:
    """The checkpoints in one folder. The chief writes them, or all processes their parts; all replicas read them."""

    def __init__(self, folder: Path, keep: int, process: int = 0, processes: int = 1) -> None:
        self._folder = folder
        self._keep = keep
        self._process, self._processes = process, processes
        self._written: dict[str, Any] = {}  # the record that `commit` writes
        self._is_failing = False

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write this process's part of a checkpoint, and commit one without sharded arrays.

        On a disk error, warns and returns False.
        """
        folder, self._written = self._folder / _name(checkpoint.step), {}
        with self._disk_errors(checkpoint.step):
            if checkpoint.is_sharded:  # others may be writing their parts
                (folder / RECORD_FILE).unlink(missing_ok=True)
            else:
                _remove(folder)
            folder.mkdir(parents=True, exist_ok=checkpoint.is_sharded)
            content = _write(folder, checkpoint, self._process)
            if self._process:
                _write_record(folder / _record_file(self._process), content)
            self._written = {**content, "parts": self._processes if checkpoint.is_sharded else 1}
        return bool(self._written) and (checkpoint.is_sharded or self.commit())

    def commit(self) -> bool:
        """Complete the checkpoint that all processes have written, update the pointer and delete old ones.

        Does nothing but on the chief. On a disk error, warns and returns False.
        """
        if self._process:
            return True
        step, is_committed = self._written["step"], False
        folder = self._folder / _name(step)
        with self._disk_errors(step):
            _write_record(folder / RECORD_FILE, self._written)
            if (self._folder / POINTER).is_dir():
                _remove(self._folder / POINTER)
            replace_file(self._folder / POINTER, folder.name.encode())
            is_committed = True
        if not is_committed:
            return False
        if self._is_failing:
            events.message(f"checkpoints are saved again, from step {step} on")
        self._is_failing = False
        self._remove_all_but(step)
        return True

    @contextlib.contextmanager
    def _disk_errors(self, step: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.give_up(step, f"no space left in {self._folder}" if error.errno in FULL else str(error))

    def give_up(self, step: int, why: str) -> None:
        """Remove a checkpoint that could not be saved, and tell the user: once, until one is saved again."""
        if not self._process:
            shutil.rmtree(self._folder / _name(step), ignore_errors=True)
        text = f"could not save a checkpoint at step {step}: {why}; training continues and the save will be retried"
        logger.warning("%s", text)
        if not self._is_failing:
            events.message(f"warning: {text}")
        self._is_failing = True

    def newest(self) -> Checkpoint | None:
        """Return the newest valid checkpoint, or None; tell the user about each damaged one skipped.

        Checkpoints newer than the one that `latest` names are ignored, unless that pointer is invalid.

        Raises:
            StorageUnavailable: The storage fails, so the newest one is unknown.
        """
        pointed = _retried(self._folder, lambda: pointed_step(self._folder))
        steps = [step for step in _retried(self._folder, self._steps) if pointed is None or step <= pointed]
        if pointed is not None and pointed not in steps:
            steps.append(pointed)
        skipped: list[int] = []
        for step in sorted(steps, reverse=True):
            if checkpoint := self.at(step):
                break
            if pointed is not None or (self._folder / _name(step) / RECORD_FILE).exists():  # else an interrupted save
                skipped.append(step)
        else:
            checkpoint = None
        if skipped:
            text = self._went_back(skipped, checkpoint)
            events.message(text)
            with contextlib.suppress(OSError):  # the training does not depend on it
                append_line(self._folder / WENT_BACK_FILE, text)
        return checkpoint

    def went_back(self) -> list[str]:
        """Return what was said each time that training resumed from an older checkpoint than the newest."""
        try:
            return list(dict.fromkeys((self._folder / WENT_BACK_FILE).read_text().splitlines()))
        except OSError:
            return []

    def _went_back(self, skipped: list[int], checkpoint: Checkpoint | None) -> str:
        *earlier, last = map(str, skipped)
        which = f"s of steps {', '.join(earlier)} and {last} are" if earlier else f" of step {last} is"
        exists = earlier or (self._folder / _name(skipped[0])).exists()
        then = f"resumes from the one of step {checkpoint.step}" if checkpoint else "starts from the beginning"
        return f"the checkpoint{which} {'damaged' if exists else 'missing'}; training {then}"

    def at(self, step: int) -> Checkpoint | None:
        """Return the checkpoint of `step` if it is valid, otherwise warn and return None.

        Does not read `latest`: on a mounted bucket, replicas other than the chief may see an earlier version of a file
        that is replaced (gcsfuse caches attributes, on large machines without a time limit).

        Raises:
            StorageUnavailable: The storage fails.
        """
        try:
            return _retried(self._folder / _name(step), lambda: self._read(step))
        except DAMAGED as error:
            logger.warning("the checkpoint of step %d is damaged (%s)", step, error)
        return None

    def damages(self) -> Iterator[tuple[Path, str | None]]:
        """Yield each checkpoint's folder, oldest first, with what is damaged in it; None for a whole one.

        Raises:
            StorageUnavailable: The storage fails.
        """
        pointed = pointed_step(self._folder) or 0
        for step in sorted(self._steps()):
            folder = self._folder / _name(step)
            if step > pointed and not (folder / RECORD_FILE).exists():
                continue  # a save that was interrupted
            try:
                _retried(folder, partial(self._read, step))
                yield folder, None
            except DAMAGED as error:
                yield folder, str(error)

    def unseen(self, step: int) -> StorageUnavailable:
        """Return the error of a replica that cannot read the checkpoint that the chief has read."""
        return StorageUnavailable(
            f"The chief resumes from the checkpoint of step {step}, which this replica cannot read in {self._folder}.",
            allowed="a folder on storage that all replicas share",
            fix="check the mount of that folder on this replica's machine",
        )

    def _read(self, step: int) -> Checkpoint:
        """Return a checkpoint; its sharded arrays are read when they are used.

        The chief verifies all files, the other processes the one with whole arrays.
        """
        folder = self._folder / _name(step)
        content = _read_record(folder / RECORD_FILE, step)
        state: dict[str, NDArray[np.generic] | Parts] = {}
        pieces: dict[str, dict[Indices, tuple[Indices, Callable[[], Array]]]] = {}
        for process in range(content["parts"]):
            record, path = content, folder / _state_file(process)
            if process:
                record = _read_record(folder / _record_file(process), step)
                if record["number"] != content["number"]:
                    raise ValueError(f"{_record_file(process)} belongs to another save")
            if (process == 0 or self._process == 0) and _digest(path) != record["sha256"]:
                raise ValueError(f"{path.name} does not match the recorded checksum")
            if process == 0:
                with np.load(path, allow_pickle=False) as arrays:
                    state = {
                        name: arrays[f"array{number}"]
                        for number, name in enumerate(record["names"])
                        if number not in {piece["number"] for piece in record["pieces"]}
                    }
            for piece in record["pieces"]:
                loaded = tuple(piece["size"]), partial(_array, path, piece["number"])
                pieces.setdefault(piece["name"], {})[tuple(piece["start"])] = loaded
                state[piece["name"]] = Parts(tuple(piece["shape"]), np.dtype(piece["dtype"]), pieces[piece["name"]])
        return Checkpoint(step, state, content["record"], content["number"])

    def _steps(self) -> list[int]:
        try:
            names = [path.name for path in self._folder.iterdir()]
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            return []
        matches = map(_FOLDER.fullmatch, names)
        return [int(match[1]) for match in matches if match]

    def _remove_all_but(self, newest: int) -> None:
        """Keep the last `keep` checkpoints up to `newest`; delete older ones and those of an abandoned later state."""
        steps = sorted(self._steps())
        kept = [step for step in steps if step <= newest][-self._keep :]
        for step in steps:
            if step not in kept:
                _remove(self._folder / _name(step))


def pointed_step(folder: Path) -> int | None:
    """Return the step that the pointer in `folder` names; None if the pointer is missing or invalid.

    Raises:
        OSError: The storage fails.
    """
    try:
        match = _FOLDER.fullmatch((folder / POINTER).read_text("ascii", errors="replace").strip())
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        return None
    return int(match[1]) if match else None


def _retried(path: Path, read: Callable[[], Value]) -> Value:
    """Return the result of `read`, which is repeated while the storage fails.

    Raises:
        StorageUnavailable: It fails each time.
    """
    for seconds in (*READ_WAITS, None):
        try:
            return read()
        except OSError as error:
            if error.errno in _ABSENT:
                raise
            if seconds is None:
                raise StorageUnavailable(
                    f"The storage is unavailable: {error}.",
                    fix="check the disk or mount, then: slipway run --resume latest; if one checkpoint can never be "
                    f"read again, remove it to resume from an older one: {path}",
                ) from None
            logger.warning("cannot read a checkpoint (%s); reading it again in %g s", error, seconds)
            time.sleep(seconds)
    raise AssertionError  # the last attempt returns or raises


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _state_file(process: int) -> str:
    return f"state-{process:05d}.npz" if process else STATE_FILE


def _record_file(process: int) -> str:
    return f"part-{process:05d}.json"


def _write(folder: Path, checkpoint: Checkpoint, process: int) -> dict[str, Any]:
    """Write the arrays of one process, of which whole ones are the chief's; return their record.

    Arrays are stored by number, since names in an archive must not look like paths.
    """
    names: list[str] = []
    pieces: list[dict[str, Any]] = []

    def arrays() -> Iterator[NDArray[np.generic]]:
        for name, array in checkpoint.state.items():
            if isinstance(array, Parts):
                for start, (size, load) in array.parts.items():
                    place = {"name": name, "number": len(names), "start": start, "size": size}
                    pieces.append({**place, "shape": array.shape, "dtype": array.dtype.name})
                    names.append(name)
                    yield load()
            elif not process:
                names.append(name)
                yield array

    path = folder / _state_file(process)
    with path.open("wb") as file:
        stored: dict[str, Any] = {f"array{number}": array for number, array in enumerate(arrays())}
        np.savez(file, **stored)
        file.flush()
        os.fsync(file.fileno())
    return {
        formats.KEY: formats.FORMAT,
        "step": checkpoint.step,
        "number": checkpoint.number,
        "sha256": _digest(path),
        "names": names,
        "pieces": pieces,
        "record": checkpoint.record if not process else {},
    }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _array(path: Path, number: int) -> NDArray[np.generic]:
    with np.load(path, allow_pickle=False) as arrays:
        array: NDArray[np.generic] = arrays[f"array{number}"]
    return array


def _write_record(path: Path, content: dict[str, Any]) -> None:
    replace_file(path, json.dumps({**content, "checksum": _checksum(content)}).encode())


def _read_record(path: Path, step: int) -> dict[str, Any]:
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
        raise ValueError(f"{path.name} does not match its checksum")
    formats.check(content, path)
    if content["step"] != step:
        raise ValueError(f"it is the checkpoint of step {content['step']}")
    return content


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
