"""The source `images:FOLDER`: image files in `split/class/*`, or in `class/*` if the folder defines no splits."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from slipway.components.prepare_data.examples import SPLIT_FOLDERS, Group, Unusable, source_error
from slipway.components.prepare_data.remote import RemoteFiles, is_remote
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.source import Entry, Ignored, PlainReader, Reader, Source
from slipway.core import images
from slipway.core.errors import UserError, nearest
from slipway.core.manifest import TaskName
from slipway.core.paths import local_path

# Files with these extensions are examples, and other files whose content is an image.
ENDINGS = frozenset(ending.encode() for ending in images.ENDINGS)
LAYOUT = (
    f"class/IMAGE or split/class/IMAGE, with the splits train, validation and test; images are {images.NAMES} files"
)
# By which the format of an image is known.
FIRST_BYTES = 256
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC


@dataclass(frozen=True)
class ClassFolder:
    """One part: the files of one class in one split; `path` is relative to the source's folder."""

    path: str
    label: str
    split: str | None


class ImagesSource(Source):
    """The source `images:FOLDER`.

    Files in the top folder, hidden files and files that are not images are ignored. Symbolic links are followed.

    Raises:
        UserError: The folder does not exist or has another layout.
    """

    stamps_are_times = True

    def __init__(self, argument: str, reference: str) -> None:
        self.reference = reference
        self.root = local_path(argument).expanduser().absolute()
        self.name = valid_name(self.root.resolve().name)
        self._check_folder()

    def parts(self) -> list[ClassFolder]:
        top = self._subfolders("")
        splits = split_folders(top, self.root, self.reference)
        self._check_splits(splits)
        class_folders = [
            ClassFolder(f"{folder}/{name}", name, split)
            for folder, split in splits.items()
            for name in self._subfolders(folder)
        ]
        if not splits:
            class_folders = [ClassFolder(name, name, None) for name in top]
        check_class_folders([part.path for part in class_folders], self.root, self.reference)
        return class_folders

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
                # The comparison is faster than the call.
                if name[-4:] != b".png" and not is_image(name) and not has_image(file.path):
                    self._pass_over(file, part, prefix, ignored)
                    continue
                empty = False
                try:
                    status = file.stat()
                except OSError:
                    # A dangling or circular link; the error is reported when it is read.
                    yield prefix + name, label, split, 0, 0, 0, b""
                    continue
                if not stat.S_ISREG(status.st_mode):
                    self._pass_over(file, part, prefix, ignored)
                    continue
                yield prefix + name, label, split, status.st_size, status.st_mtime_ns, 0, b""
        if empty:
            raise source_error(
                self.reference,
                f"There are no images in the class folder {self.root / part.path}.",
                allowed=LAYOUT,
                fix="add images to the folder, or remove it",
            )

    def reader(self, scratch: Path) -> Reader:  # noqa: ARG002
        return file_reader(self.root)

    def _subfolders(self, folder: str) -> list[str]:
        with self._scan(folder) as entries:
            return sorted(
                os.fsdecode(entry.name) for entry in entries if entry.is_dir() and not entry.name.startswith(b".")
            )

    def _scan(self, folder: str) -> AbstractContextManager[Iterator[os.DirEntry[bytes]]]:
        path = self.root / folder
        try:
            return os.scandir(os.fsencode(path))
        except OSError as error:
            raise source_error(self.reference, f"The folder {path} cannot be read: {error.strerror}.") from None

    def _check_folder(self) -> None:
        if self.root.is_dir():
            return
        siblings = [path.name for path in self.root.parent.iterdir()] if self.root.parent.is_dir() else []
        near = nearest(self.root.name, siblings)
        exists = self.root.exists()
        raise source_error(
            self.reference,
            f"{self.root} is not a folder." if exists else f"There is no folder {self.root}.",
            allowed=LAYOUT,
            nearest=f"images:{self.root.with_name(near)}" if near and not exists else None,
        )

    def _check_splits(self, splits: Iterable[str]) -> None:
        """Reject a split without classes, which would otherwise be filled from train."""
        for folder in splits:
            if not self._subfolders(folder):
                raise source_error(
                    self.reference,
                    f"The split {folder} of {self.root} is empty.",
                    allowed=LAYOUT,
                    fix=f"add class folders to {folder}, or remove it to create the split from a part of train",
                )

    def _pass_over(self, file: os.DirEntry[bytes], part: ClassFolder, prefix: bytes, ignored: Ignored) -> None:
        """Record a file that is not an image; reject a folder, whose images would be missing."""
        if not file.is_dir():
            ignored.add(prefix + file.name)
            return
        raise source_error(
            self.reference,
            f"The class folder {part.path} in {self.root} contains a folder, {os.fsdecode(file.name)}.",
            allowed=LAYOUT,
            fix="move its images into the class folder, or set data.source to the folder that holds the classes",
        )


