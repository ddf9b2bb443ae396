"""A folder of image files: `split/class/*` where the folder has splits of its own, `class/*` where it has none."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from slipway.components.prepare_data.encoding.unusable import Unusable
from slipway.components.prepare_data.remote import RemoteFiles, is_remote
from slipway.components.prepare_data.sources.layout import LAYOUT, check_class_folders, is_image, split_folders
from slipway.components.prepare_data.sources.source import Entry, Group, Ignored, Plain, PlainReader, Reader
from slipway.core.errors import UserError, nearest
from slipway.core.paths import local_path

READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC


@dataclass(frozen=True)
class ClassFolder:
    """One part: the files of one class in one split; `path` is relative to the source's folder."""

    path: str
    label: str
    split: str | None


class ImagesSource(Plain):
    """The source `images:FOLDER`.

    Files at the top, hidden files and files that are no images are passed over. Symbolic links are followed.

    Raises:
        UserError: There is no such folder, or it is not laid out as described.
    """

    def __init__(self, place: str, reference: str) -> None:
        self.reference = reference
        self.root = local_path(place).expanduser().absolute()
        self.name = valid_name(self.root.resolve().name)
        self._check_folder()

    def parts(self) -> list[ClassFolder]:
        top = self._subfolders("")
        splits = split_folders(top, self.root, self.reference)
        self._check_splits(splits)
        found = [
            ClassFolder(f"{folder}/{name}", name, split)
            for folder, split in splits.items()
            for name in self._subfolders(folder)
        ]
        if not splits:
            found = [ClassFolder(name, name, None) for name in top]
        check_class_folders([part.path for part in found], self.root, self.reference)
        return found

    def entries(
        self,
        part: ClassFolder,
        ignored: Ignored,
        scratch: Path,  # noqa: ARG002
    ) -> Iterator[Entry]:
        prefix = os.fsencode(part.path) + b"/"
        label, split = part.label, part.split
        empty = True
        with self._scan(part.path) as files:
            for file in files:
                name = file.name
                if name[:1] == b".":
                    continue
                if name[-4:] != b".png" and not is_image(name):  # the call takes longer than the comparison
                    self._pass_over(file, part, prefix, ignored)
                    continue
                empty = False
                try:
                    status = file.stat()
                except OSError:
                    # A link that leads nowhere or in a circle: reading it will say so.
                    yield prefix + name, label, split, 0, 0, 0, b""
                    continue
                if not stat.S_ISREG(status.st_mode):
                    self._pass_over(file, part, prefix, ignored)
                    continue
                yield prefix + name, label, split, status.st_size, status.st_mtime_ns, 0, b""
        if empty:
            raise UserError(
                f"There are no images in the class folder {self.root / part.path}.",
                setting="data.source",
                value=self.reference,
                allowed=LAYOUT,
                fix="add images to the folder, or remove it",
            )

    def groups(self, found: Iterable[Group]) -> dict[Group, Group]:
        return {group: group for group in found}

    def stamp(self) -> None:
        return None

    def reader(self, scratch: Path) -> Reader:  # noqa: ARG002
        return file_reader(self.root)

    def _subfolders(self, folder: str) -> list[str]:
        """The names of the folders in `folder`, sorted, without hidden ones."""
        with self._scan(folder) as found:
            return sorted(
                os.fsdecode(entry.name) for entry in found if entry.is_dir() and not entry.name.startswith(b".")
            )

    def _scan(self, folder: str) -> AbstractContextManager[Iterator[os.DirEntry[bytes]]]:
        path = self.root / folder
        try:
            return os.scandir(os.fsencode(path))
        except OSError as error:
            raise UserError(
                f"The folder {path} cannot be read: {error.strerror}.", setting="data.source", value=self.reference
            ) from None

    def _check_folder(self) -> None:
        if self.root.is_dir():
            return
        siblings = [path.name for path in self.root.parent.iterdir()] if self.root.parent.is_dir() else []
        near = nearest(self.root.name, siblings)
        exists = self.root.exists()
        raise UserError(
            f"{self.root} is not a folder." if exists else f"There is no folder {self.root}.",
            setting="data.source",
            value=self.reference,
            allowed=LAYOUT,
            nearest=f"images:{self.root.with_name(near)}" if near and not exists else None,
        )

    def _check_splits(self, splits: Iterable[str]) -> None:
        """Refuse a split without classes: its examples would be taken from train instead."""
        for folder in splits:
            if not self._subfolders(folder):
                raise UserError(
                    f"The split {folder} of {self.root} is empty.",
                    setting="data.source",
                    value=self.reference,
                    allowed=LAYOUT,
                    fix="add class folders to it, or remove it: then a part of train becomes it",
                )

    def _pass_over(self, file: os.DirEntry[bytes], part: ClassFolder, prefix: bytes, ignored: Ignored) -> None:
        """Note what is no image; refuse a folder, as it may hold images that would be missing."""
        if not file.is_dir():
            ignored.add(prefix + file.name)
            return
        raise UserError(
            f"The class folder {part.path} in {self.root} contains a folder, {os.fsdecode(file.name)}.",
            setting="data.source",
            value=self.reference,
            allowed=LAYOUT,
            fix="move its images up, or name the folder whose folders are the classes or splits",
        )


def file_reader(root: Path) -> Reader:
    """What reads files below a folder, which may be in a bucket that is not mounted here."""
    return RemoteFiles(root) if is_remote(root) else FileReader(root)


class FileReader(PlainReader):
    """Reads files below a folder."""

    def __init__(self, root: Path) -> None:
        self._root = os.fsencode(root) + b"/"

    def read(self, key: bytes, place: int, size: int) -> bytes:  # noqa: ARG002
        try:
            descriptor = os.open(self._root + key, READ_FLAGS)
            try:
                data = os.read(descriptor, size + 1)
                while 0 < len(data) < size and (more := os.read(descriptor, size + 1 - len(data))):
                    data += more
            finally:
                os.close(descriptor)
        except OSError as error:
            raise Unusable(f"it cannot be read: {error.strerror}") from None
        if len(data) != size:
            raise UserError(
                f"{os.fsdecode(self._root + key)} changed while the data set was prepared.",
                setting="data.source",
                fix="run again when nothing writes into the source",
            )
        return data


def valid_name(text: str) -> str:
    """`text` as a data set's name: lower-case letters, digits and underscores, a letter first."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return name if re.match(r"[a-z]", name) else f"data_{name}".rstrip("_")
