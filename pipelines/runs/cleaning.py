"""Old runs and prepared data sets on this machine that no model and no other run refers to.

Kept is what anything else depends on: the run that trained a registered model, and its data set; the run on whose steps
another one was built; runs of a search that can be continued; runs in progress, and the newest one.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from slipway.components import formatting
from slipway.components.prepare_data.publishing.store import Store
from slipway.components.register_model.registry import Registry
from slipway.core import manifest
from slipway.core.errors import UserError
from slipway.core.paths import in_project, short
from slipway.core.values import JsonObject
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.record import RunFolder, RunRecord

# The folder with the database of each search; see `pipelines.tuning.study`.
SEARCHES = Path("tuning")
DELETED = ".deleted-"

# Records by run, and when each was written, in nanoseconds.
Known = dict[str, tuple[int, RunRecord]]


@dataclass(frozen=True)
class Unneeded:
    """A run or data set that can be deleted, when it was last written, and its size in bytes."""

    kind: str
    path: Path
    since: datetime
    size: int

    def as_dict(self) -> JsonObject:
        """Return it for machines."""
        return {"kind": self.kind, "path": str(self.path), "since": self.since.isoformat(), "bytes": self.size}

    def lines(self) -> list[str]:
        """Return the line of output."""
        return [f"{formatting.size(self.size):>10}  {self.since:%Y-%m-%d}  {self.kind:8}  {short(str(self.path))}"]


def unneeded(registry: Path, store: Path, age: timedelta) -> list[Unneeded]:
    """Return what can be deleted and was last written `age` ago or earlier: runs first, oldest first.

    Raises:
        UserError: What a run or a registered model refers to cannot be read.
    """
    before = datetime.now(UTC) - age
    runs_kept, data_sets_kept = _kept(registry, before, {})
    found = [
        Unneeded("run", folder.path, since, _size(folder.path))
        for folder in runs.folders()
        if folder.run_id not in runs_kept and (since := _last_written(folder)) < before
    ]
    if data_sets_kept is not None:
        found += [each for each in _prepared(store) if each.since < before and not _is_used(each.path, data_sets_kept)]
    return sorted(found, key=lambda each: (each.kind != "run", each.since))


def in_progress() -> list[str]:
    """Return the runs in progress; they may not have recorded their data sets, so that all of these are kept."""
    return [folder.run_id for folder in runs.folders() if folder.read().status == "running"]


def delete(found: Iterable[Unneeded], registry: Path, age: timedelta) -> Iterator[Unneeded]:
    """Delete what was found, and yield it, but what was deleted, written or referred to meanwhile."""
    before, known = datetime.now(UTC) - age, Known()
    for each in found:
        hidden = each.path.with_name(f"{DELETED}{each.path.name}")
        try:
            with RunFolder(each.path).held() if each.kind == "run" else _unpublished(each.path):
                runs_kept, data_sets_kept = _kept(registry, before, known)
                if each.kind == "run":
                    is_needed = each.path.name in runs_kept
                else:
                    is_needed = data_sets_kept is None or _is_used(each.path, data_sets_kept)
                if is_needed:
                    continue
                each.path.rename(hidden)  # at once: nothing half deleted has its name
        except (UserError, FileNotFoundError):
            continue
        shutil.rmtree(hidden)
        yield each


def remove_leftovers(store: Path) -> None:
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
    kept &= records.keys()
    added = kept
    while added:
        sources = {part.source for run_id in added if (part := records[run_id].part) and part.source}
        added = (sources & records.keys()) - kept
        kept |= added
    if any(record.status == "running" for record in records.values()):
        return kept, None
    used: set[Path | str] = {path for run_id in kept for path in _data_sets(records[run_id])}
    return kept, used | {str(each.get("data_fingerprint")) for each in models}


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
                yield Unneeded("data set", path.absolute(), since, _size(path))


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
