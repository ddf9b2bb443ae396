"""The source `csv:FILE`: a streamed list of images with their paths, classes and, optionally, splits.

Other columns become additional features, of the kind text unless data.features specifies another one. Their values are
spooled to a file while the list is read, because CSV rows cannot be accessed by number.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import os
import posixpath
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.messages import bytes_feature, values
from slipway.components.prepare_data.remote import RemoteFiles, is_remote
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.images import FileReader, file_reader, valid_name
from slipway.components.prepare_data.sources.record_layout import further_kinds
from slipway.components.prepare_data.sources.source import (
    SPLIT_FOLDERS,
    Entry,
    Group,
    Ignored,
    Source,
    Unusable,
    readable,
    stored_name,
)
from slipway.components.prepare_data.sources.spool import Spool, SpoolReader, UniqueKeys
from slipway.components.prepare_data.validation.image import check_bytes
from slipway.core.errors import UserError, nearest
from slipway.core.paths import local_path

IMAGE_COLUMNS = ("image", "path", "file")
LABEL_COLUMNS = ("label", "class")
SPLIT_COLUMN = "split"
COLUMNS = "a header line with the columns image (or path, file), label (or class) and optionally split"
MOST_MISSING_NAMED = 5
SPOOL = "columns"
# A column whose name is this similar to one of ours is more likely a typo than a feature.
SLIP = 0.8


class ManifestSource(Source):
    """The source `csv:FILE`. Image paths are absolute, or relative to the folder of the file.

    Args:
        place: The path or gs:// URI of the file.
        settings: The user's settings.
        group_column: The column of the group, if data.group_by is set.

    Raises:
        UserError: The file cannot be read, or columns are missing.
    """

    def __init__(self, place: str, settings: DataSettings, group_column: str | None) -> None:
        self.reference = settings.source
        self.path = local_path(place).expanduser().absolute()
        self.name = valid_name(self.path.stem)
        self._group_column = group_column
        self._columns_of = {
            "image": (settings.image,) if settings.image else IMAGE_COLUMNS,
            "label": (settings.label,) if settings.label else LABEL_COLUMNS,
            "split": (SPLIT_COLUMN,),
        }
        self._described = further_kinds(settings)
        try:
            with self.path.open("rb") as file:
                _, _, self._further = self._columns(self._rows(file))
        except OSError as error:
            raise self._mistake(f"{self.path} cannot be read: {error.strerror}.") from None
        self._kinds = {name: self._described.get(name, Kind("text")) for name in self._further}
        self.features = {stored_name(name): kind.description for name, kind in self._kinds.items()}

    def parts(self) -> list[Path]:
        return [self.path]

    def entries(self, part: Path, ignored: Ignored, scratch: Path) -> Iterator[Entry]:  # noqa: ARG002
        root = part.parent
        missing: list[str] = []
        missing_count = 0
        kept = Spool(scratch / SPOOL) if self._further else nullcontext()
        with part.open("rb") as file, UniqueKeys(scratch / "keys") as keys, kept as spool:
            rows = self._rows(file)
            header, columns, _ = self._columns(rows)
            line = 1
            for line, row in rows:
                if len(row) != header:
                    raise self._mistake(f"Line {line} of {part} has {len(row)} columns; line 1 has {header}.")
                values = {name: row[place].strip() for name, place in columns.items()}
                key, label, split, group = self._values(values, line)
                keys.add(key, line)
                status = _status(root, key)
                if isinstance(status, str):
                    missing_count += 1
                    if len(missing) < MOST_MISSING_NAMED:
                        missing.append(f"{readable(key)} (line {line}: {status})")
                    continue
                stamp, place = status.st_mtime_ns, 0
                if spool is not None:
                    further = self._features(row, line)
                    place = spool.add(b"", further)
                    stamp = int.from_bytes(hashlib.blake2b(repr((stamp, further)).encode(), digest_size=8).digest())
                yield key, label, split, status.st_size, stamp, place, group
            if line == 1:
                raise self._mistake(f"{part} lists no images.")
            if twice := keys.twice():
                key, one, other = twice
                raise self._mistake(f"{readable(key)} is listed twice in {part}: on lines {one} and {other}.")
        if missing:
            more = f"; and {missing_count - len(missing):,} more" if missing_count > len(missing) else ""
            raise self._mistake(
                f"{missing_count:,} of the images listed in {part} cannot be read: {'; '.join(missing)}{more}.",
                fix="correct the paths, or remove the lines",
            )

    def groups(self, found: Iterable[Group]) -> dict[Group, Group]:
        found = list(found)
        splits = {split for split, _ in found}
        if splits != {None} and "train" not in splits:
            raise self._mistake(f"{self.path} lists no image in the split train.")
        return {group: group for group in found}

    def reader(self, scratch: Path) -> ManifestReader:
        images = [stored_name(name).encode() for name, kind in self._kinds.items() if kind.name == "image"]
        return ManifestReader(self.path.parent, scratch / SPOOL if self._further else None, images)

    def _rows(self, file: BinaryIO) -> Iterator[tuple[int, list[str]]]:
        """Yield each row with the number of its last line; skip empty lines."""
        reader = csv.reader(self._lines(file), strict=True)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise self._mistake(f"Line {reader.line_num} of {self.path} is not CSV: {error}.") from None

    def _lines(self, file: BinaryIO) -> Iterator[str]:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise self._mistake(
                    f"Line {number} of {self.path} is not valid UTF-8.", fix="save the file as UTF-8"
                ) from None
            if "\0" in text:
                raise self._mistake(f"Line {number} of {self.path} contains a zero byte.")
            yield text

    def _columns(self, rows: Iterator[tuple[int, list[str]]]) -> tuple[int, dict[str, int], dict[str, int]]:
        """Return the number of columns, and the indices of our columns and of the additional ones."""
        _, names = next(rows, (1, []))
        names = [name.strip() for name in names]
        requested = dict(self._columns_of)
        if self._group_column is not None:
            requested["group"] = (self._group_column,)
        places: dict[str, int] = {}
        for use, allowed in requested.items():
            found = [place for place, name in enumerate(names) if name in allowed]
            if len(found) > 1:
                listed = ", ".join(names[place] for place in found)
                raise self._mistake(f"Line 1 of {self.path} has several columns for the {use}: {listed}.")
            if found:
                places[use] = found[0]
            elif use == "group":
                raise self._no_group_column(names)
            elif use != "split":
                known = " or ".join(allowed)
                raise self._mistake(f"Line 1 of {self.path} has no column {known}.", nearest(allowed[0], names))
        further = {
            name: place for place, name in enumerate(names) if all(places.get(use) != place for use in self._columns_of)
        }
        self._check_further(names, further)
        return len(names), places, further

    def _check_further(self, names: list[str], further: dict[str, int]) -> None:
        """Reject additional columns whose name is missing, duplicated or probably a typo."""
        known = {name for allowed in self._columns_of.values() for name in allowed} - set(names)
        counts = Counter(names)
        for name in further:
            if counts[name] > 1 or not name:
                raise self._mistake(
                    f"Line 1 of {self.path} has {'a column without a name' if not name else f'two columns {name}'}."
                )
            near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=SLIP)
            if near and name not in self._described and name != self._group_column:
                raise self._mistake(
                    f"Line 1 of {self.path} has an unknown column {name!r}.",
                    near[0],
                    fix=f"rename the column, or declare it as a feature: --set data.features.{name}=text",
                )
        for name, kind in self._described.items():
            if name not in further:
                raise UserError(
                    f"Line 1 of {self.path} has no column {name}.",
                    setting=f"data.features.{name}",
                    value=str(kind),
                    allowed=", ".join(further) or "no features: there are no additional columns",
                    nearest=nearest(name, further),
                )

    def _features(self, row: list[str], line: int) -> list[tuple[bytes, bytes]]:
        """Return the additional features of a row; for an image, its path."""
        found = []
        for name, place in self._further.items():
            kind, text = self._kinds[name], row[place].strip()
            try:
                if kind.name == "image":
                    paths = [os.fsencode(posixpath.normpath(local_path(path))) for path in kind.from_text(text)]
                    for path in paths:
                        if isinstance(status := _status(self.path.parent, path), str):
                            raise Unusable(f"{readable(path)} cannot be read: {status}")
                    feature = bytes_feature(paths)
                else:
                    feature = kind.encode(kind.from_text(text))
            except Unusable as reason:
                raise self._mistake(
                    f"Line {line} of {self.path} has an invalid {kind} in the column {name}: {reason}.",
                    fix=f"correct the line, or set data.features.{name} to another kind",
                ) from None
            found.append((stored_name(name).encode(), feature))
        return found

    def _values(self, values: dict[str, str], line: int) -> tuple[bytes, str, str | None, bytes]:
        """Return a row's key, class, split and group."""
        for use, value in values.items():
            if not value:
                raise self._mistake(f"Line {line} of {self.path} has no {use}.")
        if not values["label"].isprintable():
            raise self._mistake(f"Line {line} of {self.path} has an unprintable label: {values['label']!r}.")
        split = None
        if "split" in values:
            split = SPLIT_FOLDERS.get(values["split"].lower())
            if split is None:
                raise self._mistake(
                    f"Line {line} of {self.path} has an unknown split: {values['split']!r}.",
                    nearest(values["split"], SPLIT_FOLDERS),
                    allowed="train, validation and test",
                )
        key = os.fsencode(posixpath.normpath(local_path(values["image"])))
        return key, values["label"], split, values.get("group", "").encode()

    def _no_group_column(self, names: list[str]) -> UserError:
        return UserError(
            f"Line 1 of {self.path} has no column {self._group_column}.",
            setting="data.group_by",
            value=f"column:{self._group_column}",
            allowed="column:NAME, where NAME is one of " + ", ".join(names),
            nearest=nearest(self._group_column or "", names),
        )

    def _mistake(
        self, message: str, near: str | None = None, *, allowed: str = COLUMNS, fix: str | None = None
    ) -> UserError:
        return UserError(message, setting="data.source", value=self.reference, allowed=allowed, nearest=near, fix=fix)


