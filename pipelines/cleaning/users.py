"""The projects that use a store of data sets, as the store itself knows them.

`STORE/.users/` has a file for each project, to which its runs append: a line when a run begins that may choose a data
set, and one with its data set when it has ended. A project is a folder, by its path and inode: a copy is another one,
and so is what another container has at the same path. In mounted buckets, there are no such files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.core.atomic import append_line, json_lines
from slipway.core.paths import in_bucket, local_path, project
from slipway.pipelines.runs.observers import Observer, Say

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.runs.record import RunFolder, RunRecord

FOLDER = ".users"
# Since when all projects are known.
ABOUT = "README"
TEXT = """The projects whose runs use the data sets of this folder, a file each: slipway runs clean deletes none that
another project uses. If a project no longer exists, delete its file.
"""


@dataclass
class User:
    """A project that uses a store: its file there, its path, the store's, its runs in progress, and its data sets."""

    file: Path
    project: str = ""
    store: str = ""
    running: set[str] = field(default_factory=set)
    data_sets: set[str] = field(default_factory=set)


class Users:
    """The projects that use the store in `folder`, seen from the project in `root`."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._store, self._root = folder.resolve(), root.resolve()
        self._folder = self._store / FOLDER
        project = f"{self._root} {self._root.stat().st_ino}"
        self._file = self._folder / f"{hashlib.sha256(project.encode()).hexdigest()[:16]}.jsonl"

    @property
    def since(self) -> datetime:
        """Since when all projects are known; data sets that are older may have others."""
        try:
            return datetime.fromtimestamp((self._folder / ABOUT).stat().st_mtime, UTC)
        except OSError:
            return datetime.max.replace(tzinfo=UTC)

    def begin(self, run_id: str) -> None:
        """Note that a run of this project begins, which may choose any data set of the store, if there is one.

        Raises:
            OSError: The store cannot be written.
        """
        if self._is_there:
            self._append(begins=run_id)

    def end(self, run_id: str, data_sets: Iterable[str] = ()) -> None:
        """Note that a run has ended, and the fingerprints of its data sets; see `begin` for errors."""
        if self._is_there:
            self._append(ends=run_id, uses=sorted(data_sets))

    def settle(self, data_sets: Collection[str], running: Collection[str]) -> None:
        """Note that this project uses only these data sets, and that only these runs are in progress."""
        if not self._folder.is_dir():
            return
        with contextlib.suppress(OSError):  # the store is read-only
            known = _read(self._file)
            for run_id in sorted(known.running - {*running}):
                self.end(run_id)
            new, unused = sorted({*data_sets} - known.data_sets), sorted(known.data_sets - {*data_sets})
            if new or unused:
                self._append(uses=new, releases=unused)

    def others(self) -> list[User]:
        """Return the other projects."""
        files = sorted(self._folder.glob("*.jsonl")) if self._folder.is_dir() else []
        return [user for user in map(_read, files) if user.file != self._file and not self._was_here(user)]

    @property
    def _is_there(self) -> bool:
        return self._store.is_dir() and not in_bucket(self._store)

    def _was_here(self, user: User) -> bool:
        """Whether a project is this one before its folder, with the store in it, was moved, copied or mounted here."""
        inside = self._store.is_relative_to(self._root) and Path(user.store).is_relative_to(user.project)
        return (
            inside
            and user.store != str(self._store)
            and Path(user.store).relative_to(user.project) == self._store.relative_to(self._root)
        )

    def _append(self, **fields: object) -> None:
        self._folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError), (self._folder / ABOUT).open("x") as file:
            file.write(TEXT)
        append_line(self._file, json.dumps({"project": str(self._root), "store": str(self._store), **fields}))


class Noted(Observer):
    """Notes the runs that prepare data in the stores of these."""

    def executing(
        self,
        folder: RunFolder,  # noqa: ARG002
        config: RunConfig,
        record: RunRecord,
        say: Say,
    ) -> AbstractContextManager[None]:
        return noted(config, record, project() or Path.cwd(), say)


@contextlib.contextmanager
def noted(config: RunConfig, record: RunRecord, root: Path, say: Say) -> Iterator[None]:
    """Return a context in which a run that prepares data is noted in its store, as one of the project in `root`."""
    preparing = next((step for step in record.steps if step.name == "prepare_data"), None)
    if preparing is None or preparing.status == "succeeded" or config.prepared is None:
        yield
        return
    users = Users(root / local_path(config.prepared.store).expanduser(), root)
    try:
        users.begin(record.run_id)
    except OSError as error:
        say(
            f"warning: could not note in {config.prepared.store} that this project uses its data sets: "
            f"{error.strerror}; if another project does, too, its slipway runs clean may delete them"
        )
    try:
        yield
    finally:
        fingerprint = preparing.outputs.get("fingerprint")
        with contextlib.suppress(OSError):  # then the run counts as in progress, and no data set is deleted
            users.end(record.run_id, [str(fingerprint)] if fingerprint else ())


def _read(file: Path) -> User:
    """Return what the lines of a file say; a missing or damaged one says nothing."""
    user = User(file)
    for line in json_lines(file.read_bytes() if file.is_file() else b""):
        user.project, user.store = str(line.get("project", user.project)), str(line.get("store", user.store))
        user.running = (user.running | {str(line.get("begins", ""))}) - {str(line.get("ends", "")), ""}
        user.data_sets |= set(map(str, line.get("uses", ())))
        user.data_sets -= set(map(str, line.get("releases", ())))
    return user
