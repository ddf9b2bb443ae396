"""Workers of extensions, such as those of Apache Beam, that list and write data sets too large for one machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from slipway import extensions
from slipway.core.errors import UserError

if TYPE_CHECKING:
    from slipway.components.prepare_data.listing.parts import PartList
    from slipway.components.prepare_data.publishing.store import Store
    from slipway.components.prepare_data.settings import DataSettings
    from slipway.components.prepare_data.sources.source import Part, Source
    from slipway.components.prepare_data.workers import Tick
    from slipway.components.prepare_data.writing.shards import ShardResult, ShardTask, ShardWriter


class RemoteWorkers(Protocol):
    """List the parts of a source, and write shards, with the code of local workers: the bytes are the same."""

    @property
    def title(self) -> str:
        """What the manifest says who wrote the data set."""

    @property
    def needs_bucket(self) -> bool:
        """Whether they read and write a bucket, since they do not see this machine's files."""

    def list_parts(
        self,
        source: Source,
        parts: Sequence[Part],
        settings: DataSettings,
        folder: Path,
        store: Store,
        folders: contextlib.ExitStack,
    ) -> tuple[list[PartList], Path]:
        """List the parts; return their lists, in `folder`, and the folder with what the source spooled.

        Args:
            source: The source.
            parts: Its parts.
            settings: The user's settings.
            folder: The folder for the lists.
            store: The store, in which a folder is shared with the workers.
            folders: Removes that folder when it is closed.

        Raises:
            UserError: A part cannot be listed: the first such part's error. Or the job failed.
        """

    def write(
        self, writer: ShardWriter, tasks: Sequence[ShardTask], tick: Tick, share: Callable[[], object]
    ) -> Iterator[tuple[int, ShardResult]]:
        """Write all shards; yield each shard's index and result. `share` puts what workers read where they read it."""


class Preparer(Protocol):
    """What an extension has to prepare data elsewhere."""

    def workers_for(self, settings: DataSettings, size: int) -> RemoteWorkers | None:
        """Return the workers that prepare the data set of a source of `size` bytes; None if this machine does.

        Raises:
            UserError: They are configured but cannot be used.
        """

    def owned_by(self, settings: DataSettings, run: str) -> DataSettings:
        """Return the settings with what names the jobs of a run, which is identified by its base output directory."""


def workers_for(settings: DataSettings, size: int) -> RemoteWorkers | None:
    """Return the workers of the first extension that prepares a data set of this size; see `Preparer`."""
    preparers = _preparers()
    if settings.beam is not None and not preparers:
        raise UserError(
            "No extension is installed that prepares data with Apache Beam.",
            setting="data.beam",
            value=settings.beam.runner,
            fix="remove data.beam to prepare the data set on this machine",
        )
    return next((workers for preparer in preparers if (workers := preparer.workers_for(settings, size))), None)


def owned_by(settings: DataSettings, run: str) -> DataSettings:
    """Return the settings with what names the jobs of a run; see `Preparer`."""
    for preparer in _preparers():
        settings = preparer.owned_by(settings, run)
    return settings


def _preparers() -> list[Preparer]:
    return [cast("Preparer", extensions.load(reference)) for reference in extensions.references("preparers")]
