"""The source `tfrecord:`: TFRecord files of tf.train.Example. Features missing from the features file are dropped."""

from __future__ import annotations

import functools
import glob
import hashlib
import itertools
import marshal
import os
import re
import shlex
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from slipway.components.prepare_data.encoding.messages import features_of, values
from slipway.components.prepare_data.encoding.records import scan
from slipway.components.prepare_data.examples import (
    COLUMN,
    SPLIT_FOLDERS,
    Example,
    Group,
    Unusable,
    readable,
    source_error,
)
from slipway.components.prepare_data.remote import ReadAhead, is_remote, open_file, read_range
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sorting import DIGEST_BYTES, ExampleKeys
from slipway.components.prepare_data.sources.images import valid_name
from slipway.components.prepare_data.sources.record_layout import RecordLayout, read_features, record_layout
from slipway.components.prepare_data.sources.source import (
    Entry,
    Ignored,
    ListedRows,
    Reader,
    Source,
    coded,
    coded_groups,
)
from slipway.core.errors import UserError, nearest
from slipway.core.manifest import TaskName
from slipway.core.paths import local_path
from slipway.core.tfrecord import CHECKSUM, HEADER_BYTES, masked_crc32c, record_length

# A split's name in a file's name, as in flowers-train.tfrecord-00000-of-00002 or train/part-1.tfrecord.
SPLIT_TOKEN = re.compile(r"(?:^|[-_.])(train|validation|valid|val|test)(?=[-_.]|$)", re.IGNORECASE)
OFFSET_BITS = 44
MAX_OPEN = 64
GZIP_START = b"\x1f\x8b"
# A record's key, its features by name, and of its entry the label, split, size, position and group; and its message.
Listed = tuple[bytes, dict[bytes, bytes], tuple[str, str | None, int, int, bytes, bytes], bytes]
ROWS_LISTED = 4096  # at once
READ_BYTES = 8 << 20  # by one request, if a file is in a bucket


@dataclass(frozen=True)
class RecordFile:
    """One file: its path, the prefix of its examples' keys, its split, and its expected number of records."""

    path: Path
    prefix: str
    split: str | None
    records: int | None = None


def _digest(features: Mapping[bytes, bytes]) -> bytes:
    """Return the hash of Features, which have no fixed order in a record."""
    return hashlib.blake2b(marshal.dumps(sorted(features.items()), 2), digest_size=DIGEST_BYTES).digest()


def _is_compressed(path: Path) -> bool:
    with path.open("rb") as opened:
        return opened.read(2) == GZIP_START


