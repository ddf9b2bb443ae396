"""Buckets mounted as folders in containers, like Cloud Storage FUSE: each side sees the other's writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fakes.storage import FakeStorage


class Mount:
    """The buckets' objects in `folder`/BUCKET/OBJECT."""

    def __init__(self, storage: FakeStorage, folder: Path) -> None:
        self._storage = storage
        self.folder = folder
        # What both sides have: size and time of the file, by bucket and object.
        self._same: dict[tuple[str, str], tuple[int, int]] = {}

    def take_in(self, bucket: str) -> None:
        """Create objects from new files, and delete the objects of deleted files."""
        root = self._root(bucket)
        there = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
        for name, path in there.items():
            if self._same.get((bucket, name)) != (seen := _seen(path)):
                self._storage.write(bucket, name, path.read_bytes())
                self._same[bucket, name] = seen
        for known, name in [key for key in self._same if key[0] == bucket and key[1] not in there]:
            self._storage.remove(known, name)
            del self._same[known, name]

    def give_out(self, bucket: str) -> None:
        """Write or delete files after a call has changed objects."""
        root = self._root(bucket)
        names = self._storage.names(bucket)
        for name in names:
            path = root / name
            content = self._storage.read(bucket, name)[0]
            if (bucket, name) not in self._same or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                open_to_all(path.parent, root)
                path.write_bytes(content)
                self._same[bucket, name] = _seen(path)
        for known, name in [key for key in self._same if key[0] == bucket and key[1] not in names]:
            (root / name).unlink(missing_ok=True)
            del self._same[known, name]

    def _root(self, bucket: str) -> Path:
        root = self.folder / bucket
        root.mkdir(exist_ok=True)
        open_to_all(root, self.folder)
        return root


def open_to_all(folder: Path, under: Path) -> None:
    """Let any container user write to a folder and its parents up to `under`."""
    for one in (folder, *folder.parents):
        if one == under:
            break
        one.chmod(0o777)


def _seen(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
