"""The study of a configuration: the trials in an SQLite database of the project."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.components.train import study as studies
from slipway.components.train.tuning import SearchSettings
from slipway.core.errors import UserError
from slipway.core.paths import in_project
from slipway.pipelines.config.config import RunConfig

if TYPE_CHECKING:
    import optuna

FOLDER = Path("tuning")
# Settings of the section that do not make another study; the seed is one of the training.
FREE = {"trials", "hours", "parallel", "failures", "seed"}


def open_study(config: RunConfig, search: SearchSettings) -> optuna.Study:
    """Return the study of a configuration; the same one as long as neither its settings nor the ranges change.

    Raises:
        UserError: Optuna is not installed.
    """
    folder = in_project(FOLDER)
    folder.mkdir(exist_ok=True)
    values = config.model_dump(mode="json", by_alias=True)
    values.pop("track", None)
    values["tune"] = search.model_dump(mode="json", exclude=FREE)
    fingerprint = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
    storage = f"sqlite:///{(folder / config.name).absolute()}.db"
    return studies.open_study(storage, f"{config.name}-{fingerprint}", search)


@contextlib.contextmanager
def locked(config: RunConfig) -> Iterator[None]:
    """Return a context in which only this command tunes a configuration of this name.

    Raises:
        UserError: Another one does.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(in_project(FOLDER) / f"{config.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"Another command tunes {config.name}.", fix="wait for it, or change name") from None
    try:
        yield
    finally:
        lock.release()