def open_images(argument: str, settings: DataSettings, column: str | None, task: TaskName) -> ImagesSource:  # noqa: ARG001
    """Open the source `images:FOLDER`.

    Raises:
        UserError: The folder does not exist or has another layout.
    """
    return ImagesSource(argument, settings.source)


def file_reader(root: Path) -> Reader:
    """Return a reader of files below a folder, which may be in a bucket that is not mounted here."""
    return RemoteFiles(root) if is_remote(root) else FileReader(root)


class FileReader(PlainReader):
    """Reads files below a folder."""

    def __init__(self, root: Path) -> None:
        self._root = os.fsencode(root) + b"/"

    def read(self, key: bytes, offset: int, size: int) -> bytes:  # noqa: ARG002
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
                fix="run again when no other process writes to the source",
            )
        return data


def valid_name(text: str) -> str:
    """Convert `text` to a data set name: lower-case letters, digits and underscores, starting with a letter."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return name if re.match(r"[a-z]", name) else f"data_{name}".rstrip("_")


def is_image(name: bytes) -> bool:
    """Whether a file name has the extension of an image format."""
    return name.rpartition(b".")[2].lower() in ENDINGS


def has_image(path: bytes) -> bool:
    """Whether a file's content is an image, whatever its name is."""
    try:
        descriptor = os.open(path, READ_FLAGS | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return is_file and images.format_of(os.read(descriptor, FIRST_BYTES)) is not None
    finally:
        os.close(descriptor)


def split_folders(top: Iterable[str], where: object, reference: str) -> dict[str, str]:
    """Map top-level folders to splits; return an empty dict if the folders are classes.

    Raises:
        UserError: Only some folders are splits, a split has several folders, or train is missing.
    """
    top = list(top)
    splits = {name: SPLIT_FOLDERS[name.lower()] for name in top if name.lower() in SPLIT_FOLDERS}
    strange = [name for name in top if name not in splits]
    twice = [name for name in splits if list(splits.values()).count(splits[name]) > 1]
    if not splits:
        return {}
    if strange:
        strange_names = ", ".join(strange[:5]) + (", …" if len(strange) > 5 else "")
        problem = f"{where} mixes split folders ({', '.join(splits)}) with other folders ({strange_names})."
    elif twice:
        problem = f"{where} has several folders for one split: {', '.join(twice)}."
    elif "train" not in splits.values():
        problem = f"{where} has the folders {', '.join(splits)}, but no folder for the split train."
    else:
        return splits
    raise source_error(reference, problem, allowed=LAYOUT)


def check_class_folders(folders: Iterable[str], where: object, reference: str) -> None:
    """Reject a tree without class folders, and class names with unprintable characters."""
    folders = list(folders)
    if not folders:
        raise source_error(reference, f"There are no class folders in {where}.", allowed=LAYOUT)
    for folder in folders:
        if not folder.isprintable():
            raise source_error(
                reference,
                f"The class folder {folder!r} in {where} has unprintable characters in its name.",
                fix="rename the folder",
            )


def groups_of(folders: Iterable[str], where: object, reference: str) -> dict[str, Group]:
    """Return the split and class of each folder of images, by its path. Common parent folders are ignored.

    Raises:
        UserError: The folders have another layout.
    """
    paths = {folder: folder.split("/") if folder else [] for folder in sorted(folders)}
    check_class_folders(paths, where, reference)
    rests = paths
    while all(len(parts) > 1 for parts in rests.values()):
        top = {parts[0] for parts in rests.values()}
        if len(top) > 1 or top & SPLIT_FOLDERS.keys():
            break
        rests = {folder: parts[1:] for folder, parts in rests.items()}
    splits = split_folders(sorted({parts[0] for parts in rests.values() if parts}), where, reference)
    result: dict[str, Group] = {}
    for folder, parts in rests.items():
        if len(parts) != (2 if splits else 1):
            raise source_error(
                reference,
                f"{where} has images in {folder or 'no folder'!r}, which is neither class/ nor split/class/.",
                allowed=LAYOUT,
            )
        result[folder] = (splits[parts[0]], parts[1]) if splits else (None, parts[0])
    return result
