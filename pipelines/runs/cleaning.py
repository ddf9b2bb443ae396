"""What is old and not needed: what finds and deletes it on a platform, and on this machine.

On this machine, these are runs and prepared data sets that no model and no other run refers to. Kept is what anything
else depends on: the run that trained a registered model, and its data set; the run on whose steps another one was
built; runs of a search that can be continued; runs in progress, and the newest one.
"""

from __future__ import annotations

import contextlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from slipway.components.prepare_data.publishing.store import Store
from slipway.components.register_model.registry import Registry
from slipway.core import formatting, manifest
from slipway.core.errors import UserError
from slipway.core.paths import in_project, short
from slipway.core.values import JsonObject
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.record import RunFolder, RunRecord

# The folder with the database of each search; see `pipelines.tuning.study`.
SEARCHES = Path("tuning")
DELETED = ".deleted-"

Node = TypeVar("Node")

# Records by run, and when each was written, in nanoseconds.
Known = dict[str, tuple[int, RunRecord]]


@dataclass(frozen=True)
class Unneeded:
    """What can be deleted: its kind, its path or resource name, when it was last written, and its size in bytes."""

    kind: str
    path: str
    since: datetime
    size: int

    def as_dict(self) -> JsonObject:
        """Return it for machines."""
        return {"kind": self.kind, "path": self.path, "since": self.since.isoformat(), "bytes": self.size}

    def lines(self) -> list[str]:
        """Return the line of output."""
        return [f"{formatting.size(self.size):>10}  {self.since:%Y-%m-%d}  {self.kind:8}  {short(self.path)}"]


class Cleaner(ABC):
    """Finds what is old and not needed in one place, and deletes it."""

    @abstractmethod
    def unneeded(self) -> list[Unneeded]:
        """Return what can be deleted, in the order in which it is: what refers to others first, then the oldest first.

        Raises:
            UserError: What refers to it cannot be read.
        """

    @abstractmethod
    def delete(self, found: Iterable[Unneeded]) -> Iterator[Unneeded]:
        """Delete what was found, and yield it, but what was deleted, written or referred to meanwhile."""

    @abstractmethod
    def in_progress(self) -> list[str]:
        """Return the runs in progress; they may not have recorded their data sets, so that all of these are kept."""


@dataclass(frozen=True)
class Age:
    """The least age of what is deleted, and the places that say what is needed: the registry and the data sets here."""

    least: timedelta
    registry: Path = Path("models")
    store: Path = Path("datasets")

    @property
    def before(self) -> datetime:
        """The moment after which nothing that is deleted was written."""
        return datetime.now(UTC) - self.least


