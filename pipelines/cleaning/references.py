"""What refers to the runs and data sets of a project, so that they are kept.

Identity is content: a run is its id, a data set its fingerprint, both also the names of their folders. Absolute paths
in records do not count, since the project may have been moved, copied or mounted elsewhere.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from slipway.components.register_model.registry import Registry, Version
from slipway.core import manifest, paths
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.core.paths import short
from slipway.pipelines.cleaning.cleaner import Age, Kept
from slipway.pipelines.cleaning.users import Users
from slipway.pipelines.config.values import read_yaml
from slipway.pipelines.options import DEFAULT_CONFIGURATION
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.record import RunFolder, RunRecord

# The folder with the database of each search; see `pipelines.tuning.study`.
SEARCHES = "tuning"
# Files of the project, at most two folders deep, whose words may be runs and data sets that they use.
TEXTS = (".yaml", ".yml", ".toml", ".sh", ".py")
MAX_TEXT = 1_000_000  # bytes
WORD = re.compile(r"[^\s\"'=:,;()\[\]{}<>|&$`]+")
FOREIGN = f"not Slipway's: its {manifest.FILE_NAME} is not that of a data set"


@dataclass(frozen=True)
class Project:
    """The folders of one project, found once: its root, runs, registry and data sets."""

    root: Path
    registry: Path
    store: Path

    @classmethod
    def here(cls, age: Age) -> Project:
        """Return the project of the current folder; its store is that of slipway.yaml, if no other is given.

        Raises:
            UserError: slipway.yaml is not YAML.
        """
        root = paths.project() or Path.cwd()
        file = root / DEFAULT_CONFIGURATION
        store = setting(file, "data", "store") if age.store == Age.store and file.is_file() else ""
        return cls(
            root,
            root / age.registry if age.registry == Age.registry else age.registry.absolute(),
            root / Path(store if store and not paths.is_remote(store) else age.store).expanduser()
            if age.store == Age.store
            else age.store.absolute(),
        )

    @property
    def runs(self) -> Path:
        return self.root / runs.ROOT

    def has_alone(self, folder: Path) -> bool:
        """Whether a folder, with all links followed, is in this project, and not in another one that is inside it."""
        owner = paths.project(folder.resolve())
        return folder.resolve().is_relative_to(self.root.resolve()) and owner in (None, self.root.resolve())


@dataclass
class Item:
    """A run or data set: its folder, the names by which it is referred to, and when it was last written."""

    kind: str
    path: Path
    names: frozenset[str]
    since: datetime


class References:
    """What refers to what in a project now.

    Args:
        project: The project.
        before: What was written later is kept.
        known: What was read before.

    Attributes:
        runs: The runs.
        data_sets: The data sets of the store.
        left: What is in the store but is not Slipway's.
        kept: The reason for which a run or data set is kept, by its folder.
        in_progress: The runs in progress.

    Raises:
        UserError: A record, a registered version or the configuration cannot be read.
    """

    def __init__(self, project: Project, before: datetime, known: Known) -> None:
        self._project, self._before, self._known = project, before, known
        folders = list(runs.folders(project.runs))
        self._records = {folder.run_id: known.record(folder) for folder in folders}
        self.in_progress = [run_id for run_id, record in self._records.items() if record.status == "running"]
        self.runs = [Item("run", folder.path, frozenset({folder.run_id}), last_written(folder)) for folder in folders]
        self.data_sets, self.left = self._stored()
        self._users = Users(project.store, project.root)
        self._others = self._users.others()
        self._by_name: dict[str, list[Item]] = defaultdict(list)
        for item in (*self.runs, *self.data_sets):
            for name in item.names:
                self._by_name[name].append(item)
        needed = self._needed_here()
        for data_set in self.data_sets:
            needed += [(data_set, self._recent(data_set) or self._needed_by_others(data_set))]
        self.kept = self._reasons((item, reason) for item, reason in needed if reason)

    def settle(self) -> None:
        """Tell the store which data sets the project uses: those that any of its runs or models names."""
        used = self._reasons([*self._needed_here(), *((run, "it exists") for run in self.runs)])
        names = {name for item in self.data_sets if item.path in used for name in item.names}
        self._users.settle(names, self.in_progress)

    def _stored(self) -> tuple[list[Item], list[Kept]]:
        """Return the data sets in the store, and what else looks like one."""
        data_sets, left = [], []
        for name in folders_in(self._project.store):
            for path in [name] if name.is_symlink() else folders_in(name):
                file = path / manifest.FILE_NAME
                if path.is_symlink():
                    left.append(Kept("link", str(path), "links are not followed"))
                elif file.is_file() and (described := self._known.manifest(path)) is None:
                    left.append(Kept("folder", str(path), FOREIGN))
                elif file.is_file():
                    assert described is not None
                    since = datetime.fromtimestamp(file.stat().st_mtime, UTC)
                    data_sets.append(Item("data set", path, frozenset({path.name, described.fingerprint}), since))
        return data_sets, left

    def _reasons(self, items: Iterable[tuple[Item, str]]) -> dict[Path, str]:
        """Return why items are kept: these, what they refer to, what that refers to, and so on."""
        reasons: dict[Path, str] = {}
        kept = list(items)
        for item, reason in kept:  # which grows
            if item.path not in reasons:
                reasons[item.path] = reason
                kept += [(other, f"{item.kind} {item.path.name} refers to it") for other in self._named_by(item)]
        return reasons

    def _needed_here(self) -> list[tuple[Item, str]]:
        needed = [(item, reason) for name, reason in self._roots() for item in self._by_name.get(name, ())]
        return needed + [(run, reason) for run in self.runs if (reason := self._recent(run))]

    def _recent(self, item: Item) -> str:
        return f"written on {item.since:%Y-%m-%d}" if item.since >= self._before else ""

    def _needed_by_others(self, item: Item) -> str:
        """Return why a data set may be needed by a run in progress or by another project; "" if it is not."""
        if self.in_progress:
            return f"run {self.in_progress[0]} is in progress"
        for user in self._others:
            title = f"the project {user.project} (delete {user.file} if it no longer exists)"
            if user.running:
                return f"run {min(user.running)} of {title} is in progress; if it is not, run slipway runs clean there"
            if user.data_sets & item.names:
                return f"it is used by {title}"
        since, is_shared = self._users.since, self._others or not self._project.has_alone(self._project.store)
        if is_shared and item.since < since:
            known = "does not record" if since.year == MAXYEAR else f"records since {since:%Y-%m-%d}"
            return f"other projects may use it: its store is shared, and {known} which"
        return ""

    def _named_by(self, item: Item) -> Iterator[Item]:
        if item.kind == "run":
            names = self._known.words_of_run(RunFolder(item.path), self._project.root)
            names = names | _outputs(self._records[item.path.name])
        else:
            described = self._known.manifest(item.path)
            names = set(described.source.split("/")) if described else set()
        return chain.from_iterable(self._by_name[name] for name in names & self._by_name.keys())

    def _roots(self) -> Iterator[tuple[str, str]]:
        """Yield the names of what is needed for itself, with the reason."""
        root, registered = self._project.root, set()
        yield (self._project.runs / runs.LATEST).resolve().name, "the newest run"
        for version in self._versions():
            title = short(str(version.folder))
            run_id, data = (str(version.metadata.get(key)) for key in ("run_id", "data_fingerprint"))
            registered.add(run_id)
            yield from ((run_id, f"it trained {title}"), (data, f"{title} was trained on it"))
            yield from ((name, f"{title} links to it") for name in _targets(version.folder))
        for run_id, record in self._records.items():
            if record.status == "running":
                yield run_id, "in progress"
            elif record.study and (root / SEARCHES / f"{record.name}.db").exists():
                yield run_id, f"slipway tune can continue its search, {SEARCHES}/{record.name}.db"
            elif run_id not in registered and (reason := self._model_elsewhere(record)):
                yield run_id, reason
        yield from self._named_in_files()

    def _versions(self) -> Iterator[Version]:
        """Yield the versions in all registries that the project uses, by its configuration and its runs."""
        registries = [self._project.registry, self._project.root / Age.registry]
        if (file := self._project.root / DEFAULT_CONFIGURATION).is_file():
            registries += self._registry_of(file)
        for record in self._records.values():
            registries += self._registries_of(record)
        for registry in {folder.resolve(): folder for folder in registries}.values():
            for model in Registry(registry).models():
                yield from Registry(registry).versions(model)

    def _registries_of(self, record: RunRecord) -> list[Path]:
        """Return the configured registry of a run whose model is no longer where it was registered."""
        if not record.model or not record.model.startswith("/") or Path(record.model).exists():
            return []
        return self._registry_of(RunFolder(self._project.runs / record.run_id).configuration_file)

    def _registry_of(self, configuration: Path) -> list[Path]:
        registry = self._known.registry(configuration) if configuration.is_file() else ""
        return [self._project.root / Path(registry).expanduser()] if registry else []

    def _model_elsewhere(self, record: RunRecord) -> str:
        """Return the reason to keep a run whose model is in no registry here; "" if its version was deleted."""
        model = record.model or ""
        if not model.startswith("/"):
            return model and f"it trained {model}"
        if Path(model).exists():
            return f"it trained {short(model)}"
        registries = (Path(model).parent.parent, *self._registries_of(record))
        if any(registry.is_dir() for registry in registries) and self._project.has_alone(self._project.runs):
            return ""
        return f"it trained {model}, whose registry does not exist here"

    def _named_in_files(self) -> Iterator[tuple[str, str]]:
        """Yield the names in the project's own files, and those to which its links lead."""
        project = self._project
        skipped = {project.runs, project.store, project.registry}
        folders = [project.root, *(path for path in folders_in(project.root) if path not in skipped)]
        # Of a folder without a record, which is no run, the configuration counts.
        folders += [project.runs, *(path for path in folders_in(project.runs) if not (path / "run.json").is_file())]
        for path in chain.from_iterable(map(_entries, folders)):
            names: Iterable[str] = ()
            if path.is_symlink() and path != project.runs / runs.LATEST:
                names = path.resolve().parts
            elif path.suffix in TEXTS or path.name == "Makefile":
                names = self._known.words_of_file(path, project.root)
            verb = "links to" if path.is_symlink() else "names"
            yield from ((name, f"{short(str(path))} {verb} it") for name in names if name in self._by_name)


