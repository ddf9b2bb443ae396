"""Prepare a data set: list the source, split it, write and publish its shards; or reuse an existing data set."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from slipway.components.prepare_data.elsewhere import RemoteWorkers, workers_for
from slipway.components.prepare_data.examples import Problem, refuse, source_error
from slipway.components.prepare_data.listing.groups import bundle_reader
from slipway.components.prepare_data.listing.index import Listing
from slipway.components.prepare_data.listing.order import order_reader
from slipway.components.prepare_data.listing.parts import BundleOf, OrderOf, PartList, list_part
from slipway.components.prepare_data.listing.plan import FORMAT, IDENTITY_DIGITS, Target, identity
from slipway.components.prepare_data.listing.split import Fold
from slipway.components.prepare_data.publishing.store import Store, require_room, store_errors_named
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import open_source
from slipway.components.prepare_data.sources.source import Misjudged, Part, Source
from slipway.components.prepare_data.validation.skipped import too_many
from slipway.components.prepare_data.workers import Tick, Workers, worker_count
from slipway.components.prepare_data.writing.set_writer import SetWriter
from slipway.components.prepare_data.writing.shard_tasks import ShardTasks
from slipway.core import events
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest, TaskName

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A prepared data set: its folder, its URI for other machines, its manifest, and whether it was reused."""

    folder: Path
    uri: str
    manifest: Manifest
    reused: bool


def prepare(
    settings: DataSettings,
    replicas: int,
    earlier: str | None = None,
    task: TaskName = "classification",
    fold: Fold | None = None,
) -> Prepared:
    """Prepare the data set that `settings` describe, for training by `replicas` processes.

    A data set is identified by the content of its source as it is now, the settings and the format. A listing (names,
    sizes and modification times) that is remembered stands for the content, which is then not read. If only times have
    changed, the content is read and hashed. A file that was added, changed or removed makes another data set.

    Args:
        settings: The settings.
        replicas: The number of processes.
        earlier: The URI of the data set of a resumed run, which is used as long as it exists.
        task: What is learned.
        fold: The fold of a cross-validation that is the test split, of a source without splits.

    Raises:
        UserError: The source, one of its images or the store is invalid; nothing is left behind.
    """
    if earlier is not None and (prepared := existing(earlier)):
        return prepared
    source = open_source(settings, task)
    store = Store(settings.store, settings.name or source.name)
    if prepared := remembered(source, store, settings, replicas, earlier, fold):
        store.remove_leftovers()
        return prepared
    events.phase(f"listing {settings.source}")
    workers = workers_for(settings, sum(path.stat().st_size for path in source.files))
    with store_errors_named(store, 0), store.work_folder() as scratch, contextlib.ExitStack() as folders:
        started = time.monotonic()
        listing = list_source(source, settings, scratch, (workers, store, folders) if workers else None, fold)
        logger.info("Listed %s examples in %.1f s.", f"{listing.examples():,}", time.monotonic() - started)
        target, unlisted = plan_listing(source, listing, settings, replicas, store.name, fold)
        store.remove_leftovers(but=target.listing)
        tasks = functools.partial(
            ShardTasks, name=store.name, source=source, settings=settings, listing=listing, plan=target.plan,
            scratch=scratch,
        )  # fmt: skip
        prepared = None if unlisted else reusable(store, target, earlier)
        if prepared is None and source.stamps_are_times and not unlisted:
            prepared = same_content(store, target, tasks(work=scratch))
        if prepared:
            refuse_other(prepared.manifest.fingerprint, earlier)
            store.listings.remember_summary(listing_name(source, settings, fold), target.listed)
            store.remove_leftovers()
            return prepared
        workers = workers or workers_for(settings, target.plan.source_bytes)
        beside = workers is not None and workers.needs_bucket
        with store_errors_named(store, target.plan.bytes), store.work_folder(target.listing, beside=beside) as work:
            # Another run may have finished it while this one waited for the lock.
            if not unlisted and (prepared := reusable(store, target, earlier)):
                return prepared
            if not beside:
                require_room(store, work, target.plan.bytes)
            writing = tasks(work=work, workers=workers)
            written = SetWriter(writing).write(target.fingerprint)
            refuse_other(written.fingerprint, earlier)
            before = store.publish(writing.set_folder, identity(written.fingerprint))
        store.listings.remember_summary(listing_name(source, settings, fold), target.listed)
        store.listings.remember_fingerprint(target, written.fingerprint)
        return prepared_in(store, before or written, reused=before is not None)


