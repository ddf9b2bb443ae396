"""What a platform's cleaner does: find what is old and not needed, say why the rest is kept, and delete."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from slipway.core import formatting
from slipway.core.errors import UserError
from slipway.core.paths import short
from slipway.core.values import JsonObject


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


@dataclass(frozen=True)
class Kept:
    """What is not deleted: its kind, its path, and the reference or property that keeps it."""

    kind: str
    path: str
    reason: str

    def as_dict(self) -> JsonObject:
        """Return it for machines."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the line of output."""
        return [f"{self.kind:8}  {short(self.path)}: {self.reason}"]


class Cleaner(ABC):
    """Finds what is old and not needed in one place, and deletes it."""

    @abstractmethod
    def unneeded(self) -> list[Unneeded]:
        """Return what can be deleted, in the order in which it is: what refers to others first, then the oldest first.

        Raises:
            UserError: What refers to it cannot be read.
        """

    @abstractmethod
    def delete(self, to_delete: Iterable[Unneeded]) -> Iterator[Unneeded]:
        """Delete what was found, and yield it, but what was deleted, written or referred to meanwhile."""

    @abstractmethod
    def in_progress(self) -> list[str]:
        """Return the runs in progress; they may not have recorded their data sets, so that all of these are kept."""

    def kept(self, path: str) -> list[Kept]:
        """Return what is kept in a folder, and why; also what can be deleted.

        Raises:
            UserError: There is no run and no data set, or reasons are not known.
        """
        raise _only_here("--why", path)

    def restore(self, path: str) -> Path:
        """Put back a run or data set that was deleted, and return its folder.

        Raises:
            UserError: It is not in the trash, or there is no trash.
        """
        raise _only_here("--restore", path)

    def left(self) -> list[Kept]:
        """Return what looks like a run or data set but is not Slipway's."""
        return []


def _only_here(option: str, path: str) -> UserError:
    return UserError(
        f"{option} is for runs and data sets of this machine.", setting=option, value=path,
        fix=f"slipway runs clean {option} {shlex.quote(path)}, without --target",
    )  # fmt: skip


@dataclass(frozen=True)
class Age:
    """The least age of what is deleted, and the places that say what is needed: the registry and the data sets here.

    `typed` is the age as the user has written it.
    """

    least: timedelta
    registry: Path = Path("models")
    store: Path = Path("datasets")
    typed: str = ""

    @property
    def before(self) -> datetime:
        """The moment after which nothing that is deleted was written."""
        return datetime.now(UTC) - self.least
