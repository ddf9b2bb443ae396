"""Old runs and prepared data sets of this machine that no model, search, file or other run refers to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from slipway.components.prepare_data.publishing.store import Store
from slipway.core.errors import UserError, nearest
from slipway.core.paths import short
from slipway.pipelines.cleaning import trash
from slipway.pipelines.cleaning.cleaner import Age, Cleaner, Kept, Unneeded
from slipway.pipelines.cleaning.references import Known, Project, References, folders_in
from slipway.pipelines.runs.record import LATEST, RunFolder


class LocalCleaner(Cleaner):
    """Moves runs and data sets of this machine to the trash: a folder at once."""

    def __init__(self, age: Age) -> None:
        self._project, self._before, self._known = Project.here(age), age.before, Known()
        self._failed: list[Kept] = []

    def unneeded(self) -> list[Unneeded]:
        references = self._references()
        references.settle()
        old = [item for item in (*references.runs, *references.data_sets) if item.path not in references.kept]
        old.sort(key=lambda item: (item.kind != "run", item.since))
        return [Unneeded(item.kind, str(item.path), item.since, _size(item.path)) for item in old]

    def delete(self, to_delete: Iterable[Unneeded]) -> Iterator[Unneeded]:
        trash.empty(self._folders())
        for unneeded in to_delete:
            path = Path(unneeded.path)
            try:
                with RunFolder(path).held() if unneeded.kind == "run" else _unpublished(path):
                    references = self._references()
                    is_there = any(item.path == path for item in (*references.runs, *references.data_sets))
                    if not is_there or path in references.kept:
                        continue
                    trash.discard(path)
            except (UserError, FileNotFoundError):  # it is in use, or was deleted meanwhile
                continue
            except OSError as error:  # as of another user's folder, or one on which a file system is mounted
                self._failed.append(
                    Kept(unneeded.kind, unneeded.path, f"could not be moved to .trash: {error.strerror}")
                )
                continue
            yield unneeded

    def in_progress(self) -> list[str]:
        return self._references().in_progress

    def restore(self, name: str) -> Path:
        """Put back a run or data set that was deleted; see `trash.restore`."""
        return trash.restore(name, self._folders())

    def kept(self, path: str) -> list[Kept]:
        references, unneeded = self._references(), "nothing refers to it: it can be deleted"
        items = (*references.runs, *references.data_sets)
        known = [Kept(item.kind, str(item.path), references.kept.get(item.path, unneeded)) for item in items]
        known += references.left
        resolved = (self._project.runs / path).resolve() if path == LATEST else Path(path).absolute()
        matching = [item for item in known if _overlap(Path(item.path), resolved) or Path(item.path).name == path]
        if not matching:
            near = nearest(path, [name for item in known for name in (short(item.path), Path(item.path).name)])
            raise UserError(
                f"There is no run or data set in {path}.", setting="--why", value=path,
                allowed="a run's id, or a folder; . for all", nearest=near,
                fix=f"slipway runs clean --why {near or '.'}",
            )  # fmt: skip
        return matching

    def left(self) -> list[Kept]:
        return [*self._references().left, *self._failed]

    def _references(self) -> References:
        return References(self._project, self._before, self._known)

    def _folders(self) -> list[Path]:
        """Return the folders with a trash."""
        return [self._project.runs, *(path for path in folders_in(self._project.store) if not path.is_symlink())]


def kept_runs(age: Age) -> set[str]:
    """Return the runs of this machine, on all platforms, that are kept."""
    references = References(Project.here(age), age.before, Known())
    return {item.path.name for item in references.runs if item.path in references.kept}


def _overlap(path: Path, other: Path) -> bool:
    return path.is_relative_to(other) or other.is_relative_to(path)


def _unpublished(data_set: Path) -> contextlib.AbstractContextManager[None]:
    """Return a context with the lock under which the data set is published."""
    return Store(str(data_set.parent.parent), data_set.parent.name).publishing(data_set.name)


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