def unchanged(settings: DataSettings, replicas: int, task: TaskName) -> Prepared | None:
    """Return the prepared data set of a source whose files have not changed since; None if that cannot be told."""
    source = open_source(settings, task)
    store = Store(settings.store, settings.name or source.name)
    if settings.beam is not None:  # listing takes long
        return None
    if prepared := remembered(source, store, settings, replicas):
        return prepared
    with store.work_folder() as scratch:
        listing = list_source(source, settings, scratch)
        if unlisted_problems(listing, settings, source.item):
            return None
        return reusable(store, Target.of(source, listing.summary(), settings, replicas, store.name), None)


def remembered(
    source: Source,
    store: Store,
    settings: DataSettings,
    replicas: int,
    earlier: str | None = None,
    fold: Fold | None = None,
) -> Prepared | None:
    """Return the prepared data set of a source whose listing is remembered; None if it has changed."""
    known = store.listings.summary(listing_name(source, settings, fold))
    if known is None:
        return None
    return reusable(store, Target.of(source, known, settings, replicas, store.name, fold), earlier)


def existing(uri: str) -> Prepared | None:
    """Return the data set with this URI if it still exists, whatever its source contains now.

    Raises:
        UserError: The data set is damaged.
    """
    location, name, identity = uri.rsplit("/", 2)
    store = Store(location, name)
    manifest = store.complete(identity)
    if manifest is None:
        return None
    logger.info("Using %s: the run began with this data set.", uri)
    return Prepared(store.path(identity), uri, manifest, reused=True)


def refuse_other(fingerprint: str, earlier: str | None) -> None:
    """Refuse to continue a run with another data set than the deleted one that it began with.

    Raises:
        UserError: The source or the settings have changed.
    """
    if earlier is not None and earlier.rpartition("/")[2] != identity(fingerprint):
        raise UserError(
            f"The run began with the data set {earlier}, which was deleted, and its source has changed since.",
            fix="slipway run, to start a new run with the present content of the source",
        )


def prepared_in(store: Store, about: Manifest, *, reused: bool) -> Prepared:
    """Return the data set of the manifest, which is in the store."""
    name = identity(about.fingerprint)
    return Prepared(store.path(name), store.uri(name), about, reused)


def reusable(store: Store, target: Target, earlier: str | None) -> Prepared | None:
    """Return the prepared data set if its listing is remembered and it exists.

    Raises:
        UserError: The data set is damaged, or another one than the run began with.
    """
    fingerprint = store.listings.fingerprints(target).get(target.listing)
    if fingerprint is None:
        return None
    refuse_other(fingerprint, earlier)
    manifest = store.complete(identity(fingerprint))
    if manifest is None:
        return None
    prepared = prepared_in(store, manifest, reused=True)
    logger.info("Reusing %s: the source and the settings are unchanged.", prepared.uri)
    return prepared


def same_content(store: Store, target: Target, tasks: ShardTasks) -> Prepared | None:
    """Return the prepared data set with the content of a source of which only modification times have changed.

    If data sets of the same names, labels, sizes and settings exist, the source is read and hashed. Not compared are
    data sets with skipped images, because these may be valid now, and those whose splits depend on the images.

    Raises:
        UserError: The data set is damaged.
    """
    known = store.listings.fingerprints(target)
    alike = [store.complete(identity(fingerprint)) for fingerprint in set(known.values())]
    if target.listing in known or tasks.groups_images or all(prior is None or prior.skipped_count for prior in alike):
        return None
    events.phase("comparing the source with the prepared data set")
    started = time.monotonic()
    fingerprint = target.fingerprint(tasks.read())
    manifest = store.complete(identity(fingerprint))
    seconds, megabytes = time.monotonic() - started, target.listed.bytes / 1e6
    message = (
        f"The {tasks.source.item}s have other modification times than before. Reading all {target.plan.examples():,} "
        f"({megabytes:,.1f} MB) took {seconds:.1f} s: "
    )
    message += "they are the same, and the prepared data set is reused." if manifest else "their content has changed."
    logger.info(message)
    events.message(message)
    if manifest is None:
        return None
    store.listings.remember_fingerprint(target, fingerprint)
    prepared = prepared_in(store, manifest, reused=True)
    logger.info("Reusing %s: the content of the source and the settings are unchanged.", prepared.uri)
    return prepared