class TfrecordSource(Source):
    """Examples in TFRecord files.

    Args:
        name: The data set's name.
        settings: The user's settings.
        files: The files, in a fixed order.
        layout: The role of each feature.
        group_column: The feature of the group, if data.group_by is set.
    """

    def __init__(
        self,
        name: str,
        settings: DataSettings,
        files: Sequence[RecordFile],
        layout: RecordLayout,
        group_column: str | None,
    ) -> None:
        self.name = name
        self.reference = settings.source
        self._keeps_truncated = settings.truncated == "keep"
        self.task = layout.task
        self.has_image = layout.image is not None
        self.inputs = layout.inputs
        self.features = layout.additional
        self.class_names = layout.class_names
        self._files = files
        self._layout = layout
        names = [*layout.additional, *filter(None, [layout.key])]
        self._group = require_feature(group_column, names)
        self._order = require_feature(settings.order_column, names, "order")
        compressed = [file.path for file in files if _is_compressed(file.path)]
        if compressed:
            gzipped = [path if path.suffix == ".gz" else path.with_name(f"{path.name}.gz") for path in compressed]
            renamed = [
                f"mv {shlex.quote(str(old))} {shlex.quote(str(new))}"
                for old, new in zip(compressed, gzipped, strict=True)
                if old != new
            ]
            raise source_error(
                self.reference,
                f"{compressed[0]} is compressed as a whole; its records cannot be read individually.",
                fix=" && ".join([*renamed, f"gunzip {shlex.join(map(str, gzipped))}"]),
            )

    @property
    def files(self) -> list[Path]:
        return [file.path for file in self._files]

    def classes(self, listed: Iterable[str]) -> list[str]:
        return self._layout.classes(listed)

    def parts(self) -> list[list[int]]:
        """Return one part per file, or one part of all files if their keys have to be unique among all.

        The key of an image without one is its position; that of another example is a hash of its content.
        """
        numbers = list(range(len(self._files)))
        return [numbers] if self._layout.key else [[number] for number in numbers]

    def rows(self, part: list[int], ignored: Ignored, scratch: Path) -> Iterator[ListedRows] | None:  # noqa: ARG002
        return None if self.has_image or self._layout.key else self._rows(part, ignored)

    def _rows(self, part: list[int], ignored: Ignored) -> Iterator[ListedRows]:
        records = self._records(part, ignored)
        while batch := [*itertools.islice(records, ROWS_LISTED)]:
            yield self._listed(batch)

    def _listed(self, records: Sequence[Listed]) -> ListedRows:
        import numpy as np

        digests = b"".join([_digest(features) for _, features, *_ in records])
        learned = b"".join([self._content(features) for _, features, *_ in records])
        labels, splits, *columns, values, orders = zip(*(entry for _, _, entry, _ in records), strict=True)
        groups, group, names = coded_groups(splits, labels, several=self.task == "multilabel")
        sizes, offsets = (np.array(column, np.int64) for column in columns)
        hashes = np.frombuffer(digests, ">u8")
        contents = np.frombuffer(learned, ">u8")
        order = None if self._order is None else coded(orders)
        return ListedRows(hashes, groups, group, sizes, offsets, *coded(values), names, contents, order=order)

    def _content(self, features: Mapping[bytes, bytes]) -> bytes:
        """Return the hash of an example's inputs and label."""
        return _digest({name: feature for name, feature in features.items() if name in self._learned})

    @functools.cached_property
    def _learned(self) -> set[bytes]:
        """The features that are inputs or the label."""
        sources = {new: name for name, new in self._layout.renamed.items()}
        return {sources.get(name, name).encode() for name in self.inputs} | {self._layout.label.encode()}

    def entries(self, part: list[int], ignored: Ignored, scratch: Path) -> Iterator[Entry]:
        with ExampleKeys(scratch / "keys") if self._layout.key else nullcontext() as keys:  # of the only part
            for count, (key, features, entry, message) in enumerate(self._records(part, ignored)):
                if keys:
                    keys.add(key, count)
                stamp = int.from_bytes(hashlib.blake2b(message, digest_size=DIGEST_BYTES).digest())
                label, split, size, offset, value, order = entry
                if not (self.has_image or self._group):
                    value = self._content(features)
                listed = key, label, split, size, stamp, offset, value
                yield (*listed, order) if self._order else listed
            if keys and (twice := keys.twice()):
                raise source_error(
                    self.reference,
                    f"The key {readable(twice[0])} is not unique: examples {twice[1]:,} and {twice[2]:,} have it.",
                    fix=f"make every {self._layout.key} unique, or remove {self._layout.key} from the features file",
                )

    def _records(self, part: list[int], ignored: Ignored) -> Iterator[Listed]:
        return itertools.chain.from_iterable(self._of_file(number, ignored) for number in part)

    def _of_file(self, number: int, ignored: Ignored) -> Iterator[Listed]:
        file, count, is_damaged = self._files[number], 0, False
        with open_file(file.path, READ_BYTES) as opened:
            for offset, message, reason, is_cut in scan(opened):
                if is_cut:
                    self._refuse_truncated(file, count)
                is_damaged |= reason is not None
                key = f"{file.prefix}/{count}".encode()
                count += 1
                if reason is not None:
                    ignored.skip(key, reason)
                    continue
                try:
                    features = features_of(message)
                    key = self._layout.key_of(features) or key
                    label = self._layout.label_of(features)
                    if self.task == "regression":
                        ignored.precision.add(self._layout.label, self._layout.target(features))
                    texts = self._text(features, self._group, "group"), self._text(features, self._order, "order")
                except Unusable as error:
                    ignored.skip(key, str(error))
                    continue
                place = number << OFFSET_BITS | offset
                yield key, features, (label, file.split, len(message), place, *texts), message
        if not is_damaged and count < (file.records or 0):
            self._refuse_truncated(file, count)
        for missing in range(count, file.records or 0):
            ignored.skip(f"{file.prefix}/{missing}".encode(), "it is missing from its file")

    def _refuse_truncated(self, file: RecordFile, count: int) -> None:
        """Raise UserError for a file that ends after `count` records, unless the user keeps such files."""
        if self._keeps_truncated:
            return
        lost = "it is not known how many it lost" if file.records is None else f"it had {file.records:,}"
        raise source_error(
            self.reference,
            f"{file.path} is cut off or damaged after {count:,} records: {lost}.",
            allowed="whole files; data.skip_corrupt counts records",
            fix="copy the file again; or keep its records: --set data.truncated=keep --set data.skip_corrupt=0.01",
        )

    def _text(self, features: dict[bytes, bytes], name: str | None, use: str) -> bytes:
        """Return the text of the feature by which examples are grouped or ordered; empty without one."""
        if name is None:
            return b""
        sources = {new: name for name, new in self._layout.renamed.items()}
        feature_values = values(features.get(sources.get(name, name).encode(), b""))
        if len(feature_values) != 1:
            raise Unusable(f"it has {len(feature_values)} values of {name}; data.{use}_by requires one")
        return feature_values[0] if isinstance(feature_values[0], bytes) else str(feature_values[0]).encode()

    def groups(self, listed: Iterable[Group]) -> dict[Group, Group]:
        listed = list(listed)
        present = {split for split, _ in listed}
        for split in {file.split for file in self._files} - present:
            raise source_error(
                self.reference,
                f"The split {split} is empty: its files contain no usable example."
                if split
                else "The files contain no usable example.",
                fix="add records to the files, or exclude the files",
            )
        if present != {None} and "train" not in present:
            raise source_error(
                self.reference, f"{self.reference} has no split train, only {', '.join(sorted(filter(None, present)))}."
            )
        return {group: group for group in listed}

    def stamp(self) -> str:
        status = [(file, (file_stat := file.path.stat()).st_size, file_stat.st_mtime_ns) for file in self._files]
        return hashlib.sha256(repr((status, self._layout, self._group)).encode()).hexdigest()

    def reader(self, scratch: Path) -> TfrecordReader:  # noqa: ARG002
        return TfrecordReader(self.files, self._layout)