class Known:
    """What was read of files, which are read again only if they have changed."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, Path], tuple[int, Any]] = {}

    def record(self, folder: RunFolder) -> RunRecord:
        """Return the record of a run.

        Raises:
            UserError: It cannot be read.
        """
        record: RunRecord = self._once("record", folder.record_file, folder.read)
        return record

    def manifest(self, folder: Path) -> Manifest | None:
        """Return the manifest of a folder; None if it is not that of a data set, or is damaged."""

        def read() -> Manifest | None:
            try:
                return manifest.read(folder)
            except (UserError, OSError):
                return None

        described: Manifest | None = self._once("manifest", folder / manifest.FILE_NAME, read)
        return described

    def registry(self, configuration: Path) -> str:
        """Return `register.registry` of a configuration; see `setting`."""
        return str(self._once("registry", configuration, lambda: setting(configuration, "register", "registry")))

    def words_of_run(self, folder: RunFolder, root: Path) -> set[str]:
        """Return the words of a run's configuration, and the names in the paths of its record."""

        def read() -> set[str]:
            text = folder.record_file.read_text(errors="replace")
            return {name for word in WORD.findall(text) if "/" in word for name in word.split("/")}

        names: set[str] = self._once("words", folder.record_file, read)
        return names | self.words_of_file(folder.configuration_file, root)

    def words_of_file(self, path: Path, root: Path) -> set[str]:
        """Return the words of a text, those in its paths, and those in the targets of links in these paths."""

        def read() -> set[str]:
            if path.stat().st_size > MAX_TEXT:
                return set()
            written = set(WORD.findall(path.read_text(errors="replace")))
            names = {name for word in written for name in word.split("/")}
            for word in written:
                with contextlib.suppress(OSError, RuntimeError, ValueError):  # no path
                    if (target := root / Path(word).expanduser()).exists():
                        names.update(target.resolve().parts)
            return names

        names: set[str] = self._once("words", path, read) if path.is_file() else set()
        return names

    def _once(self, kind: str, path: Path, read: Callable[[], Any]) -> Any:
        changed = path.stat().st_mtime_ns
        key = (kind, path)
        if self._read.get(key, (None,))[0] != changed:
            self._read[key] = changed, read()
        return self._read[key][1]


def setting(configuration: Path, section: str, name: str) -> str:
    """Return a setting of a configuration as it is written there, "" if it is not.

    Raises:
        UserError: The configuration is not YAML.
    """
    values = read_yaml(configuration).get(section)
    return str(values.get(name) or "") if isinstance(values, dict) else ""


def last_written(folder: RunFolder) -> datetime:
    """Return when a run's record or events were last written."""
    files = [path for path in (folder.record_file, folder.events_file) if path.exists()]
    return max(datetime.fromtimestamp(path.stat().st_mtime, UTC) for path in files)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _outputs(record: RunRecord) -> set[str]:
    """Return the run on whose steps this one was built, and the fingerprint of its data."""
    source = {record.part.source} if record.part and record.part.source else set()
    return source | {str(step.outputs["fingerprint"]) for step in record.steps if "fingerprint" in step.outputs}


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, and links to folders, but hidden ones; none if it cannot be read."""
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir()]
    except OSError:
        return []


def _targets(path: Path) -> tuple[str, ...]:
    """Return the names in the path to which a link, or a path through links, leads; none if there is no link."""
    target = path.resolve()
    return () if target == path.absolute() else target.parts
