"""What can be deleted from this machine: old runs, and prepared data sets that no other run and no model refers to.

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
    """Return what can be deleted and was last written longer than `age` ago: runs first, each oldest first.

    Raises:
        UserError: What a run or a registered model refers to cannot be read.
    """
    before = datetime.now(UTC) - age
    records = {folder.run_id: folder.read() for folder in runs.folders()}
    models = list(_registered(registry))
    kept = _kept(records, {str(each["run_id"]) for each in models}, before)
    found = [
        Unneeded("run", folder.path, _ended(records[folder.run_id]), _size(folder.path))
        for folder in runs.folders()
        if folder.run_id in records and folder.run_id not in kept
    ]
    used = {path for run_id in kept for path in _data_sets(records[run_id])}
    fingerprints = {each.get("data_fingerprint") for each in models}
    # A run that has just begun has not recorded its data set yet.
    if not any(record.status == "running" for record in records.values()):
        found += [
            each
            for each in _prepared(store)
            if each.since < before
            and each.path.resolve() not in used
            and manifest.read(each.path).fingerprint not in fingerprints
        ]
    return sorted(found, key=lambda each: (each.kind != "run", each.since))


def delete(found: Iterable[Unneeded]) -> Iterator[Unneeded]:
    """Delete what was found, and yield it, but what was deleted or is used meanwhile."""
    for each in found:
        hidden = each.path.with_name(f"{DELETED}{each.path.name}")
        try:
            with RunFolder(each.path).held() if each.kind == "run" else _unused(each.path):
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


@contextlib.contextmanager
def _unused(data_set: Path) -> Iterator[None]:
    """Hold the lock under which the data set is published.

    Raises:
        UserError: A run has begun meanwhile.
    """
    if any(folder.read().status == "running" for folder in runs.folders()):
        raise UserError("A run has begun.")
    with Store(str(data_set.parent.parent), data_set.parent.name).publishing(data_set.name):
        yield


def _kept(records: dict[str, RunRecord], registered: set[str], before: datetime) -> set[str]:
    newest = in_project(runs.ROOT) / runs.LATEST
    kept = {newest.resolve().name} | registered
    kept |= {
        run_id
        for run_id, record in records.items()
        if record.status == "running"
        or _ended(record) >= before
        or (record.study and in_project(SEARCHES / f"{record.name}.db").exists())
    }
    kept &= records.keys()
    added = kept
    while added:
        sources = {part.source for run_id in added if (part := records[run_id].part) and part.source}
        added = (sources & records.keys()) - kept
        kept |= added
    return kept


def _registered(registry: Path) -> Iterator[JsonObject]:
    known = Registry(registry)
    for model in known.models():
        for version in known.versions(model):
            yield version.metadata


def _ended(record: RunRecord) -> datetime:
    return record.ended or record.created


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
