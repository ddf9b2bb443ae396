"""Buckets mounted as folders in containers, by the rules of Cloud Storage FUSE.

Source: gcsfuse's docs/semantics.md (https://github.com/GoogleCloudPlatform/gcsfuse/blob/master/docs/semantics.md).
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fakes.storage import FakeStorage

FLAGS = re.compile(r"^flags:\s*([0-7]+)$", re.MULTILINE)


class Mount:
    """The buckets' objects in `folder`/BUCKET/OBJECT.

    A file is an object once no process has it open for writing. `strict` is how gcsfuse mounts by default: only the
    mounter can write; otherwise anyone can. How Vertex AI mounts is not documented.
    """

    def __init__(self, storage: FakeStorage, folder: Path, *, strict: bool = True) -> None:
        self._storage = storage
        self.folder = folder
        self._file_mode, self._folder_mode = (0o644, 0o755) if strict else (0o666, 0o777)
        # What both sides have: size and time of the file, and the object's generation, by bucket and object.
        self._same: dict[tuple[str, str], tuple[int, int, str]] = {}

    def take_in(self, bucket: str) -> None:
        """Create objects from files that were closed, and delete the objects of deleted files."""
        root = self._root(bucket)
        files = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)  # folders may vanish
        there = {str(path.relative_to(root)): path for path in files if path.is_file()}
        changed = {}
        for name, path in there.items():
            with contextlib.suppress(FileNotFoundError):
                if self._same.get((bucket, name), ())[:2] != (seen := _seen(path)):
                    changed[name] = (seen, path.read_bytes())
        open_now = open_for_writing() if changed else set()
        for name, (seen, content) in changed.items():
            with contextlib.suppress(FileNotFoundError):
                status = there[name].stat()
                if (status.st_dev, status.st_ino) not in open_now and _seen(there[name]) == seen:
                    self._storage.write(bucket, name, content)
                    self._same[bucket, name] = (*seen, self._storage.read(bucket, name)[1])
        for known, name in [key for key in self._same if key[0] == bucket and key[1] not in there]:
            self._storage.remove(known, name)
            del self._same[known, name]

    def give_out(self, bucket: str) -> None:
        """Write or delete files after a call has changed objects."""
        root = self._root(bucket)
        names = self._storage.names(bucket)
        for name in names:
            content, generation = self._storage.read(bucket, name)
            if self._same.get((bucket, name), ())[2:] != (generation,):
                path = root / name
                self.make_folder(path.parent)
                path.write_bytes(content)
                path.chmod(self._file_mode)
                self._same[bucket, name] = (*_seen(path), generation)
        for known, name in [key for key in self._same if key[0] == bucket and key[1] not in names]:
            (root / name).unlink(missing_ok=True)
            del self._same[known, name]

    def copy_to(self, folder: Path, bucket: str) -> None:
        """Write the bucket's objects to `folder`: what another machine finds when this one is lost."""
        self.take_in(bucket)
        for name in self._storage.names(bucket):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(self._storage.read(bucket, name)[0])

    def make_folder(self, folder: Path) -> None:
        """Make a folder below `self.folder`, and its parents."""
        for one in reversed((folder, *folder.relative_to(self.folder).parents)):
            path = self.folder / one
            path.mkdir(exist_ok=True)
            path.chmod(self._folder_mode)

    def _root(self, bucket: str) -> Path:
        self.make_folder(self.folder / bucket)
        return self.folder / bucket


def open_for_writing() -> set[tuple[int, int]]:
    """Return device and inode of the files that a process, in a container or not, has open for writing."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or ended in the meantime
            for about in (process / "fdinfo").iterdir():
                with contextlib.suppress(OSError):
                    flags = FLAGS.search(about.read_text())
                    if flags and int(flags[1], 8) & (os.O_WRONLY | os.O_RDWR):
                        status = (process / "fd" / about.name).stat()
                        found.add((status.st_dev, status.st_ino))
    return found


def _seen(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