def _status(root: Path, key: bytes) -> os.stat_result | str:
    """Return a file's status, or the reason why it is unavailable."""
    try:
        status = os.stat(os.path.join(os.fsencode(root), key))  # noqa: PTH116, PTH118
    except OSError as error:
        return error.strerror or "it cannot be read"
    return status if stat.S_ISREG(status.st_mode) else "it is not a file"


class ManifestReader:
    """Reads images by absolute or relative paths, and the spooled additional features.

    Args:
        root: The folder of relative paths.
        spool: The spool file of the additional features, if any.
        images: The features that are image paths; their files are read as well.
    """

    def __init__(self, root: Path, spool: Path | None, images: list[bytes]) -> None:
        self._relative = file_reader(root)
        self._absolute = FileReader(Path("/"))
        self._remote = RemoteFiles(Path("/"))
        self._root = os.fsencode(root)
        self._spool = SpoolReader(spool) if spool else None
        self._images = images

    def read(self, key: bytes, place: int, size: int) -> bytes:
        if key.startswith(b"/"):
            if is_remote(Path(os.fsdecode(key))):
                return self._remote.read(key[1:], place, size)
            return self._absolute.read(key[1:], place, size)
        return self._relative.read(key, place, size)

    def further(self, place: int) -> Iterable[tuple[bytes, bytes]]:
        for name, feature in self._spool.further(place) if self._spool else ():
            if name in self._images:
                paths = (os.path.join(self._root, path) for path in values(feature) if isinstance(path, bytes))  # noqa: PTH118
                feature = bytes_feature(_content(path) for path in paths)
            yield name, feature


def _content(path: bytes) -> bytes:
    file = Path(os.fsdecode(path))
    try:
        check_bytes(file.stat().st_size)
        return file.read_bytes()
    except OSError as error:
        raise Unusable(f"{readable(path)} cannot be read: {error.strerror}") from None
