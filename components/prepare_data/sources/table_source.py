"""The sources `csv:FILE` and `parquet:FILE`: a streamed list of examples with their labels, images and splits.

Other columns become additional features, of the kind text unless data.features specifies another one. Without a column
for images, the file is a table, whose columns are inputs, of the kinds that their cells show. Rows are read in columns
and spooled to a file, because rows of the list cannot be accessed by number. The key of an image is its path, of a
table's row a hash of its values: a row is the same one in whatever order the rows are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.table_rows import RowFile, spooled_names
from slipway.components.prepare_data.examples import LABEL_SEPARATOR, Group, readable
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sorting import DIGEST_BYTES, ExampleKeys
from slipway.components.prepare_data.sources.images import valid_name
from slipway.components.prepare_data.sources.listed_files import ManifestReader, MissingFiles, file_status, path_key
from slipway.components.prepare_data.sources.source import Entry, Ignored, ListedRows, Reader, Source
from slipway.components.prepare_data.sources.tables.header import Header
from slipway.components.prepare_data.sources.tables.inference import Cells, InferredColumn
from slipway.components.prepare_data.sources.tables.input_table import InputTable, TablePart
from slipway.components.prepare_data.sources.tables.listing import TableReader
from slipway.core.manifest import TaskName
from slipway.core.tables.batch import Batch, Section
from slipway.core.values import stored_name


def open_table_source(
    argument: str,
    settings: DataSettings,
    group_column: str | None,
    task: TaskName,
    cells: Mapping[str, Cells] | None = None,
    ending: str | None = None,
) -> TableSource | KeyedTableSource:
    """Open the source `csv:FILE` or `parquet:FILE`. Image paths are absolute, or relative to the folder of the file.

    The kinds of its columns are inferred from `cells`, if these are counted already: see `count_cells`. The format is
    that of files with this `ending`, of another source's table.

    Raises:
        UserError: The file cannot be read, or columns are missing or cannot be inputs.
    """
    table = InputTable(argument, settings, group_column, task, cells, ending)
    is_plain = table.header.key is None and not table.schema.images
    return (TableSource if is_plain else KeyedTableSource)(table, settings.source)


class TableFileSource(Source):
    """A table: the base class of both sources.

    Args:
        table: The table.
        reference: The source as the user wrote it.
    """

    def __init__(self, table: InputTable, reference: str) -> None:
        self.reference = reference
        self.task = table.task
        self.name = valid_name(table.path.stem)
        self.has_image = table.has_image
        self.has_ids = not table.has_image and "id" in table.header.columns
        self.stamps_are_times = table.has_image or bool(table.schema.images)
        self._table = table
        self._take_schema()

    def _take_schema(self) -> None:
        schema = self._table.schema
        self.features = {stored_name(name): kind.description for name, kind in schema.kinds.items()}
        self.inputs, self.notes = schema.inputs, schema.notes

    def infer_again(self) -> None:
        self._table.infer(whole=True)
        self._take_schema()

    def inferred(self, listed: Ignored) -> dict[str, InferredColumn]:
        schema = self._table.schema
        return {
            name: replace(column, missing=listed.missing[name]) if name in schema.judged else column
            for name, column in schema.inferred.items()
        }

    @property
    def item(self) -> str:
        return "image" if self.has_image else "row"

    @property
    def files(self) -> list[Path]:
        return [self._table.path]

    @property
    def spooled(self) -> Sequence[str]:
        return spooled_names(len(self.parts())) if self._table.schema.layout.kinds else ()

    def groups(self, listed: Iterable[Group]) -> dict[Group, Group]:
        listed = list(listed)
        splits = {split for split, _ in listed}
        if listed and splits != {None} and "train" not in splits:
            raise self._table.mistake(f"{self._table.path} lists no {self.item} in the split train.")
        return {group: group for group in listed}


class TableSource(TableFileSource):
    """A table, whose rows have no keys: they are listed many at a time, in parts."""

    is_table = True

    @functools.cached_property
    def _sections(self) -> list[Section | None]:
        return self._table.sections()

    def parts(self) -> list[TablePart]:
        return [TablePart(number, section) for number, section in enumerate(self._sections)]

    def rows(self, part: TablePart, ignored: Ignored, scratch: Path) -> Iterator[ListedRows]:
        return (rows for _, _, rows in self._table.listed(part, ignored, scratch))

    def entries(self, part: TablePart, ignored: Ignored, scratch: Path) -> Iterator[Entry]:
        """Rows are listed by `rows`."""
        raise NotImplementedError

    def reader(self, scratch: Path) -> Reader:
        layout = self._table.schema.layout
        return TableReader(RowFile(scratch, layout, len(self._sections)), layout)


class KeyedTableSource(TableFileSource):
    """A list of images, or a table with ids or with other columns of images, whose keys must be unique: one part."""

    def parts(self) -> list[TablePart]:
        return [TablePart(0, None)]

    def entries(self, part: TablePart, ignored: Ignored, scratch: Path) -> Iterator[Entry]:
        path, item = self._table.path, self._table.item
        missing = MissingFiles(path, item)
        with ExampleKeys(scratch / "keys") as keys:
            for header, batch, rows in self._table.listed(part, ignored, scratch):
                entries = self._entries(header, batch, rows, missing, keys)
                if header.key is not None:
                    yield from entries
                else:
                    keys.add_digests((digest, about) for digest, *about in entries)
            for key, entry in keys.by_content():
                yield key, *entry
            if twice := keys.twice():
                key, first_line, second_line = twice
                raise self._table.mistake(
                    f"{readable(key)} is listed twice in {path}: on {item}s {first_line} and {second_line}."
                )
        if missing.count:
            raise self._table.mistake(str(missing), fix=f"correct the paths, or remove the {item}s")

    def _entries(
        self, header: Header, batch: Batch, rows: ListedRows, missing: MissingFiles, keys: ExampleKeys
    ) -> Iterator[Entry]:
        digests = rows.digests.astype(np.uint64)
        if header.key is not None:
            row_keys = [*map(header.key_of, batch.columns[header.key].to_pylist())]
            keys.add_all(zip(row_keys, batch.lines, strict=True))
        else:
            row_keys = [digest.to_bytes(DIGEST_BYTES) for digest in digests.tolist()]
        schema, folder = self._table.schema, self._table.path.parent
        for name in schema.images:
            column = batch.columns[header.additional[name]].dictionary_encode()
            stamps = np.array([_stamp(folder, schema.kinds[name], text) for text in column.dictionary.to_pylist()])
            digests = digests * np.uint64(3) ^ stamps.astype(np.uint64)[column.indices.to_numpy()]
        labels = LABEL_SEPARATOR.join(rows.labels)
        contents = rows.digests if rows.contents is None else rows.contents
        columns = (rows.group, rows.bundle, rows.sizes, digests, rows.offsets, contents)
        about = zip(*(column.tolist() for column in columns), strict=True)
        orders: list[tuple[bytes, ...]] = [()] * len(row_keys)
        if rows.order:
            orders = [(rows.order[0][index],) for index in rows.order[1].tolist()]
        all_rows = zip(row_keys, batch.lines, about, orders, strict=True)
        for key, line, (group, bundle, size, stamp, offset, content), order in all_rows:
            if self.has_image:
                if (status := missing.status(folder, key, line)) is None:
                    continue
                size, stamp = status.st_size, (stamp if schema.layout.kinds else 0) ^ status.st_mtime_ns
            split, label = rows.groups[group]
            is_compared = not (self.has_image or self._table.has_groups)
            value = content.to_bytes(DIGEST_BYTES) if is_compared else rows.bundles[bundle]
            yield key, label or labels, split, size, stamp, offset, value, *order

    def reader(self, scratch: Path) -> Reader:
        schema = self._table.schema
        spool = RowFile(scratch, schema.layout, 1) if schema.layout.kinds else None
        images = [stored_name(name).encode() for name in schema.images]
        return ManifestReader(self.has_image, self._table.path.parent, spool, images)


def _stamp(folder: Path, kind: Kind, text: str) -> int:
    """Return a number that changes with the sizes and modification times of the images that a cell names."""
    statuses = [file_status(folder, path_key(path)) for path in kind.from_text(text)]
    return hash(tuple((status.st_size, status.st_mtime_ns) for status in statuses if not isinstance(status, str)))
