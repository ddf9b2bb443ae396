"""The study of a configuration: the trials in an SQLite database of the project."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.components.train import study as studies
from slipway.components.train.tuning import SearchSettings
from slipway.core.errors import UserError
from slipway.core.paths import in_project
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.programs.source import read_program
from slipway.pipelines.runs import provenance
from slipway.trainer.engines.installed import verify_extra

if TYPE_CHECKING:
    import optuna

FOLDER = Path("tuning")
# An attribute of studies, and the name of the data in it.
MADE_WITH, DATA = "made with", "the data set"
# Settings of the section that do not make another study; the seed is one of the training.
FREE = {"trials", "hours", "trial_hours", "parallel", "failures", "seed"}


def made_with(config: RunConfig, data: str) -> dict[str, str]:
    """Return the SHA-256 (12 digits) of each file of the project with which a configuration trains, and of its data.

    Args:
        config: The configuration.
        data: The fingerprint of the prepared data set, "" for none.
    """
    here = Path.cwd()
    named = [Path(name) for name in provenance.of_here(config)["files"]]
    modules = [".".join(path.with_suffix("").parts) for path in named if path.suffix == ".py"]
    imported = [file.path.relative_to(here) for module in modules for file in read_program(here, module)]
    files = sorted({*named, *imported})
    checksums = {str(path): hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in files}
    return {**checksums, DATA: data} if data else checksums


def studies_of(config: RunConfig, search: SearchSettings) -> list[optuna.Study]:
    """Return the studies of a configuration, newest first: one for each code and data with which trials were made.

    Raises:
        UserError: Optuna is not installed, or the database cannot be read.
    """
    verify_extra("tune")
    import optuna

    first, storage = _first(config, search)
    with _readable(config):
        names = [name for name in optuna.get_all_study_names(storage) if name == first or name.startswith(f"{first}-")]
        names.sort(key=lambda name: (len(name), name), reverse=True)
        return [optuna.load_study(study_name=name, storage=storage) for name in names]


def open_study(config: RunConfig, search: SearchSettings, number: int = 1) -> optuna.Study:
    """Return a study of a configuration by its number, or a new one; neither its settings nor the ranges change.

    Raises:
        UserError: Optuna is not installed, or the database cannot be read.
    """
    first, storage = _first(config, search)
    with _readable(config):
        return studies.open_study(storage, f"{first}-{number}" if number > 1 else first, search)


def _first(config: RunConfig, search: SearchSettings) -> tuple[str, str]:
    """Return the name of the first study of a configuration, and the storage of all."""
    folder = in_project(FOLDER)
    folder.mkdir(exist_ok=True)
    values = config.model_dump(mode="json", by_alias=True)
    values.pop("track", None)
    values["tune"] = search.model_dump(mode="json", exclude=FREE)
    fingerprint = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
    return f"{config.name}-{fingerprint}", f"sqlite:///{(folder / config.name).absolute()}.db"


@contextlib.contextmanager
def _readable(config: RunConfig) -> Iterator[None]:
    """Turn an error of the database into one sentence: it is damaged, of another version, or in use elsewhere."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:
        file = shlex.quote(str(in_project(FOLDER) / f"{config.name}.db"))
        cause = str(error.__cause__ or error).splitlines()[0]
        raise UserError(
            f"The database of the search, {file}, cannot be used: {cause}",
            fix=f"mv {file} {file}.unused, after which slipway tune begins another search",
        ) from error


@contextlib.contextmanager
def locked(config: RunConfig) -> Iterator[None]:
    """Return a context in which only this command tunes a configuration of this name.

    Raises:
        UserError: Another one does.
    """
    from filelock import FileLock, Timeout

    in_project(FOLDER).mkdir(exist_ok=True)
    lock = FileLock(in_project(FOLDER) / f"{config.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"Another command tunes {config.name}.", fix="wait for it, or change name") from None
    try:
        yield
    finally:
        lock.release()
