"""The store of prepared data sets, `<store>/<name>/<fingerprint>/`; data sets are published atomically.

A data set is written to a hidden work folder next to its final folder and renamed when it is complete. A work folder is
protected by a lock file, which is released when the processes that hold it end for any reason. A work folder that is
not locked was left by a killed run: the next run of the same listing resumes in it, a run of another one removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from slipway.components.prepare_data import remote
from slipway.components.prepare_data.publishing.remembered import FOLDER, Listings
from slipway.core import events, locked, manifest
from slipway.core.atomic import FULL, sync
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.core.paths import is_remote, local_path

# A mounted store that only its mounter, usually root, may write to.
AS_ROOT = "run the containers as root: without vertex.build.run_as, or on Kubeflow with kubeflow.run_as_user=0"
# The disk of the step on Vertex AI, of which the system and the step's image need the rest (an estimate).
DISK_SETTING = "vertex.steps.prepare_data.disk"
USABLE = 0.8
LEAST_LARGER_DISK_GB = 200
WORK = re.compile(r"^\.([0-9a-f]{16})\.(work|lock)$")


class Store:
    """The prepared data sets of one name.

    Args:
        location: The store: a folder, or a gs:// URI, which is accessed through Vertex AI's mount.
        name: The name of the data sets.
    """

    def __init__(self, location: str, name: str) -> None:
        self.name = name
        self.folder = local_path(location).expanduser().absolute() / name
        self._uri = f"{location.rstrip('/')}/{name}" if is_remote(location) else str(self.folder)
        # Mounted buckets do not support renaming folders or modifying files: data sets are written to the local disk.
        self.is_mounted = self.folder.is_relative_to(remote.CLOUD_MOUNT)
        local_root = Path(tempfile.gettempdir(), f"slipway-{os.getuid()}", name)
        self.work_root = local_root if self.is_mounted else self.folder
        self.listings = Listings(self.folder / FOLDER)

    def path(self, identity: str) -> Path:
        """Return the folder of the data set with this identity; see `plan.identity`."""
        return self.folder / identity

    def uri(self, identity: str) -> str:
        """Return the data set's path or gs:// URI, as recorded in results."""
        return f"{self._uri}/{identity}"

    def complete(self, identity: str) -> Manifest | None:
        """Return the manifest of the data set, or None if there is no complete one.

        Raises:
            UserError: A shard is missing or has a different size.
        """
        folder = self.path(identity)
        if not (folder / manifest.FILE_NAME).is_file():
            return None
        complete_manifest = manifest.read(folder)
        is_locked = (folder / manifest.LOCK_FILE).is_file()
        for name, split in complete_manifest.splits.items():
            for shard in () if is_locked and name == locked.SPLIT else split.shards:
                path = folder / shard.file
                if not path.is_file() or path.stat().st_size != shard.bytes:
                    manifest.verify_shard(path, shard)
        return complete_manifest

    @contextlib.contextmanager
    def work_folder(self, listing: str | None = None, *, beside: bool = False) -> Iterator[Path]:
        """Create a temporary work folder for the data set of this listing (`Target.listing`), or for another purpose.

        Only one process at a time can have a listing's work folder; others wait. It may contain files of a killed run.
        With `beside`, the folder is in the store itself, so that other machines can access it.
        """
        listing = listing or secrets.token_hex(8)
        root = self.folder if beside else self.work_root
        made_parents = _make_own(root.parent) if root != self.folder else []
        made = [path for path in (root, *root.parents) if not path.exists()] + made_parents  # deepest first
        root.mkdir(parents=True, exist_ok=True)
        folder = root / f".{listing}.work"
        try:
            with _locked(root / f".{listing}.lock"):
                folder.mkdir(exist_ok=True)
                try:
                    yield folder
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
        finally:
            for path in made:
                with contextlib.suppress(OSError):  # it is no longer empty
                    path.rmdir()

    def remove_leftovers(self, but: str = "") -> None:
        """Remove work folders of killed runs, or that could not be removed, except that of the listing `but`."""
        for root in {self.work_root, self.folder}:
            names = root.iterdir() if root.is_dir() else ()
            for name in {match[1] for path in names if (match := WORK.match(path.name))} - {but}:
                with _locked(root / f".{name}.lock", wait=False) as free:
                    if free:
                        shutil.rmtree(root / f".{name}.work", ignore_errors=True)

    def publish(self, finished: Path, identity: str) -> Manifest | None:
        """Publish the data set in the folder `finished` under its identity.

        Returns:
            The manifest of the same data set if it was published before, from another listing; then that one stays.
        """
        target = self.path(identity)
        with self.publishing(identity):
            if existing := self.complete(identity):
                return existing
            if target.exists():  # without a manifest, so incomplete
                shutil.rmtree(target)
            if self.is_mounted:
                self._copy(finished, target)
                return None
            # All at once, after the last shard: a worker that waits for the disk leaves its core idle.
            for path in (*finished.iterdir(), finished):
                sync(path)
            finished.rename(target)
            sync(self.folder)
            return None

    @contextlib.contextmanager
    def publishing(self, identity: str) -> Iterator[None]:
        """Hold the lock under which a data set is published, and deleted."""
        with _locked(self.work_root / f".{identity}.lock"):
            yield

    def _copy(self, finished: Path, target: Path) -> None:
        """Copy the files into the bucket, or move them within it; the manifest last, because it marks completion."""
        target.mkdir(parents=True)
        for path in sorted(finished.iterdir(), key=lambda path: (path.name == manifest.FILE_NAME, path.name)):
            if finished.is_relative_to(self.folder):
                path.rename(target / path.name)  # renaming single files is supported by the mount
            else:
                shutil.copyfile(path, target / path.name)