class TfrecordReader(Reader):
    """Reads examples by file and offset; keeps a limited number of files open."""

    def __init__(self, paths: Sequence[Path], layout: RecordLayout) -> None:
        self._paths = paths
        self._open: OrderedDict[int, BinaryIO] = OrderedDict()
        self._layout = layout
        self._features: dict[bytes, bytes] = {}
        self._remote = ReadAhead(self._record) if is_remote(paths[0]) else None

    def ahead(self, examples: Iterable[Example]) -> Iterable[Example]:
        return self._remote.ahead(examples) if self._remote else examples

    def read(self, key: bytes, offset: int, size: int) -> bytes:
        data = self._remote.read(key, offset, size) if self._remote else self._record(key, offset, size)
        number = offset >> OFFSET_BITS
        message = data[HEADER_BYTES : HEADER_BYTES + size]
        checksum = CHECKSUM.pack(masked_crc32c(message))
        if record_length(data[:HEADER_BYTES]) != size or data[HEADER_BYTES + size :] != checksum:
            raise UserError(
                f"{self._paths[number]} changed while the data set was prepared.",
                setting="data.source",
                fix="run again when no other process writes to the source",
            )
        self._features = features_of(message)
        return self._layout.image_of(self._features) if self._layout.image else b""

    def additional(self, offset: int) -> Iterable[tuple[bytes, bytes]]:  # noqa: ARG002
        return self._layout.additional_of(self._features)

    def _record(self, key: bytes, offset: int, size: int) -> bytes:  # noqa: ARG002
        """Return a record as it is stored: the length, the message and their checksums."""
        number, start = offset >> OFFSET_BITS, offset & (1 << OFFSET_BITS) - 1
        length = HEADER_BYTES + size + CHECKSUM.size
        if self._remote:
            return read_range(self._paths[number], start, length)
        file = self._file(number)
        file.seek(start)
        return file.read(length)

    def _file(self, number: int) -> BinaryIO:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        if len(self._open) == MAX_OPEN:
            self._open.popitem(last=False)[1].close()
        self._open[number] = self._paths[number].open("rb", buffering=0)
        return self._open[number]


def open_tfrecord(
    pattern: str, settings: DataSettings, group_column: str | None, task: TaskName = "classification"
) -> TfrecordSource:
    """Open the source `tfrecord:PATTERN`, a path or gs:// URI with * and ?; file or folder names contain the split.

    Raises:
        UserError: No file matches, only some of the files name a split, or there is no features description.
    """
    matching = local_path(pattern).expanduser().absolute()
    if matching.is_dir():
        matching = matching / "*.tfrecord*"
    paths = sorted(path for path in map(Path, glob.glob(str(matching), recursive=True)) if path.is_file())  # noqa: PTH207
    if not paths:
        folder = Path(re.split(r"[*?[]", str(matching))[0]).parent
        there = sorted(path.name for path in folder.iterdir())[:5] if folder.is_dir() else []
        raise source_error(
            settings.source,
            f"No file matches {matching}.",
            allowed="a path pattern of TFRecord files, where * matches any characters, or their folder",
            nearest=f"tfrecord:{folder / there[0]}" if there else None,
        )
    splits = {path: _split_of(path) for path in paths}
    without = [path.name for path, split in splits.items() if split is None]
    if without and len(without) < len(paths):
        raise source_error(
            settings.source,
            f"Some files name a split, others do not, such as {without[0]}.",
            allowed="train, validation or test in the names of all files or of none",
        )
    root = Path(os.path.commonpath([path.parent for path in paths]))
    files = [RecordFile(path, path.relative_to(root).as_posix(), splits[path]) for path in paths]
    layout = record_layout(read_features(settings, paths[0].parent), settings, task, group_column)
    match = SPLIT_TOKEN.search(paths[0].name)
    name = paths[0].name[: match.start()] if match and match.start() else root.name
    return TfrecordSource(valid_name(name), settings, files, layout, group_column)


def _split_of(path: Path) -> str | None:
    tokens = SPLIT_TOKEN.findall(path.name)
    return SPLIT_FOLDERS.get((tokens[-1] if tokens else path.parent.name).lower())


def require_feature(name: str | None, features: Iterable[str], use: str = "group") -> str | None:
    """Return the feature that data.group_by, or data.order_by for the `use` order, names.

    Raises:
        UserError: The feature does not exist.
    """
    features = list(features)
    if name is None or name in features:
        return name
    raise UserError(
        f"There is no feature {name} to {use} by.",
        setting=f"data.{use}_by",
        value=f"column:{name}",
        allowed="column:NAME, where NAME is one of " + ", ".join(features) if features else "a regular expression",
        nearest=(near := nearest(name, features)) and f"{COLUMN}{near}",
    )
