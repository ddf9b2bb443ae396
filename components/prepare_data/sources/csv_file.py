"""The sources `csv:FILE` and `parquet:FILE`: a streamed list of examples with their labels, images and splits.

Other columns become additional features, of the kind text unless data.features specifies another one. Without a column
for images, the file is a table, whose columns are inputs, of the kinds that their cells show. Rows are read in columns
and spooled to a file, because rows of the list cannot be accessed by number. The key of an image is its path, of a
table's row a hash of its values: a row is the same one in whatever order the rows are.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import itertools
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.inputs import choose_inputs
from slipway.components.prepare_data.encoding.messages import bytes_feature
from slipway.components.prepare_data.encoding.table_rows import RowFile, RowSpool, TableLayout, spooled_names
from slipway.components.prepare_data.examples import (
    LABEL_SEPARATOR,
    SPLIT_FOLDERS,
    Group,
    Unusable,
    readable,
    source_error,
)
from slipway.components.prepare_data.remote import open_file
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sorting import DIGEST_BYTES, ExampleKeys
from slipway.components.prepare_data.sources.csv_batches import InferredColumn, infer_kinds
from slipway.components.prepare_data.sources.images import is_image, valid_name
from slipway.components.prepare_data.sources.listed_files import ManifestReader, MissingFiles, file_status, path_key
from slipway.components.prepare_data.sources.record_layout import additional_kinds
from slipway.components.prepare_data.sources.source import Entry, Ignored, ListedRows, Reader, Source
from slipway.components.prepare_data.sources.table import LABEL, Header, TableLister, TableReader
from slipway.components.prepare_data.sources.values import SEPARATOR, NotANumber, is_list, label_cell
from slipway.core.errors import UserError, nearest
from slipway.core.formatted import format_of
from slipway.core.manifest import TaskName
from slipway.core.paths import local_path
from slipway.core.tables.batch import Batch, Section, TableFile
from slipway.core.tables.cells import PlainTable
from slipway.core.tables.formats import FORMATS, open_table
from slipway.core.values import is_missing, stored_name

IMAGE_COLUMNS = ("image", "path", "file")
LABEL_COLUMNS = ("label", "class")
SPLIT_COLUMN = "split"
COLUMNS = (
    "a header line with the columns label (or class, or data.label), optionally split, and image (or path, file), or "
    "numbers and categories"
)
# Cells of a column that are looked up as files.
MAX_FILES = 100
# Rows of a table are listed in parts of this size in memory, or in this number of parts if they are larger.
PART_BYTES, MAX_PARTS = 32 << 20, 256
# A column whose name is this similar to one of ours is more likely a typo than a feature.
SLIP = 0.8
# The first bytes of tables that are not CSV.
PARQUET = b"PAR1"
OTHER_FORMATS = {PARQUET: "a Parquet file", b"PK\3\4": "an Excel or zip file", b"\x1f\x8b": "a gzip file"}


class TablePart(NamedTuple):
    """A part of the rows: its number, and the section of the file; None for the whole file."""

    number: int
    section: Section | None


class ManifestSource(Source):
    """The source `csv:FILE` or `parquet:FILE`. Image paths are absolute, or relative to the folder of the file.

    Args:
        argument: The path or gs:// URI of the file.
        settings: The user's settings.
        group_column: The column of the group, if data.group_by is set.
        task: What is learned.

    Raises:
        UserError: The file cannot be read, or columns are missing or cannot be inputs.
    """

    def __init__(self, argument: str, settings: DataSettings, group_column: str | None, task: TaskName) -> None:
        self.task = task
        self.reference = settings.source
        self._ending = f".{self.reference.partition(':')[0]}"
        self.path = local_path(argument).expanduser().absolute()
        self.name = valid_name(self.path.stem)
        self._group_column = group_column
        self._label_is_named = settings.label is not None
        self._columns_of = {
            "image": (settings.image,) if settings.image else IMAGE_COLUMNS,
            "label": (settings.label,) if settings.label else LABEL_COLUMNS,
            "split": (SPLIT_COLUMN,),
        }
        if settings.id is not None:
            self._columns_of["id"] = (settings.id,)
        self._image_is_named = settings.image is not None
        self._described = additional_kinds(settings)
        self._settings = settings
        self._gaps = settings.has_gaps
        self._infer(whole=False)

    @property
    def item(self) -> str:
        return "image" if self.has_image else "row"

    def infer_again(self) -> None:
        self._infer(whole=True)

    def _infer(self, *, whole: bool) -> None:
        """Find the kinds of the columns; by default, numbers are inferred from the first rows: see `infer_kinds`."""
        settings = self._settings
        self._excluded: dict[str, str] = {}
        self._judged: set[str] = set()
        try:
            with self.path.open("rb") as file:
                table = self._open(file)
                self._row, self._top = table.item, table.header
                self._forget_image(table)
                header = self._header(table.names)
                self.has_image = "image" in header.columns
                self.has_ids = "id" in header.columns and not self.has_image
                self._refuse_pattern(settings)
                self._kinds = self._find_kinds(header, table, None if whole else self._judged)
        except OSError as error:
            raise self._mistake(f"{self.path} cannot be read: {error.strerror}.") from None
        self._images = [stored_name(name).encode() for name, kind in self._kinds.items() if kind.name == "image"]
        self.stamps_are_times = self.has_image or bool(self._images)
        self.features = {stored_name(name): kind.description for name, kind in self._kinds.items()}
        if self._excluded and len(self._excluded) == len(self._kinds) and not self.has_image:
            reasons = "; ".join(f"{name} {why}" for name, why in self._excluded.items())
            raise self._mistake(
                f"No column of {self.path} is an input: {reasons}.",
                fix=f"--set {shlex.quote(f'data.inputs={json.dumps([*self._excluded], ensure_ascii=False)}')}",
            )
        self.inputs = choose_inputs(
            settings,
            {name: str(kind) for name, kind in self._kinds.items()},
            image=header.names[header.columns["image"]] if self.has_image else None,
            but=(self._group_column or "", *self._excluded),
        )
        self.notes = [f"The column {name} is no input: it {why}." for name, why in self._excluded.items()]
        doubtful = {
            name: column for name, column in self.inferred.items() if column.doubt and name not in self._excluded
        }
        self.notes += [f"The column {name} is a {column.kind}: it {column.doubt}." for name, column in doubtful.items()]
        self._layout = self._row_layout()

    def _forget_image(self, table: TableFile) -> None:
        """Take a column that is called as one of images for another one, unless some of its first cells are files.

        So is one that data.inputs does not name, among others.
        """
        if self._image_is_named:
            return
        names = self._columns_of.get("image", ())
        columns = [index for index, name in enumerate(table.names) if name in names]
        if self._settings.inputs is not None and not {*names} & {*self._settings.inputs}:
            self._columns_of.pop("image", None)
            return
        batch = None
        with contextlib.suppress(UserError):  # which listing raises
            batch = next(iter(table.batches()), None) if columns else None
        if batch is not None:
            cells = itertools.chain.from_iterable(batch.columns[index][:MAX_FILES].to_pylist() for index in columns)
            if not any(self._is_file(cell) for cell in cells):
                self._columns_of.pop("image")

    def _is_file(self, cell: str) -> bool:
        key = path_key(cell)
        return is_image(key) or not isinstance(file_status(self.path.parent, key), str)

    def _refuse_pattern(self, settings: DataSettings) -> None:
        if settings.group_by is not None and self._group_column is None and not (self.has_image or self.has_ids):
            raise UserError(
                f"The rows of {self.path} have no names in which data.group_by could be found.",
                setting="data.group_by",
                value=settings.group_by,
                allowed="column:NAME; a regular expression only with data.id",
                fix="--set data.group_by=column:NAME",
            )

    def _open(self, file: IO[bytes]) -> TableFile:
        """Return the table in the file."""
        if self._ending == ".csv":
            start = file.read(4)
            for first, other in OTHER_FORMATS.items():
                if start.startswith(first):
                    fix = "save the table as a CSV file"
                    if first == PARQUET:
                        fix = f"--set data.source=parquet:{self.reference.partition(':')[2]}"
                    raise self._mistake(f"{self.path} is {other}, not CSV.", fix=fix)
            file.seek(0)
        table = open_table(file, self.path, self._ending, self._mistake)
        formats, markers = self._settings.number_format, self._settings.missing_values
        for name in formats:
            if name not in table.names:
                raise UserError.unknown("column", name, table.names, setting="data.number_format")
        return PlainTable(table, formats, markers) if formats or markers else table

    def _find_kinds(self, header: Header, table: TableFile, judged: set[str] | None) -> dict[str, Kind]:
        """Return the kinds of the additional columns: described, else inferred for inputs, else text."""
        every = () if self.has_image else header.additional.keys() - {self._group_column}
        names = set(self._settings.inputs or every)
        columns = {
            name: index for name, index in header.additional.items() if name in names and name not in self._described
        }
        self.inferred: dict[str, InferredColumn] = (
            infer_kinds(table, columns, self._mistake, judged=judged) if columns else {}
        )
        self._spellings = {stored_name(name): column.spellings for name, column in self.inferred.items()}
        if self._settings.inputs is None:
            self._excluded = {name: column.excluded for name, column in self.inferred.items() if column.excluded}
        kinds = {name: column.kind for name, column in self.inferred.items()}
        return {name: self._described.get(name) or kinds.get(name) or Kind("text") for name in header.additional}

    def _row_layout(self) -> TableLayout:
        kinds = {stored_name(name): kind for name, kind in self._kinds.items()}
        if self.task != "classification":
            kinds[LABEL] = Kind("number") if self.task == "regression" else Kind("text", is_list=True)
        return TableLayout(kinds)

    @property
    def _has_keys(self) -> bool:
        """Whether rows have keys that must be unique, or other images, and are therefore one part."""
        return self.has_image or self.has_ids or bool(self._images)

    def parts(self) -> list[TablePart]:
        return [TablePart(number, section) for number, section in enumerate(self._sections)]

    @functools.cached_property
    def _sections(self) -> list[Section | None]:
        if self._has_keys:
            return [None]
        with self.path.open("rb") as file:
            table = self._open(file)
            first = next(iter(table.batches()), None)
            if first is None:
                return [None]
            size = max(PART_BYTES, self.path.stat().st_size // MAX_PARTS)
            row_size = sum(column.nbytes for column in first.columns) // len(first) + 1
            return [*table.divided(size // row_size + 1)]

    @property
    def files(self) -> list[Path]:
        return [self.path]

    @property
    def spooled(self) -> Sequence[str]:
        return spooled_names(len(self._sections)) if self._layout.kinds else ()

    def rows(self, part: TablePart, ignored: Ignored, scratch: Path) -> Iterator[ListedRows] | None:
        if self._has_keys:
            return None
        return (listed_rows for _, _, listed_rows in self._listed(part, ignored, scratch))

    def _listed(self, part: TablePart, ignored: Ignored, scratch: Path) -> Iterator[tuple[Header, Batch, ListedRows]]:
        with open_file(self.path, FORMATS[self._ending].read_bytes) as file:
            table = self._open(file)
            header = self._header(table.names)
            usable = functools.partial(self._usable, header, ignored)
            lister = TableLister(self._layout, self.task, header, self.inputs.keys(), usable, self._encode,
                                 self._judged, self._spellings, gaps=self._gaps)  # fmt: skip
            with RowSpool(scratch, self._layout, part.number) if self._layout.kinds else nullcontext() as spool:
                batches = self._some(table.batches(part.section))
                for batch, listed_rows in lister.rows(batches, ignored.precision, spool):
                    yield header, batch, listed_rows

    def entries(self, part: TablePart, ignored: Ignored, scratch: Path) -> Iterator[Entry]:
        """Yield the entries of rows with images or ids; others are listed by `rows`."""
        missing = MissingFiles(self.path, self._row)
        with ExampleKeys(scratch / "keys") as keys:
            for header, batch, listed_rows in self._listed(part, ignored, scratch):
                entries = self._entries(header, batch, listed_rows, missing, keys)
                if self.has_image or self.has_ids:
                    yield from entries
                else:
                    keys.add_digests((digest, about) for digest, *about in entries)
            for key, entry in keys.by_content():
                yield key, *entry
            if twice := keys.twice():
                key, first_line, second_line = twice
                raise self._mistake(
                    f"{readable(key)} is listed twice in {self.path}: on {self._row}s {first_line} and {second_line}."
                )
        if missing.count:
            raise self._mistake(str(missing), fix=f"correct the paths, or remove the {self._row}s")

    def _entries(
        self, header: Header, batch: Batch, listed_rows: ListedRows, missing: MissingFiles, keys: ExampleKeys
    ) -> Iterator[Entry]:
        digests = listed_rows.digests.astype(np.uint64)
        if self.has_image or self.has_ids:
            row_keys = [*map(self._key, batch.columns[header.columns["image" if self.has_image else "id"]].to_pylist())]
            keys.add_all(zip(row_keys, batch.lines, strict=True))
        else:
            row_keys = [digest.to_bytes(DIGEST_BYTES) for digest in digests.tolist()]
        for name in (name for name, kind in self._kinds.items() if kind.name == "image"):
            column = batch.columns[header.additional[name]].dictionary_encode()
            stamps = np.array([self._stamp(self._kinds[name], text) for text in column.dictionary.to_pylist()])
            digests = digests * np.uint64(3) ^ stamps.astype(np.uint64)[column.indices.to_numpy()]
        labels = LABEL_SEPARATOR.join(listed_rows.labels)
        contents = listed_rows.digests if listed_rows.contents is None else listed_rows.contents
        columns = (listed_rows.group, listed_rows.bundle, listed_rows.sizes, digests, listed_rows.offsets, contents)
        about = zip(*(column.tolist() for column in columns), strict=True)
        for key, line, (group, bundle, size, stamp, offset, content) in zip(row_keys, batch.lines, about, strict=True):
            if self.has_image:
                if (status := missing.status(self.path.parent, key, line)) is None:
                    continue
                size, stamp = status.st_size, (stamp if self._layout.kinds else 0) ^ status.st_mtime_ns
            split, label = listed_rows.groups[group]
            is_compared = not (self.has_image or self._group_column)
            value = content.to_bytes(DIGEST_BYTES) if is_compared else listed_rows.bundles[bundle]
            yield key, label or labels, split, size, stamp, offset, value

    def _some(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches; check that there is one."""
        batch = None
        for batch in batches:
            yield batch
        if batch is None:
            raise self._mistake(f"{self.path} lists no {self.item}s.")

    def _usable(self, header: Header, ignored: Ignored, batch: Batch) -> Batch:
        """Return a batch without the rows that cannot be used, which are skipped."""
        kept = []
        for index, (line, row) in enumerate(batch.rows()):
            cells = {use: row[at] for use, at in header.columns.items()}
            key = self._checked_key(cells, line)
            try:
                self._check(header, row, cells["label"], line)
            except Unusable as reason:
                ignored.skip(key, f"{reason} on {self._row} {line}" if self.has_image else str(reason))
            else:
                kept.append(index)
        return batch.take(kept)

    def groups(self, listed: Iterable[Group]) -> dict[Group, Group]:
        listed = list(listed)
        splits = {split for split, _ in listed}
        if listed and splits != {None} and "train" not in splits:
            raise self._mistake(f"{self.path} lists no {self.item} in the split train.")
        return {group: group for group in listed}

    def reader(self, scratch: Path) -> Reader:
        if not (self.has_image or self._images):
            return TableReader(RowFile(scratch, self._layout, len(self._sections)), self._layout)
        spool = RowFile(scratch, self._layout, 1) if self._layout.kinds else None
        return ManifestReader(self.has_image, self.path.parent, spool, self._images)

    def _header(self, names: list[str]) -> Header:
        requested = dict(self._columns_of)
        if self._group_column is not None:
            requested["group"] = (self._group_column,)
        columns: dict[str, int] = {}
        for use, allowed in requested.items():
            indexes = [index for index, name in enumerate(names) if name in allowed]
            if len(indexes) > 1:
                listed = ", ".join(names[index] for index in indexes)
                fix = f"--set data.{use}={names[indexes[0]]}" if len({*allowed}) > 1 else "rename one of them"
                raise self._mistake(f"{self._top} has several columns for the {use}: {listed}.", fix=fix)
            if indexes:
                columns[use] = indexes[0]
            elif use == "group":
                raise UserError(
                    f"{self._top} has no column {self._group_column}.",
                    setting="data.group_by",
                    value=f"column:{self._group_column}",
                    allowed="column:NAME, where NAME is one of " + ", ".join(names),
                    nearest=nearest(self._group_column or "", names),
                )
            elif use in ("label", "id") or (use == "image" and self._image_is_named):
                raise self._no_column(use, allowed, names)
        additional = {
            name: index
            for index, name in enumerate(names)
            if all(columns.get(use) != index for use in self._columns_of)
        }
        self._check_additional(names, columns, additional)
        return Header(names, columns, additional)

    def _no_column(self, use: str, allowed: tuple[str, ...], names: list[str]) -> UserError:
        near = nearest(allowed[0], names)
        named = {"label": self._label_is_named, "image": self._image_is_named}.get(use, True)
        return UserError(
            f"{self._top} has no column {' or '.join(allowed)}.",
            setting=f"data.{use}" if named else "data.source",
            value=allowed[0] if named else self.reference,
            allowed=", ".join(names) if names else COLUMNS,
            nearest=near,
            fix=f"--set data.{use}={near or 'COLUMN'}" if names else None,
        )

    def _check_additional(self, names: list[str], columns: Mapping[str, int], additional: Mapping[str, int]) -> None:
        """Reject additional columns whose name is missing, duplicated or probably a typo."""
        known = {name for use, allowed in self._columns_of.items() if use not in columns for name in allowed}
        counts = Counter(names)
        for name in additional:
            if counts[name] > 1:
                raise self._mistake(f"{self._top} has two columns {name}.")
            near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=SLIP)
            if near and name not in self._described and name != self._group_column:
                raise self._mistake(
                    f"{self._top} has an unknown column {name!r}.",
                    near[0],
                    fix=f"rename the column, or declare it as a feature: --set data.features.{name}=text",
                )
        for name, kind in self._described.items():
            if name not in additional:
                raise UserError(
                    f"{self._top} has no column {name}.",
                    setting=f"data.features.{name}",
                    value=str(kind),
                    allowed=", ".join(additional) or "no features: there are no additional columns",
                    nearest=nearest(name, additional),
                    fix=f"correct the name in data.features: {name} is not a column",
                )

    def _check(self, header: Header, row: Sequence[str], cell: str, line: int) -> None:
        """Check the label and the features of a row.

        Raises:
            Unusable: The target or a number among the inputs is missing.
            UserError: A cell is not of its column's kind.
        """
        name = header.names[header.columns["label"]]
        if not cell and self.task == "classification":
            raise Unusable(f"its label in the column {name} is missing")
        try:
            label_cell(self.task, cell, name)
        except NotANumber:
            fix = "--set task=classification, or data.label=COLUMN of a column of numbers"
            if written := format_of([cell]):
                fix = f"--set {shlex.quote(f'data.number_format={json.dumps({name: written}, ensure_ascii=False)}')}"
            raise self._mistake(
                f"{self._place(line)} has {cell!r} in the column {name}, which is not a plain number. The task "
                "regression requires numbers.",
                fix=fix,
            ) from None
        for name, index in header.additional.items():
            kind, text = self._kinds[name], row[index]
            if kind.name in ("number", "integer") and stored_name(name) in self.inputs and is_missing(text):
                if not self._gaps or kind != Kind("number"):
                    raise Unusable(f"its number in the column {name} is {text or 'empty'}")
                continue
            try:
                self._encode(kind, text)
            except Unusable as reason:
                raise self._mistake(
                    f"{self._place(line)} has an invalid {kind} in the column {name}: {reason}.",
                    fix=f"correct the {self._row}, or set data.features.{name} to another kind",
                ) from None

    def _encode(self, kind: Kind, text: str) -> bytes:
        """Return the Feature of a cell; of images, their paths.

        Raises:
            Unusable: It is not of this kind, or one of the images does not exist.
        """
        value = kind.from_text(text)
        if kind.name != "image":
            return kind.encode(value)
        paths = [*map(path_key, value)]
        for path in paths:
            if isinstance(status := file_status(self.path.parent, path), str):
                raise Unusable(f"{readable(path)} cannot be read: {status}")
        return bytes_feature(paths)

    def _stamp(self, kind: Kind, text: str) -> int:
        """Return a number that changes with the sizes and modification times of the images that a cell names."""
        statuses = [file_status(self.path.parent, path_key(path)) for path in kind.from_text(text)]
        return hash(tuple((status.st_size, status.st_mtime_ns) for status in statuses if not isinstance(status, str)))

    def _checked_key(self, cells: dict[str, str], line: int) -> bytes:
        """Return the key of a row whose label, split and other uses are valid."""
        for use, cell in cells.items():
            if not cell and use != "label":
                raise self._mistake(f"{self._place(line)} has no {use}.")
        label = cells["label"]
        if not label.isprintable():
            raise self._mistake(f"{self._place(line)} has an unprintable label: {label!r}.")
        if self.task == "classification" and (SEPARATOR in label or is_list(label)):
            raise self._mistake(
                f"{self._place(line)} has several labels: {label!r}.",
                fix="--set task=multilabel",
            )
        if "split" in cells and cells["split"].lower() not in SPLIT_FOLDERS:
            raise self._mistake(
                f"{self._place(line)} has an unknown split: {cells['split']!r}.",
                nearest(cells["split"], SPLIT_FOLDERS),
                allowed="train, validation and test",
                fix=f"write train, validation or test in place of {cells['split']!r}, or rename the column split",
            )
        key_cell = cells.get("image") or cells.get("id")
        return self._key(key_cell) if key_cell else f"{self._row} {line}".encode()

    def _key(self, cell: str) -> bytes:
        """Return the key of an image, or of a row with this id."""
        return path_key(cell) if self.has_image else cell.encode()

    def _place(self, line: int) -> str:
        return f"{self._row.capitalize()} {line} of {self.path}"

    def _mistake(
        self, message: str, near: str | None = None, *, allowed: str = COLUMNS, fix: str | None = None
    ) -> UserError:
        return source_error(self.reference, message, allowed=allowed, nearest=near, fix=fix)