def closure(roots: Iterable[Node], refers: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Return the roots, what they refer to, and what that refers to, and so on."""
    found: set[Node] = set()
    left = list(roots)
    while left:
        if (node := left.pop()) not in found:
            found.add(node)
            left += refers(node)
    return found


class LocalCleaner(Cleaner):
    """Deletes runs and data sets of this machine: a folder at once, by a name that nothing finds."""

    def __init__(self, age: Age) -> None:
        self.registry, self.store, self._before = age.registry, age.store, age.before
        self._known = Known()

    def unneeded(self) -> list[Unneeded]:
        runs_kept, data_sets_kept = _kept(self.registry, self._before, self._known)
        found = [
            Unneeded("run", str(folder.path), since, _size(folder.path))
            for folder in runs.folders()
            if folder.run_id not in runs_kept and (since := _last_written(folder)) < self._before
        ]
        if data_sets_kept is not None:
            old = (each for each in _prepared(self.store) if each.since < self._before)
            found += [each for each in old if not _is_used(Path(each.path), data_sets_kept)]
        return sorted(found, key=lambda each: (each.kind != "run", each.since))

    def delete(self, found: Iterable[Unneeded]) -> Iterator[Unneeded]:
        _remove_leftovers(self.store)
        for each in found:
            path = Path(each.path)
            hidden = path.with_name(f"{DELETED}{path.name}")
            try:
                with RunFolder(path).held() if each.kind == "run" else _unpublished(path):
                    runs_kept, data_sets_kept = _kept(self.registry, self._before, self._known)
                    if each.kind == "run":
                        is_needed = path.name in runs_kept
                    else:
                        is_needed = data_sets_kept is None or _is_used(path, data_sets_kept)
                    if is_needed:
                        continue
                    path.rename(hidden)  # at once: nothing half deleted has its name
            except (UserError, FileNotFoundError):
                continue
            shutil.rmtree(hidden)
            yield each

    def in_progress(self) -> list[str]:
        return [folder.run_id for folder in runs.folders() if folder.read().status == "running"]


def kept_runs(age: Age) -> set[str]:
    """Return the runs of this machine, on all platforms, that are kept."""
    return _kept(age.registry, age.before, {})[0]


def _remove_leftovers(store: Path) -> None:
    """Remove what a killed deletion has left."""
    for root in (in_project(runs.ROOT), *_folders(in_project(store))):
        for path in root.glob(f"{DELETED}*"):
            shutil.rmtree(path, ignore_errors=True)


def _unpublished(data_set: Path) -> contextlib.AbstractContextManager[None]:
    """Return a context with the lock under which the data set is published."""
    return Store(str(data_set.parent.parent), data_set.parent.name).publishing(data_set.name)


def _kept(registry: Path, before: datetime, known: Known) -> tuple[set[str], set[Path | str] | None]:
    """Return the kept runs, by id, and data sets, by folder or fingerprint; None: all data sets.

    Only records that have changed since they became `known` are read.
    """
    folders = {folder.run_id: folder for folder in runs.folders()}
    records = {run_id: _record(folder, known) for run_id, folder in folders.items()}
    models = list(_registered(registry))
    kept = {(in_project(runs.ROOT) / runs.LATEST).resolve().name, *(str(each.get("run_id")) for each in models)}
    kept |= {
        run_id
        for run_id, record in records.items()
        if record.status == "running"
        or _last_written(folders[run_id]) >= before
        or (record.model and _exists(record.model))
        or (record.study and in_project(SEARCHES / f"{record.name}.db").exists())
    }
    kept = closure(kept & records.keys(), lambda run_id: _sources(records[run_id]) & records.keys())
    if any(record.status == "running" for record in records.values()):
        return kept, None
    used: set[Path | str] = {path for run_id in kept for path in _data_sets(records[run_id])}
    return kept, used | {str(each.get("data_fingerprint")) for each in models}


def _sources(record: RunRecord) -> set[str]:
    return {record.part.source} if record.part and record.part.source else set()


def _record(folder: RunFolder, known: Known) -> RunRecord:
    changed = folder.record_file.stat().st_mtime_ns
    if known.get(folder.run_id, (None,))[0] != changed:
        known[folder.run_id] = changed, folder.read()
    return known[folder.run_id][1]


def _exists(model: str) -> bool:
    """Whether a registered version exists; one in another registry than a folder is not asked."""
    return not model.startswith("/") or Path(model).exists()


def _registered(registry: Path) -> Iterator[JsonObject]:
    known = Registry(in_project(registry))
    for model in known.models():
        for version in known.versions(model):
            yield version.metadata


def _last_written(folder: RunFolder) -> datetime:
    files = [path for path in (folder.record_file, folder.events_file) if path.exists()]
    return max(datetime.fromtimestamp(path.stat().st_mtime, UTC) for path in files)


def _is_used(data_set: Path, kept: set[Path | str]) -> bool:
    return bool({data_set.resolve(), manifest.read(data_set).fingerprint} & kept)


def _data_sets(record: RunRecord) -> set[Path]:
    values = (step.outputs.get(name) for step in record.steps for name in ("dataset", "data"))
    return {Path(value).resolve() for value in values if isinstance(value, str) and value}


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _prepared(store: Path) -> Iterator[Unneeded]:
    for name in _folders(in_project(store)):
        for path in _folders(name):
            file = path / manifest.FILE_NAME
            if file.is_file():
                since = datetime.fromtimestamp(file.stat().st_mtime, UTC)
                yield Unneeded("data set", str(path.absolute()), since, _size(path))


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