def listing_name(source: Source, settings: DataSettings, fold: Fold | None = None) -> str | None:
    """Return the cache key of the source's listing, or None if the source has no stamp."""
    stamp = source.stamp()
    if stamp is None:
        return None
    about = f"{FORMAT} {settings.seed} {settings.group_by!r} {settings.duplicates} {stamp}"
    if settings.order_by is not None:
        about += f" {settings.order_by!r} {settings.horizon} {settings.split!r} {fold}"
    return hashlib.sha256(about.encode()).hexdigest()[:IDENTITY_DIGITS]


# Workers elsewhere, the store in which they share a folder, and what removes that.
Lister: TypeAlias = tuple[RemoteWorkers, Store, contextlib.ExitStack]


def list_source(
    source: Source, settings: DataSettings, folder: Path, lister: Lister | None = None, fold: Fold | None = None
) -> Listing:
    """List all parts of the source into files in `folder`; again, if the kinds of features were misjudged.

    By the workers of `lister`, if there are several parts that are read to be listed.
    """
    try:
        return list_parts(source, settings, folder, lister, fold)
    except Misjudged as found:
        logger.info("%s All rows are read to find the kinds of the columns.", found.message)
        for path in folder.iterdir():
            path.unlink()
        source.infer_again()
        return list_parts(source, settings, folder, lister, fold)


def list_parts(
    source: Source, settings: DataSettings, folder: Path, lister: Lister | None = None, fold: Fold | None = None
) -> Listing:
    """List all parts of the source as `list_source` does; raise `Misjudged` if the kinds of features were misjudged."""
    parts = source.parts()
    if lister and source.files and len(parts) > 1:
        workers, store, folders = lister
        part_lists, spool = workers.list_parts(source, parts, settings, folder, store, folders)
        return Listing(source, part_lists, folder / "listing", settings, spool, fold)
    work = functools.partial(_list, source, settings.seed, bundle_reader(settings), order_reader(settings))
    tasks = [(part, folder / f"part-{number:06d}") for number, part in enumerate(parts)]
    with Workers(work, worker_count(settings.workers)) as processes:
        listed = dict(processes.run(tasks))
    part_lists = [listed[number] for number in range(len(tasks))]
    if not any(part.examples for part in part_lists):
        count = sum(part.ignored.unusable_count for part in part_lists)
        named = [issue for part in part_lists for issue in part.ignored.unusable]
        for problem in too_many(count, count, named, settings, source.item):
            raise source_error(settings.source, problem.message, fix=problem.otherwise)
    return Listing(source, part_lists, folder / "listing", settings, fold=fold)


def _list(
    source: Source,
    seed: int,
    bundle_of: BundleOf | None,
    order_of: OrderOf | None,
    task: tuple[Part, Path],
    _tick: Tick,
) -> PartList:
    part, path = task
    return list_part(source, part, seed, path, bundle_of, order_of)


def plan_listing(
    source: Source, listing: Listing, settings: DataSettings, replicas: int, name: str, fold: Fold | None = None
) -> tuple[Target, list[Problem]]:
    """Return the data set that a listing becomes, and the problem of unlistable examples if it has images.

    Raises:
        UserError: There are too many of them in a source without images, or too few examples.
    """
    unlisted = unlisted_problems(listing, settings, source.item)
    if not source.has_image:  # nothing else can be refused
        refuse(unlisted)
    try:
        return Target.of(source, listing.summary(), settings, replicas, name, fold), unlisted
    except UserError:
        refuse(unlisted)  # it may be the cause
        raise


def unlisted_problems(listing: Listing, settings: DataSettings, item: str) -> list[Problem]:
    """Return the problem that there are more unlistable examples than data.skip_corrupt allows, if there are.

    The writer finds it, too, together with the problems of the listed examples.

    Raises:
        UserError: float32 cannot represent a column.
    """
    if problem := listing.ignored.precision.problem(settings):
        raise problem
    unusable = listing.ignored.unusable_count
    return too_many(unusable, listing.examples() + unusable, listing.ignored.unusable, settings, item)
