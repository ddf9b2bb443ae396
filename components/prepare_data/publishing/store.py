"""Where prepared sets lie, `<store>/<name>/<fingerprint>/`, and how one comes there whole or not at all.

A set is made in a hidden work folder beside it and renamed when it is complete. A work folder belongs to whoever holds
the lock beside it; the lock ends with the processes that hold it, however they end. So a work folder without a holder
is what a killed run left: the next run of the same set goes on with it, a run of another set removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from slipway.components.prepare_data import remote
from slipway.components.prepare_data.listing.index import Summary
from slipway.core import events, manifest
from slipway.core.atomic import FULL, replace_file, sync
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.core.paths import is_remote, local_path

WORK = re.compile(r"^\.([0-9a-f]{16})\.(work|lock)$")


class Store:
    """The prepared sets of one name.

    Args:
        location: The store: a folder or a gs:// URI, reached where Vertex AI mounts it.
        name: The data sets' name.
    """

    def __init__(self, location: str, name: str) -> None:
        self.name = name
        self.folder = local_path(location).expanduser().absolute() / name
        self._uri = f"{location.rstrip('/')}/{name}" if is_remote(location) else str(self.folder)
        # A mounted bucket has no renaming of folders and no changes inside a file: sets are made on the local disk.
        self._mounted = self.folder.is_relative_to(remote.CLOUD_MOUNT)
        self._work_root = Path(tempfile.gettempdir()) / "slipway" / name if self._mounted else self.folder

    def path(self, identity: str) -> Path:
        """The folder of the set with this identity (the fingerprint's first 16 digits)."""
        return self.folder / identity

    def uri(self, identity: str) -> str:
        """The same as others are told: a path, or a gs:// URI."""
        return f"{self._uri}/{identity}"

    def complete(self, identity: str) -> Manifest | None:
        """The manifest of the set, None where there is no complete one.

        Raises:
            UserError: A shard is missing or has not the size that was written.
        """
        folder = self.path(identity)
        if not (folder / manifest.FILE_NAME).is_file():
            return None
        found = manifest.read(folder)
        for split in found.splits.values():
            for shard in split.shards:
                path = folder / shard.file
                if not path.is_file() or path.stat().st_size != shard.bytes:
                    manifest.verify_shard(path, shard)
        return found

    def recall(self, name: str | None) -> Summary | None:
        """The summary that is remembered under `name`."""
        try:
            return Summary.model_validate_json(self._summary_path(name).read_bytes()) if name else None
        except (OSError, ValidationError):
            return None

    def remember(self, name: str | None, summary: Summary) -> None:
        """Keep the summary of a listing under `name`; without one, there is nothing to go by."""
        if name:
            replace_file(self._summary_path(name), summary.model_dump_json().encode())

    def _summary_path(self, name: str) -> Path:
        return self.folder / f".{name}.listed.json"

    @contextlib.contextmanager
    def work_folder(self, identity: str | None = None, *, beside: bool = False) -> Iterator[Path]:
        """A folder for the work on the set with this identity, or for anything else, gone afterwards.

        Only one process at a time has a set's work folder: others wait. What a killed one left in it is there.
        With `beside` it lies in the store, wherever that is, so that other machines reach it.
        """
        identity = identity or secrets.token_hex(8)
        root = self.folder if beside else self._work_root
        made = _make_folders(root)
        folder = root / f".{identity}.work"
        try:
            with _locked(root / f".{identity}.lock"):
                folder.mkdir(exist_ok=True)
                try:
                    yield folder
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
        finally:
            for path in made:
                with contextlib.suppress(OSError):  # it holds something now
                    path.rmdir()

    def remove_leftovers(self, but: str) -> None:
        """Remove what killed runs left, but for the set with the identity `but`."""
        for root in {self._work_root, self.folder}:
            names = root.iterdir() if root.is_dir() else ()
            for name in {found[1] for path in names if (found := WORK.match(path.name))} - {but}:
                with _locked(root / f".{name}.lock", wait=False) as free:
                    if free:
                        shutil.rmtree(root / f".{name}.work", ignore_errors=True)

    def publish(self, finished: Path, identity: str) -> None:
        """Let the set that lies in `finished` appear under its identity."""
        target = self.path(identity)
        if target.exists():  # without a manifest: nobody's complete set
            shutil.rmtree(target)
        if self._mounted:
            self._copy(finished, target)
            return
        sync(finished)
        finished.rename(target)
        sync(self.folder)

    def _copy(self, finished: Path, target: Path) -> None:
        """Copy into the bucket, or move within it, the manifest last, as it is what makes a set complete."""
        target.mkdir(parents=True)
        for path in sorted(finished.iterdir(), key=lambda path: (path.name == manifest.FILE_NAME, path.name)):
            if finished.is_relative_to(self.folder):
                path.rename(target / path.name)  # of one file, which the bucket does itself
            else:
                shutil.copyfile(path, target / path.name)


@contextlib.contextmanager
def store_errors_named(store: Store, needed: int) -> Iterator[None]:
    """Turn the errors of a store that is full or cannot be written into a `UserError`.

    Args:
        store: Where is written.
        needed: The bytes that the set takes, 0 where that is not known.
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
                fix="set data.store to a folder that you can write to",
            ) from None
        raise


def require_room(store: Store, folder: Path, needed: int) -> None:
    """Refuse to begin what the disk cannot hold."""
    if shutil.disk_usage(folder).free < needed:
        raise no_room(store, needed)


def no_room(store: Store, needed: int) -> UserError:
    """The error of a full disk; the folder may be gone again."""
    folder = next(path for path in (store.folder, *store.folder.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    size = f"it takes about {_megabytes(needed)}" if needed else "the work on it does not fit"
    return UserError(
        f"There is no room for the data set in {store.folder}: {size}, {_megabytes(free)} are free.",
        setting="data.store",
        value=str(store.folder.parent),
        fix="free space there, or set data.store to a folder on a larger disk",
    )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _make_folders(path: Path) -> list[Path]:
    """Make `path` and the folders above it; those that were not there, the deepest first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return missing


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock `path`; gives whether it is held, which without `wait` it may not be.

    Processes forked meanwhile hold it too: while a worker lives that its parent left behind, it is not free.
    """
    descriptor = _lock(path, wait)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path, wait: bool) -> int | None:
    told = False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)  # a run that failed may just have removed it
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    os.close(descriptor)
                    return None
                if not told:
                    events.message("Another run prepares this data set: waiting for it.")
                    told = True
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Whoever held the lock removed the file, and perhaps another one is there by now.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
