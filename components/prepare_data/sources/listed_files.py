"""The files that a list of images names: their status, and a reader of images and spooled features."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable
from pathlib import Path

from slipway.components.prepare_data.encoding.messages import bytes_feature, values
from slipway.components.prepare_data.encoding.table_rows import RowFile
from slipway.components.prepare_data.examples import Example, Unusable, readable
from slipway.components.prepare_data.remote import content, is_remote
from slipway.components.prepare_data.sources.images import FileReader, file_reader
from slipway.components.prepare_data.sources.source import Reader
from slipway.components.prepare_data.sources.values import file_content
from slipway.core.paths import MOUNTS, local_path

MAX_MISSING_NAMED = 5


def path_key(text: str) -> bytes:
    """Return the key of the image at a path or URI."""
    return os.fsencode(posixpath.normpath(local_path(text) if text.startswith(tuple(MOUNTS)) else text))


def file_status(root: Path, key: bytes) -> os.stat_result | str:
    """Return a file's status, or the reason why it is unavailable."""
    try:
        status = os.stat(os.path.join(os.fsencode(root), key))  # noqa: PTH116, PTH118
    except OSError as error:
        return error.strerror or "it cannot be read"
    return status if stat.S_ISREG(status.st_mode) else "it is not a file"


class MissingFiles:
    """Counts listed files that cannot be read.

    Args:
        part: The list.
        row: What its rows are counted by.
    """

    def __init__(self, part: Path, row: str) -> None:
        self._part = part
        self._row = row
        self._named: list[str] = []
        self.count = 0

    def status(self, root: Path, key: bytes, line: int) -> os.stat_result | None:
        """Return a file's status, or None after counting it as missing."""
        status = file_status(root, key)
        if not isinstance(status, str):
            return status
        self.count += 1
        if len(self._named) < MAX_MISSING_NAMED:
            self._named.append(f"{readable(key)} ({self._row} {line}: {status})")
        return None

    def __str__(self) -> str:
        more = f"; and {self.count - len(self._named):,} more" if self.count > len(self._named) else ""
        return f"{self.count:,} of the images listed in {self._part} cannot be read: {'; '.join(self._named)}{more}."


class ManifestReader(Reader):
    """Reads images by absolute or relative paths, and the spooled additional features.

    Args:
        has_image: Whether the key is the path of an image.
        root: The folder of relative paths.
        spool: The additional features, if any.
        images: The features that are image paths; their files are read as well.
    """

    def __init__(self, has_image: bool, root: Path, spool: RowFile | None, images: list[bytes]) -> None:
        self._has_image = has_image
        self._relative = file_reader(root)
        self._absolute = FileReader(Path("/"))
        self._is_remote = is_remote(root)
        self._root = os.fsencode(root)
        self._spool = spool
        self._images = images

    def ahead(self, examples: Iterable[Example]) -> Iterable[Example]:
        return self._relative.ahead(examples) if self._has_image else examples

    def read(self, key: bytes, offset: int, size: int) -> bytes:
        if not self._has_image:
            return b""
        if key.startswith(b"/") and not self._is_remote:
            return self._absolute.read(key[1:], offset, size)
        return self._relative.read(key, offset, size)

    def additional(self, offset: int) -> Iterable[tuple[bytes, bytes]]:
        for name, feature in self._spool.features(offset) if self._spool else ():
            if name in self._images:
                paths = (os.path.join(self._root, path) for path in values(feature) if isinstance(path, bytes))  # noqa: PTH118
                feature = bytes_feature(self._content(path) for path in paths)
            yield name, feature

    def _content(self, path: bytes) -> bytes:
        if not self._is_remote:
            return file_content(Path(os.fsdecode(path)), readable(path))
        try:
            return content(Path(os.fsdecode(path)))
        except FileNotFoundError as error:
            raise Unusable(f"{readable(path)} cannot be read: {error.strerror}") from None
