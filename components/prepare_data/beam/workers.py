"""List the parts of a source, and write shards, by Apache Beam's workers.

They do so with the same code as local worker processes, so the bytes are identical. Merging the lists, dividing and
dealing are cheap and stay on the machine that starts the pipeline, and so do sources of one part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from slipway.components.prepare_data import remote
from slipway.components.prepare_data.beam.dataflow import owned_by
from slipway.components.prepare_data.beam.options import beam_for, needs_bucket, written_by
from slipway.components.prepare_data.beam.pipeline import names_in, run_by_beam
from slipway.components.prepare_data.listing.groups import bundle_reader
from slipway.components.prepare_data.listing.order import order_reader
from slipway.components.prepare_data.listing.parts import BundleOf, OrderOf, PartList, list_part
from slipway.components.prepare_data.listing.plan import FORMAT, IDENTITY_DIGITS
from slipway.components.prepare_data.publishing.store import Store
from slipway.components.prepare_data.settings import BeamSettings, DataSettings
from slipway.components.prepare_data.sources.source import Part, Source
from slipway.components.prepare_data.workers import Progress, Tick
from slipway.components.prepare_data.writing.shards import ShardResult, ShardTask, ShardWriter
from slipway.core import buckets, events

__all__ = ["owned_by", "workers_for"]


@dataclass(frozen=True)
class BeamWorkers:
    """The workers of Beam's runner; see `slipway.components.prepare_data.elsewhere.RemoteWorkers`."""

    beam: BeamSettings

    @property
    def title(self) -> str:
        return written_by(self.beam)

    @property
    def needs_bucket(self) -> bool:
        return needs_bucket(self.beam)

    def list_parts(
        self,
        source: Source,
        parts: Sequence[Part],
        settings: DataSettings,
        folder: Path,
        store: Store,
        folders: contextlib.ExitStack,
    ) -> tuple[list[PartList], Path]:
        return BeamLister(self.beam, store, folders).list_parts(source, parts, settings, folder)

    def write(
        self, writer: ShardWriter, tasks: Sequence[ShardTask], tick: Tick, share: Callable[[], object]
    ) -> Iterator[tuple[int, ShardResult]]:
        return write_by_beam(self.beam, writer, tasks, tick, share)


def workers_for(settings: DataSettings, size: int) -> BeamWorkers | None:
    """Return Beam's workers if Beam prepares the data set of a source of `size` bytes; see `beam_for`."""
    beam = beam_for(settings, size)
    return BeamWorkers(beam) if beam else None


def write_by_beam(
    beam: BeamSettings, writer: ShardWriter, tasks: Sequence[ShardTask], tick: Tick, share: Callable[[], object]
) -> Iterator[tuple[int, ShardResult]]:
    """Write all shards in one pipeline; yield each shard's index and result. See `run_by_beam`."""
    counted = run_by_beam(beam, functools.partial(write_shard, writer), tasks, tick, share)
    for index, task in enumerate(tasks):
        result = ShardResult.model_validate_json(task.result.read_bytes())
        examples = result.tally.examples + result.tally.skipped_count
        tick(examples - min(examples, counted))
        counted -= min(examples, counted)
        yield index, result


def write_shard(writer: ShardWriter, task: ShardTask, folder: Path, tick: Tick) -> None:
    """Write one shard to a folder of the Beam worker's local disk and copy it to its destination."""
    here = dataclasses.replace(
        task,
        path=folder / task.path.name if task.path else None,
        examples=folder / task.examples.name,
        result=folder / task.result.name,
    )
    remote.fetch(task.examples, here.examples)
    writer(here, tick)
    if here.path and task.path:
        remote.store(here.path, task.path)
        remote.store(here.hashes, task.hashes)
    if here.compared:
        remote.store(here.thumbnails, task.thumbnails)
    if here.hashes_inputs:
        remote.store(here.input_hashes, task.input_hashes)
    remote.store(here.result, task.result)


@dataclass(frozen=True)
class ListTask:
    """A worker's task: one part of a source. `result` is the file for its `PartList`, beside the part's other files."""

    part: Part
    result: Path


@dataclass(frozen=True)
class BeamLister:
    """Lists sources by Beam's workers, into folders in the store that exist until `folders` is closed.

    Such a folder has a name that is derived from what is listed, so that a restarted step finds the lists, and the job,
    of a killed one.
    """

    beam: BeamSettings
    store: Store
    folders: contextlib.ExitStack

    def list_parts(
        self, source: Source, parts: Sequence[Part], settings: DataSettings, folder: Path
    ) -> tuple[list[PartList], Path]:
        """List the parts; return their lists, in `folder`, and the folder with what the source spooled.

        Raises:
            UserError: A part cannot be listed: the first such part's error. Or the job failed.
        """
        with contextlib.ExitStack() as stack:
            work = self.store.work_folder(_identity(source, parts, settings), beside=needs_bucket(self.beam))
            shared = stack.enter_context(work)
            tasks = [ListTask(part, shared / f"part-{number:06d}.result") for number, part in enumerate(parts)]
            names = names_in(shared)
            missing = [task for task in tasks if task.result.name not in names]
            progress = Progress(len(tasks), "parts")
            progress.advance(len(tasks) - len(missing))
            if missing:
                readers = bundle_reader(settings), order_reader(settings)
                lister = functools.partial(list_to_store, source, settings.seed, *readers)
                counted = run_by_beam(self.beam, lister, missing, progress.advance, lambda: None)
                progress.advance(len(missing) - counted)
            events.phase("merging the lists")
            with ThreadPoolExecutor(buckets.THREADS) as threads:
                part_lists = [*threads.map(functools.partial(_fetched, folder), tasks)]
            self.folders.enter_context(stack.pop_all())
            return part_lists, shared


def list_to_store(
    source: Source,
    seed: int,
    bundle_of: BundleOf | None,
    order_of: OrderOf | None,
    task: ListTask,
    folder: Path,
    tick: Tick,
) -> None:
    """List one part to a folder of the Beam worker's local disk and copy it to its destination."""
    listed = list_part(source, task.part, seed, folder / task.result.stem, bundle_of, order_of)
    for path in folder.iterdir():  # also what the source spooled
        remote.store(path, task.result.with_name(path.name))
    result = folder / task.result.name
    result.write_bytes(pickle.dumps(listed))
    remote.store(result, task.result)
    tick(1)


def _fetched(folder: Path, task: ListTask) -> PartList:
    """Copy the list of a part to a local folder; what the source spooled is read where it is."""
    listed: PartList = pickle.loads(task.result.read_bytes())
    listed.move(folder, lambda path, target: shutil.copyfile(task.result.with_name(path.name), target))
    return listed


def _identity(source: Source, parts: Sequence[Part], settings: DataSettings) -> str:
    """Return a name for the lists of a source, for which it need not be read."""
    files = [(str(path), (about := path.stat()).st_size, about.st_mtime_ns) for path in source.files]
    inputs = [(name, str(kind)) for name, kind in source.inputs.items()]
    settings_json = settings.model_dump_json(exclude={"store", "workers", "beam"})
    about_all = repr((FORMAT, source.task, files, parts, settings_json, source.features, inputs))
    return hashlib.sha256(about_all.encode()).hexdigest()[:IDENTITY_DIGITS]
