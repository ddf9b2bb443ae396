"""Checkpoint storage: one folder per step and a pointer to the newest; incomplete folders are ignored.

`step-00000120/` holds `state.npz` (the arrays) and `checkpoint.json` (step, the arrays' names and checksum, the run's
identity and the training loop's state, with one checksum over all of these), which is written last. `latest` names the
newest complete folder and is replaced atomically, so the folder that it names is complete even if the process is
killed. Folders are never renamed: a mounted bucket cannot do that atomically.
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
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipway.core import events
from slipway.core.atomic import FULL, append_line, replace_file
from slipway.core.errors import UserError

POINTER = "latest"
STATE_FILE = "state.npz"
RECORD_FILE = "checkpoint.json"
WENT_BACK_FILE = "went-back.txt"
_FOLDER = re.compile(r"step-(\d{8,})")
# A failed save (full disk) is retried after this delay, or when the next save is due, whichever comes first.
RETRY_SECONDS = 30.0
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
    """A checkpoint after `step` steps: `state` (arrays by name) and `record` (JSON values)."""

    step: int
    state: dict[str, NDArray[np.generic]]
    record: dict[str, dict[str, Any]]


class Checkpoints:
    """The checkpoints in one folder. The chief writes them; all replicas read them."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._is_failing = False

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint, update the pointer and delete old ones. On a disk error, warn and return False."""
        folder = self._folder / _name(checkpoint.step)
        try:
            _remove(folder)
            folder.mkdir(parents=True)
            _write(folder, checkpoint)
            if (self._folder / POINTER).is_dir():
                _remove(self._folder / POINTER)
            replace_file(self._folder / POINTER, folder.name.encode())
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            text = f"could not save a checkpoint at step {checkpoint.step}: "
            text += f"no space left in {self._folder}" if error.errno in FULL else str(error)
            text += "; training continues and the save will be retried"
            logger.warning("%s", text)
            if not self._is_failing:
                events.message(f"warning: {text}")
            self._is_failing = True
            return False
        if self._is_failing:
            events.message(f"checkpoints are saved again, from step {checkpoint.step} on")
        self._is_failing = False
        self._remove_all_but(checkpoint.step)
        return True

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
            if found := self.at(step):
                break
            if pointed is not None or (self._folder / _name(step) / RECORD_FILE).exists():  # else an interrupted save
                skipped.append(step)
        else:
            found = None
        if skipped:
            text = self._went_back(skipped, found)
            events.message(text)
            with contextlib.suppress(OSError):  # the training does not depend on it
                append_line(self._folder / WENT_BACK_FILE, text)
        return found

    def went_back(self) -> list[str]:
        """Return what was said each time that training resumed from an older checkpoint than the newest."""
        try:
            return list(dict.fromkeys((self._folder / WENT_BACK_FILE).read_text().splitlines()))
        except OSError:
            return []

    def _went_back(self, skipped: list[int], found: Checkpoint | None) -> str:
        *others, last = map(str, skipped)
        which = f"s of steps {', '.join(others)} and {last} are" if others else f" of step {last} is"
        exists = others or (self._folder / _name(skipped[0])).exists()
        then = f"resumes from the one of step {found.step}" if found else "starts from the beginning"
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
        folder = self._folder / _name(step)
        content = json.loads((folder / RECORD_FILE).read_bytes())
        if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
            raise ValueError(f"{RECORD_FILE} does not match its checksum")
        if content["step"] != step:
            raise ValueError(f"it is the checkpoint of step {content['step']}")
        with (folder / STATE_FILE).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != content["sha256"]:
                raise ValueError(f"{STATE_FILE} does not match the recorded checksum")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                # Arrays are stored by number, since names in an archive must not look like paths.
                state = {name: arrays[f"array{number}"] for number, name in enumerate(content["names"])}
        return Checkpoint(step, state, content["record"])

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


class Saver:
    """Writes checkpoints in a thread while training continues, one at a time, each after a call of `first`."""

    def __init__(self, checkpoints: Checkpoints, first: Callable[[], None] | None = None) -> None:
        self._checkpoints = checkpoints
        self._first = first
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._failed_at: float | None = None

    def start(self, checkpoint: Checkpoint) -> None:
        """Start writing a checkpoint, whose arrays must not be modified afterwards.

        Raises:
            Exception: The error of the previous save, unless it was an error of the disk.
        """
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(checkpoint,), name="saver")
        self._thread.start()

    def _write(self, checkpoint: Checkpoint) -> None:
        try:
            if self._first:
                self._first()
            self._failed_at = None if self._checkpoints.save(checkpoint) else time.monotonic()
        except BaseException as error:  # raised by wait()
            self._error = error

    @property
    def due_again(self) -> bool:
        """Whether the last save failed and its retry is due."""
        return self._failed_at is not None and time.monotonic() - self._failed_at >= RETRY_SECONDS

    def wait(self) -> None:
        """Wait for the current save.

        Raises:
            Exception: The error of the save, unless it was an error of the disk.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error


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


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    state = folder / STATE_FILE
    with state.open("wb") as file:
        arrays: dict[str, Any] = {f"array{number}": array for number, array in enumerate(checkpoint.state.values())}
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    with state.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    content = {
        "step": checkpoint.step, "sha256": digest, "names": list(checkpoint.state), "record": checkpoint.record
    }  # fmt: skip
    replace_file(folder / RECORD_FILE, json.dumps({**content, "checksum": _checksum(content)}).encode())


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