@contextlib.contextmanager
def store_errors_named(store: Store, needed: int) -> Iterator[None]:
    """Convert errors of a store that is full or not writable to a `UserError`.

    Args:
        store: The store.
        needed: The size of the data set in bytes, or 0 if it is unknown.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise no_room(store, needed) from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST):
            raise UserError(
                f"The data set cannot be written to {store.folder}: {error.strerror}"
                + (f" ({error.filename})." if error.filename else "."),
                setting="data.store",
                fix=AS_ROOT if store.is_mounted else "set data.store to a writable folder",
            ) from None
        raise


def require_room(store: Store, folder: Path, needed: int) -> None:
    """Check that the disk has enough free space."""
    if shutil.disk_usage(folder).free < needed:
        raise no_room(store, needed)


def no_room(store: Store, needed: int) -> UserError:
    """Return the error for a full disk; the folder may have been removed already."""
    written = store.work_root
    folder = next(path for path in (written, *written.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    size = f"it needs about {_megabytes(needed)}" if needed else "its temporary files do not fit"
    if store.is_mounted:
        return UserError(
            f"Not enough disk space for the data set in {written}, where it is written before it is copied to the "
            f"bucket: {size}, {_megabytes(free)} are free.",
            setting=DISK_SETTING,
            fix=f"{disk_fix(needed)}; on Kubeflow, use nodes with a larger disk",
        )
    return UserError(
        f"Not enough disk space for the data set in {store.folder}: {size}, {_megabytes(free)} are free.",
        setting="data.store",
        value=str(store.folder.parent),
        fix="free disk space, or set data.store to a folder on a larger disk",
    )


def disk_fix(needed: int) -> str:
    """Return how to prepare a data set of `needed` bytes (0 if unknown) that does not fit the step's disk."""
    gigabytes = max(LEAST_LARGER_DISK_GB, math.ceil(needed / 1e9 / USABLE / 10) * 10)
    size = f"{gigabytes}G" if needed else "SIZE"
    return f"on Vertex AI, --set {DISK_SETTING}={size}, or write the data set with Apache Beam: data.beam"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _make_own(folder: Path) -> list[Path]:
    """Create a folder that only this user can enter, where others can create folders as well; return it if it is new.

    Raises:
        UserError: It is another user's, or no folder.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            raise UserError(
                f"{folder}, where data sets are written before they are copied to the bucket, is not yours.",
                fix="export TMPDIR=FOLDER, with a folder of your own",
            ) from None
        return []
    return [folder]


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock file `path`; yields whether it is held, which can be False only without `wait`.

    Processes forked meanwhile hold it too: an orphaned worker keeps the lock until it ends.
    """
    descriptor = _lock(path, wait)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):  # the next process that needs the lock removes it
            path.unlink()
        os.close(descriptor)


def _lock(path: Path, wait: bool) -> int | None:
    reported = False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)  # a failed run may have just removed it
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    os.close(descriptor)
                    return None
                if not reported:
                    events.message("Another run is preparing this data set; waiting for it.")
                    reported = True
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The previous holder removed the file, and another process may have created a new one.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
