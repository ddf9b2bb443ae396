"""What files declare and Slipway applies to Vertex AI, such as schedules: compare, apply, list and delete."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Generic, Self, TextIO, TypeVar

from slipway.components.cloud.connection import Connection
from slipway.core.errors import UserError, nearest
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.files import ConfigurationFile, Files
from slipway.pipelines.platforms.vertex.settings import vertex_of
from slipway.pipelines.platforms.vertex.submission import refusals
from slipway.pipelines.terminal import confirm_deletion

# Numbers of differences per resource that are shown, and named in a sentence; --json shows all.
SHOWN_DIFFERENCES, NAMED_DIFFERENCES = 12, 3
SHOWN_LETTERS = 48
# Changes of one resource, after which another process must be changing it, too.
ROUNDS = 10
Say = Callable[[str], None]


File = TypeVar("File", bound=ConfigurationFile)


@dataclass(frozen=True)
class Difference:
    """One field: its name in the file (or in the run's job), the service's value and the file's value."""

    field: str
    service: object
    file: object

    def __str__(self) -> str:
        have, want = _clipped(_text(self.service), _text(self.file))
        return f"{self.field}: {have} → {want}"


@dataclass
class Result:
    """One resource: as it is on Vertex AI (None if absent), its differences from the file and the actions taken."""

    kind: ClassVar[str]
    name: str
    config: RunConfig
    file: Any = None
    resource: Any = None
    differences: list[Difference] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    note: str = ""

    @property
    def title(self) -> str:
        """Name with the resource name and the state."""
        return f"{self.name}: absent" if self.resource is None else f"{self.name} ({self.resource.name})"

    def loss(self) -> list[str]:
        """Return lines about what is deleted with it."""
        return [self.title]

    def lines(self) -> list[str]:
        """Return the output lines."""
        shown = self.done or [str(difference) for difference in self.differences[:SHOWN_DIFFERENCES]]
        if not self.done and len(self.differences) > SHOWN_DIFFERENCES:
            shown.append(f"… and {len(self.differences) - SHOWN_DIFFERENCES} more (--json)")
        return [self.title, *(f"  {text}" for text in [*shown, self.note] if text)]

    def as_dict(self) -> JsonObject:
        """Return the result for --json."""
        return {
            "name": self.name,
            self.kind: None if self.resource is None else self.resource.name,
            "differences": [
                {"field": difference.field, "service": _plain(difference.service), "file": _plain(difference.file)}
                for difference in self.differences
            ],
            "done": self.done,
            "note": self.note or None,
        }


Outcome = TypeVar("Outcome", bound=Result)


class Declared(ABC, Generic[File, Outcome]):
    """Resources of one kind in a project and region, which files declare.

    Attributes:
        files: The files.
        result: The class of results.
        command: The command group.
        rights: The prefix of permissions.
        reads: The permission to find one.
        rewritten: How the names of fields start that the service may store in another form.
    """

    files: Files[File]
    result: type[Outcome]
    command: str
    rights: str
    reads = "list"
    rewritten = ""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @abstractmethod
    def all(self) -> list[tuple[str, str, Any]]:
        """Return the key, the name and the resource of all of Slipway's, the older ones first."""

    def find(self, key: str) -> list[Any]:
        """Return the resources with a file's key; the first one is in use, the others are duplicates."""
        return [resource for file_key, _, resource in self.all() if file_key == key]

    @abstractmethod
    def desired(self, file: File, log: TextIO | None, say: Say) -> Any:
        """Return what a file declares; with `log`, also check that it can be applied, and build what it needs."""

    @abstractmethod
    def differences(self, want: Any, have: Any) -> list[Difference]:
        """Return the differences between a resource and what `desired` returned."""

    @abstractmethod
    def create(self, want: Any) -> str:
        """Create the resource; return what was done."""

    @abstractmethod
    def change(self, want: Any, have: Any, left: list[Difference]) -> list[str]:
        """Change the resource by one step towards what is desired; return what was done, nothing if it cannot."""

    @abstractmethod
    def delete(self, resource: Any, file: File | None) -> None:
        """Delete a resource, whose file may be lost; does nothing if it does not exist."""

    @abstractmethod
    def advice(self, name: str, have: Any, left: list[Difference]) -> str:
        """Return how to remove the differences of a resource."""

    def reconcile(self, result: Outcome, want: Any) -> None:
        """Ensure that exactly one resource has the file's key, and that it matches what is desired.

        Each round reads the resource, because responses may be lost and other processes may apply the same file.

        Raises:
            UserError: Another process keeps changing the resource.
        """
        last: list[Difference] = []
        for _ in range(ROUNDS):
            resources = self.find(result.file.key)
            for double in resources[1:]:
                self.delete(double, result.file)
                result.done.append(f"deleted duplicate {number_of(double)}")
            if not resources:
                result.done.append(self.create(want))
                continue
            result.resource = resources[0]
            left = self.differences(want, resources[0])
            if left and left == last and all(difference.field.startswith(self.rewritten) for difference in left):
                # Another process would not restore exactly what was there before.
                names = ", ".join(difference.field for difference in left[:NAMED_DIFFERENCES])
                result.done.append(f"Vertex AI stores {len(left)} values differently, such as {names}")
                return
            result.differences, last = result.differences or left, left
            done = self.change(want, resources[0], left) if left else []
            if not done:
                result.note = "" if result.done else f"unchanged: matches {result.file.path}"
                result.note = self.advice(result.name, resources[0], left) if left else result.note
                return
            result.done += done
        raise UserError(
            f"Could not apply the {self.files.name} {result.name}: another process keeps applying a different version.",
            setting="NAME",
            value=result.name,
            fix=f"{self.command} diff {result.name}, after the other process has finished",
        )

    @classmethod
    def observe(cls, name: str | None = None, config: RunConfig | None = None) -> list[Outcome]:
        """Return the resources of each file and, without a name, Slipway's resources without a file.

        These are in the projects and regions that the files use, and in the one of `config`, with which no file is
        needed.
        """
        files = cls.files.read_all(name) if config is None or any(cls.files.folder.glob("*.yaml")) else []
        results = []
        for file in files:
            with cls._calls(file.config, f"read the {cls.files.name} {file.name}", cls.reads) as calls:
                resources = calls.find(file.key)
            new = [cls.result(file.name, file.config, file, resource) for resource in resources or [None]]
            new[0].note = "" if resources else f"to create it: {cls.command} apply {file.name}"
            for double in new[1:]:
                double.note = f"duplicate; to delete it: {cls.command} apply {file.name}"
            results += new
        if name is None:
            results += cls._without_file(files, [config] if config else [])
        return results

    @classmethod
    def _without_file(cls, files: Sequence[File], more: Sequence[RunConfig]) -> list[Outcome]:
        places: dict[object, RunConfig] = {}
        for config in [*(file.config for file in files), *more]:
            vertex = vertex_of(config)
            places[(vertex.project, vertex.region, *sorted(vertex.endpoints.items()))] = config
        known, results = {file.key for file in files}, []
        for config in places.values():
            with cls._calls(config, f"list the {cls.files.name}s", "list") as calls:
                every = calls.all()
            for key, name, resource in every:
                if key not in known:
                    note = f"no file; to delete it: {cls.command} delete {name}"
                    results.append(cls.result(name, config, None, resource, note=note))
        return results

    @classmethod
    def compare(cls, say: Say, name: str | None = None, config: RunConfig | None = None) -> list[Outcome]:
        """Return what `observe` returns, with the differences from the files."""
        results = cls.observe(name, config)
        for result in results:
            if result.file is not None and result.resource is not None and not result.note:
                with cls._calls(result.config, f"read the {cls.files.name} {result.name}", cls.reads) as calls:
                    left = calls.differences(calls.desired(result.file, None, say), result.resource)
                    note = calls.advice(result.name, result.resource, left) if left else f"matches {result.file.path}"
                result.differences, result.note = left, note
        return results

    @classmethod
    def apply(cls, log: TextIO, say: Say, name: str | None = None) -> list[Outcome]:
        """Create or change the resources to match their files."""
        results = []
        for file in cls.files.read_all(name):
            result = cls.result(file.name, file.config, file)
            with cls._calls(file.config, f"apply the {cls.files.name} {file.name}", "create") as calls:
                calls.reconcile(result, calls.desired(file, log, say))
            results.append(result)
        return results

    @classmethod
    def remove(cls, name: str | None, say: Say, *, yes: bool) -> list[Outcome]:
        """Delete the resources of a name, with or without a file, or of all files, after confirmation; keep the files.

        What does not exist any more is said, and no error: a repeated call deletes nothing.

        Raises:
            UserError: There is neither a file nor a resource with that name, but one with a similar name.
        """
        observed = cls.observe(name if name in [path.stem for path in cls.files.paths()] else None)
        results = [
            outcome for outcome in observed if (outcome.file is not None if name is None else outcome.name == name)
        ]
        known = [result.name for result in observed]
        if name is not None and not results and nearest(name, known):
            raise UserError.unknown(cls.files.name, name, known, setting="NAME", fix=f"{cls.command} diff")
        if name is not None and not results:
            say(f"there is no {cls.files.name} {name}: nothing to delete")
        existing = [result for result in results if result.resource is not None]
        for line in [line for result in existing for line in result.loss()]:
            say(line)
        if existing and not yes:
            names = ", ".join(dict.fromkeys(result.name for result in existing))
            confirm_deletion(f"Delete the {cls.files.name}{'s' if ',' in names else ''} {names}?")
        for result in results:
            result.note = "nothing to delete"
        for result in existing:
            deleted = result.resource.name
            say(f"deleting {deleted}")
            with cls._calls(result.config, f"delete the {cls.files.name} {result.name}", "delete") as calls:
                calls.delete(result.resource, result.file)
            result.resource, result.done, result.note = None, [f"deleted {deleted}"], ""
        return results

    @classmethod
    @contextlib.contextmanager
    def _calls(cls, config: RunConfig, doing: str, right: str) -> Iterator[Self]:
        """Yield the resources of a configuration's project; convert the errors of calls, see `refusals`."""
        with refusals(config, doing, f"{cls.rights}.{right}"):
            yield cls(vertex_of(config).connection)


def number_of(resource: Any) -> str:
    """Return the last part of a resource's name: its id."""
    return str(resource.name).rpartition("/")[2]


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S UTC")
    return "not set" if value is None else " ".join(str(value).split())


def _clipped(have: str, want: str) -> tuple[str, str]:
    """Shorten long texts to the part where they differ."""
    if max(len(have), len(want)) <= 2 * SHOWN_LETTERS:
        return have, want
    first = next((n for n, (a, b) in enumerate(zip(have, want, strict=False)) if a != b), min(len(have), len(want)))
    start = max(0, first - SHOWN_LETTERS // 3)

    def cut(text: str) -> str:
        piece = text[start : start + SHOWN_LETTERS]
        return ("…" if start else "") + piece + ("…" if start + SHOWN_LETTERS < len(text) else "")

    return (have, cut(want)) if len(have) <= SHOWN_LETTERS else (cut(have), cut(want))
