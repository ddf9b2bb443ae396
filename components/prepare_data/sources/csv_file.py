"""The sources `csv:FILE` and `parquet:FILE`: a streamed list of examples with their labels, images and splits.

Other columns become additional features, of the kind text unless data.features specifies another one. Without a column
for images, the file is a table, whose columns are inputs, of the kinds that their cells show. Values are spooled to a
file while the list is read, because rows cannot be accessed by number. The key of an image is its path, of a table's
row a hash of its values: a row is the same one in whatever order the rows are.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import itertools
import os
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.inputs import choose_inputs
from slipway.components.prepare_data.encoding.messages import bytes_feature, values
from slipway.components.prepare_data.encoding.table_rows import RowSpool, TableLayout, features_beside
from slipway.components.prepare_data.examples import SPLIT_FOLDERS, Group, Unusable, readable, source_error, stored_name
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sorting import ExampleKeys
from slipway.components.prepare_data.sources.csv_batches import infer_kinds
from slipway.components.prepare_data.sources.images import valid_name
from slipway.components.prepare_data.sources.listed_files import ManifestReader, MissingFiles, file_status
from slipway.components.prepare_data.sources.precision import Precision
from slipway.components.prepare_data.sources.record_layout import additional_kinds
from slipway.components.prepare_data.sources.source import Entry, Ignored, ListedRows, Reader, Source
from slipway.components.prepare_data.sources.spool import Spool
from slipway.components.prepare_data.sources.table import LABEL, Header, TableLister, TableReader
from slipway.components.prepare_data.sources.values import SEPARATOR, NotANumber, label_cell
from slipway.core.errors import UserError, nearest
from slipway.core.manifest import TaskName
from slipway.core.paths import local_path
from slipway.core.tables.batch import Batch, TableFile
from slipway.core.tables.formats import open_table
from slipway.core.values import is_missing

IMAGE_COLUMNS = ("image", "path", "file")
LABEL_COLUMNS = ("label", "class")
SPLIT_COLUMN = "split"
COLUMNS = (
    "a header line with the columns label (or class, or data.label), optionally split, and image (or path, file), or "
    "numbers and categories"
)
SPOOL = "columns"
# A column whose name is this similar to one of ours is more likely a typo than a feature.
SLIP = 0.8
# The first bytes of tables that are not CSV.
PARQUET = b"PAR1"
OTHER_FORMATS = {PARQUET: "a Parquet file", b"PK\3\4": "an Excel or zip file", b"\x1f\x8b": "a gzip file"}


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
        self._excluded: dict[str, str] = {}
        try:
            with self.path.open("rb") as file:
                table = self._open(file)
                self._row, self._top = table.item, table.header
                header = self._header(table.names)
                self.has_image = "image" in header.columns
                self.has_ids = "id" in header.columns and not self.has_image
                self._kinds = self._find_kinds(header, table.batches(), settings)
        except OSError as error:
            raise self._mistake(f"{self.path} cannot be read: {error.strerror}.") from None
        self._gaps = settings.has_gaps
        self._images = [stored_name(name).encode() for name, kind in self._kinds.items() if kind.name == "image"]
        self.stamps_are_times = self.has_image or bool(self._images)
        self.features = {stored_name(name): kind.description for name, kind in self._kinds.items()}
        self.inputs = choose_inputs(
            settings,
            {name: str(kind) for name, kind in self._kinds.items()},
            image=header.names[header.columns["image"]] if self.has_image else None,
            but=(group_column or "", *self._excluded),
        )
        self.notes = [f"The column {name} is no input: it {why}." for name, why in self._excluded.items()]
        self._layout = self._table_layout()
        if self._layout is not None:
            self.spooled = (SPOOL, features_beside(Path(SPOOL)).name)
        elif self._is_spooled:
            self.spooled = (SPOOL,)

    def _open(self, file: IO[bytes]) -> TableFile:
        """Return the table in the file."""
        ending = f".{self.reference.partition(':')[0]}"
        if ending == ".csv":
            start = file.read(4)
            for first, other in OTHER_FORMATS.items():
                if start.startswith(first):
                    fix = "save the table as a CSV file"
                    if first == PARQUET:
                        fix = f"--set data.source=parquet:{self.reference.partition(':')[2]}"
                    raise self._mistake(f"{self.path} is {other}, not CSV.", fix=fix)
            file.seek(0)
        return open_table(file, self.path, ending, self._mistake)

    def _find_kinds(self, header: Header, batches: Iterable[Batch], settings: DataSettings) -> dict[str, Kind]:
        """Return the kinds of the additional columns: described, else inferred for inputs, else text."""
        every = () if self.has_image else header.additional.keys() - {self._group_column}
        wanted = set(settings.inputs or every)
        inferred = {
            name: index for name, index in header.additional.items() if name in wanted and name not in self._described
        }
        self.inferred = infer_kinds(batches, inferred, self._mistake) if inferred else {}
        if settings.inputs is None:
            self._excluded = {name: column.excluded for name, column in self.inferred.items() if column.excluded}
        found = {name: column.kind for name, column in self.inferred.items()}
        return {name: self._described.get(name) or found.get(name) or Kind("text") for name in header.additional}

    def _table_layout(self) -> TableLayout | None:
        """Return what a row of a table consists of; None for images, whose rows are read one at a time."""
        kinds = {stored_name(name): kind for name, kind in self._kinds.items()}
        if self.has_image or self._images:
            return None
        if self.task != "classification":
            kinds[LABEL] = Kind("number") if self.task == "regression" else Kind("text", is_list=True)
        return TableLayout(kinds)

    def parts(self) -> list[Path]:
        return [self.path]

    def rows(self, part: Path, ignored: Ignored, scratch: Path) -> Iterator[ListedRows] | None:
        return None if self._layout is None or self.has_ids else self._rows(self._layout, part, ignored, scratch)

    def _rows(self, layout: TableLayout, part: Path, ignored: Ignored, scratch: Path) -> Iterator[ListedRows]:
        with part.open("rb") as file, RowSpool(scratch / SPOOL, layout) as spool:
            lister, batches = self._lister(layout, file, ignored)
            yield from lister.rows(batches, ignored.precision, spool)

    def _lister(self, layout: TableLayout, file: IO[bytes], ignored: Ignored) -> tuple[TableLister, Iterator[Batch]]:
        table = self._open(file)
        header = self._header(table.names)
        usable = functools.partial(self._usable, header, ignored)
        lister = TableLister(layout, self.task, header, self.inputs.keys(), usable, gaps=self._gaps)
        return lister, self._some(table.batches())

    def entries(self, part: Path, ignored: Ignored, scratch: Path) -> Iterator[Entry]:
        with part.open("rb") as file, ExampleKeys(scratch / "keys") as keys:
            if self._layout is not None:
                with RowSpool(scratch / SPOOL, self._layout) as spool:
                    lister, batches = self._lister(self._layout, file, ignored)
                    yield from lister.entries(batches, ignored.precision, spool, keys)
                if self.has_ids:
                    self._refuse_twice(keys)
                return
            table = self._open(file)
            header = self._header(table.names)
            with Spool(scratch / SPOOL) if self._is_spooled else nullcontext() as kept:
                yield from self._entries(header, self._some(table.batches()), ignored, kept, keys)

    def _some(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches; check that there is one."""
        batch = None
        for batch in batches:
            yield batch
        if batch is None:
            raise self._mistake(f"{self.path} lists no {self.item}s.")

    def _entries(
        self, header: Header, batches: Iterable[Batch], ignored: Ignored, spool: Spool | None, keys: ExampleKeys
    ) -> Iterator[Entry]:
        """Yield the entries of all rows, one at a time."""
        missing, content = MissingFiles(self.path, self._row), header.content
        for line, row in itertools.chain.from_iterable(batch.rows() for batch in batches):
            cells = {use: row[index] for use, index in header.columns.items()}
            key, split, group = self._values(cells, line)
            status = None
            if self.has_image or self.has_ids:
                keys.add(key, line)
            if self.has_image:
                status = missing.status(self.path.parent, key, line)
                if status is None:
                    continue
            try:
                label, additional = self._label_and_features(header, row, cells["label"], line, ignored.precision)
            except Unusable as reason:
                ignored.skip(key, f"{reason} on {self._row} {line}" if self.has_image else str(reason))
                continue
            stamp, offset = status.st_mtime_ns if status else 0, 0
            if spool is not None:
                offset = spool.add(b"", additional)
                about = repr((stamp, additional, self._image_files(additional))).encode()
                stamp = int.from_bytes(hashlib.blake2b(about, digest_size=8).digest())
            size = status.st_size if status else sum(len(feature) for _, feature in additional)
            if self.has_image or self.has_ids:
                yield key, label, split, size, stamp, offset, group
            else:
                values_of = repr([row[index] for index in content]).encode()
                keys.add_content(values_of, (label, split, size, stamp, offset, group))
        for key, entry in keys.by_content():
            yield key, *entry
        self._refuse_twice(keys)
        if missing.count:
            raise self._mistake(str(missing), fix=f"correct the paths, or remove the {self._row}s")

    def _refuse_twice(self, keys: ExampleKeys) -> None:
        if twice := keys.twice():
            key, one, other = twice
            raise self._mistake(f"{readable(key)} is listed twice in {self.path}: on {self._row}s {one} and {other}.")

    def _usable(self, header: Header, ignored: Ignored, batch: Batch) -> Batch:
        """Return a batch without the rows that cannot be used, which are skipped."""
        kept = []
        for index, (line, row) in enumerate(batch.rows()):
            cells = {use: row[at] for use, at in header.columns.items()}
            key, *_ = self._values(cells, line)
            try:
                self._label_and_features(header, row, cells["label"], line, Precision())
            except Unusable as reason:
                ignored.skip(key, str(reason))
            else:
                kept.append(index)
        return batch.take(kept)

    @property
    def _is_spooled(self) -> bool:
        return bool(self._kinds) or self.task != "classification"

    def groups(self, found: Iterable[Group]) -> dict[Group, Group]:
        found = list(found)
        splits = {split for split, _ in found}
        if found and splits != {None} and "train" not in splits:
            raise self._mistake(f"{self.path} lists no {self.item} in the split train.")
        return {group: group for group in found}

    def reader(self, scratch: Path) -> Reader:
        if self._layout is not None:
            return TableReader(scratch / SPOOL, self._layout)
        spool = scratch / SPOOL if self._is_spooled else None
        return ManifestReader(self.has_image, self.path.parent, spool, self._images)

    def _header(self, names: list[str]) -> Header:
        requested = dict(self._columns_of)
        if self._group_column is not None:
            requested["group"] = (self._group_column,)
        columns: dict[str, int] = {}
        for use, allowed in requested.items():
            found = [index for index, name in enumerate(names) if name in allowed]
            if len(found) > 1:
                listed = ", ".join(names[index] for index in found)
                raise self._mistake(f"{self._top} has several columns for the {use}: {listed}.")
            if found:
                columns[use] = found[0]
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
        if len(names) == 1 and (found := next((mark for mark in ";\t" if mark in names[0]), None)):
            return self._mistake(
                f"{self._top} has no column {' or '.join(allowed)}: its columns are separated by {found!r}.",
                fix="separate the columns by commas",
            )
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
            if counts[name] > 1 or not name:
                raise self._mistake(
                    f"{self._top} has {'a column without a name' if not name else f'two columns {name}'}."
                )
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

    def _label_and_features(
        self, header: Header, row: Sequence[str], cell: str, line: int, precision: Precision
    ) -> tuple[str, list[tuple[bytes, bytes]]]:
        """Return the label of a row's entry, and its features, with a label that is not one class.

        Raises:
            Unusable: The target or a number among the inputs is missing.
        """
        name = header.names[header.columns["label"]]
        try:
            label, target = label_cell(self.task, cell, name)
        except NotANumber:
            raise self._mistake(
                f"{self._place(line)} has text in the column {name}: {cell!r}. The task regression requires numbers.",
                fix="--set task=classification, or data.label=COLUMN of a column of numbers",
            ) from None
        features = self._features(header, row, line, precision)
        if self.task == "regression":
            precision.add(name, float(cell))
        return label, features if target is None else [*features, (b"label", target)]

    def _features(
        self, header: Header, row: Sequence[str], line: int, precision: Precision
    ) -> list[tuple[bytes, bytes]]:
        found = []
        for name, index in header.additional.items():
            kind, text = self._kinds[name], row[index]
            is_input = stored_name(name) in self.inputs
            if kind.name in ("number", "integer") and is_input and is_missing(text):
                if not self._gaps or kind != Kind("number"):
                    raise Unusable(f"its number in the column {name} is {text or 'empty'}")
                text = "nan"
            try:
                if kind.name == "image":
                    paths = [os.fsencode(posixpath.normpath(local_path(path))) for path in kind.from_text(text)]
                    for path in paths:
                        if isinstance(status := file_status(self.path.parent, path), str):
                            raise Unusable(f"{readable(path)} cannot be read: {status}")
                    feature = bytes_feature(paths)
                else:
                    value = kind.from_text(text)
                    feature = kind.encode(value)
                    if kind.name == "number" and is_input:
                        precision.add(name, value)
            except Unusable as reason:
                raise self._mistake(
                    f"{self._place(line)} has an invalid {kind} in the column {name}: {reason}.",
                    fix=f"correct the {self._row}, or set data.features.{name} to another kind",
                ) from None
            found.append((stored_name(name).encode(), feature))
        return found

    def _image_files(self, features: list[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
        """Return the sizes and modification times of the files of a row's additional images."""
        paths = [path for name, feature in features if name in self._images for path in values(feature)]
        found = [file_status(self.path.parent, path) for path in paths if isinstance(path, bytes)]
        return [(status.st_size, status.st_mtime_ns) for status in found if not isinstance(status, str)]

    def _values(self, cells: dict[str, str], line: int) -> tuple[bytes, str | None, bytes]:
        for use, cell in cells.items():
            if not cell and (use != "label" or self.task == "classification"):
                raise self._mistake(f"{self._place(line)} has no {use}.")
        label = cells["label"]
        if not label.isprintable():
            raise self._mistake(f"{self._place(line)} has an unprintable label: {label!r}.")
        if self.task == "classification" and SEPARATOR in label:
            raise self._mistake(
                f"{self._place(line)} has several labels: {label!r}.",
                fix="--set task=multilabel",
            )
        split = None
        if "split" in cells:
            split = SPLIT_FOLDERS.get(cells["split"].lower())
            if split is None:
                raise self._mistake(
                    f"{self._place(line)} has an unknown split: {cells['split']!r}.",
                    nearest(cells["split"], SPLIT_FOLDERS),
                    allowed="train, validation and test",
                )
        if self.has_image:
            key = os.fsencode(posixpath.normpath(local_path(cells["image"])))
        else:
            key = (cells["id"] if self.has_ids else f"{self._row} {line}").encode()
        return key, split, cells.get("group", "").encode()

    def _place(self, line: int) -> str:
        return f"{self._row.capitalize()} {line} of {self.path}"

    def _mistake(
        self, message: str, near: str | None = None, *, allowed: str = COLUMNS, fix: str | None = None
    ) -> UserError:
        return source_error(self.reference, message, allowed=allowed, nearest=near, fix=fix)
