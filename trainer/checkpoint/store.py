"""Checkpoint storage: one folder per step and a pointer to the newest; incomplete folders are ignored.

`step-00000120/` holds `state.npz` (the arrays) and `checkpoint.json` (the arrays' checksum and the training loop's
state), which is written last. `latest` names the newest complete folder and is replaced atomically, so the folder
that it names is complete even if the process is killed. Folders are never renamed: a mounted bucket cannot do that
atomically.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway.core.atomic import FULL, replace_file

POINTER = "latest"
STATE_FILE = "state.npz"
RECORD_FILE = "checkpoint.json"
_FOLDER = re.compile(r"step-(\d{8,})")

logger = logging.getLogger(__name__)


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

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint, update the pointer and delete old ones. On a disk error, warn and return False."""
        folder = self._folder / _name(checkpoint.step)
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _write(folder, checkpoint)
            replace_file(self._folder / POINTER, folder.name.encode())
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            full = error.errno in FULL
            logger.warning(
                "could not save a checkpoint at step %d: %s; training continues and the save will be retried",
                checkpoint.step,
                f"no space left in {self._folder}" if full else error,
            )
            return False
        self._remove_all_but(checkpoint.step)
        return True

    def newest(self) -> Checkpoint | None:
        """Return the newest valid checkpoint, or None; warn about each damaged one skipped.

        Checkpoints newer than the one that `latest` names are ignored, unless that pointer is unreadable.
        """
        pointed = pointed_step(self._folder)
        for step in sorted(self._steps(), reverse=True):
            if pointed is not None and step > pointed:
                continue
            if found := self.at(step):
                return found
        return None

    def at(self, step: int) -> Checkpoint | None:
        """Return the checkpoint of `step` if it is valid, otherwise warn and return None.

        Does not read `latest`: on a mounted bucket, replicas other than the chief may see an earlier version of a file
        that is replaced (gcsfuse caches attributes, on large machines without a time limit).
        """
        try:
            return self._read(step)
        except (OSError, ValueError, KeyError) as error:
            logger.warning("the checkpoint of step %d is damaged (%s)", step, error)
        return None

    def _read(self, step: int) -> Checkpoint:
        folder = self._folder / _name(step)
        content = json.loads((folder / RECORD_FILE).read_text())
        with (folder / STATE_FILE).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != content["sha256"]:
                raise ValueError(f"{STATE_FILE} does not match the recorded checksum")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                # Arrays are stored by number, since names in an archive must not look like paths.
                state = {name: arrays[f"array{number}"] for number, name in enumerate(content["names"])}
        return Checkpoint(step, state, content["record"])

    def _steps(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        matches = (_FOLDER.fullmatch(path.name) for path in self._folder.iterdir())
        return [int(match[1]) for match in matches if match]

    def _remove_all_but(self, newest: int) -> None:
        """Keep the last `keep` checkpoints up to `newest`; delete older ones and those of an abandoned later state."""
        steps = sorted(self._steps())
        kept = [step for step in steps if step <= newest][-self._keep :]
        for step in steps:
            if step not in kept:
                shutil.rmtree(self._folder / _name(step), ignore_errors=True)


def pointed_step(folder: Path) -> int | None:
    """Return the step that the pointer in `folder` names; None if the pointer is missing or invalid."""
    try:
        match = _FOLDER.fullmatch((folder / POINTER).read_text().strip())
    except FileNotFoundError:
        return None
    return int(match[1]) if match else None


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
    content = {"sha256": digest, "names": list(checkpoint.state), "record": checkpoint.record}
    replace_file(folder / RECORD_FILE, json.dumps(content).encode())
