"""The source `bigquery:`: rows that are read once, to a Parquet file, and then listed as those of `parquet:`.

If the data set of the same snapshot and settings exists, nothing is read: what opening would find is remembered beside
it, and the listing, too.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from slipway.components.prepare_data.bigquery.selection import Selection, select
from slipway.components.prepare_data.bigquery.service import Warehouse, warehouse_of
from slipway.components.prepare_data.bigquery.spool import MAX_STREAMS, write_rows
from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.examples import COLUMN, Group
from slipway.components.prepare_data.publishing.store import Store
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.images import valid_name
from slipway.components.prepare_data.sources.source import Entry, Ignored, ListedRows, Part, Reader, Source
from slipway.components.prepare_data.sources.table_source import (
    KeyedTableSource,
    TableSource,
    open_table_source,
)
from slipway.components.prepare_data.sources.tables.inference import MAX_INFERRED, InferredColumn
from slipway.core.errors import UserError
from slipway.core.formatting import binary_size
from slipway.core.manifest import TaskName
from slipway.core.values import JsonObject

# Changes with what is remembered.
FORMAT = 1
TEXT = "STRING"


def open_bigquery(argument: str, settings: DataSettings, column: str | None, task: TaskName) -> BigQuerySource:
    """Open the source `bigquery:`; read it, unless its data set is remembered.

    Raises:
        UserError: It cannot be read, or BigQuery would bill too much.
    """
    warehouse = warehouse_of(argument, settings.bigquery)
    selection = select(warehouse, argument, settings, column)
    source = BigQuerySource(warehouse, selection, settings, column, task)
    if not source.is_remembered:
        _ = source.table
    return source


def described(argument: str, settings: DataSettings) -> str:
    """Return what would be read and billed, after creating the session that would read it.

    Raises:
        UserError: It cannot be read, or BigQuery would bill too much.
    """
    column = (settings.group_by or "").removeprefix(COLUMN) if (settings.group_by or "").startswith(COLUMN) else None
    warehouse = warehouse_of(argument, settings.bigquery)
    selection = select(warehouse, argument, settings, column)
    if selection.table is not None:
        session = selection.open_session(warehouse, settings, 1)
        size = session.estimated_total_bytes_scanned or selection.bytes
    else:
        selection.check_cost(settings)
        size = selection.bytes
    return f"{settings.source} as of {selection.time}: BigQuery bills {binary_size(size)}"


class BigQuerySource(Source):
    """A table or the rows of a query.

    Args:
        warehouse: BigQuery.
        selection: What is read.
        settings: The user's settings.
        column: The column of data.group_by.
        task: What is learned.
    """

    item = "row"

    def __init__(
        self, warehouse: Warehouse, selection: Selection, settings: DataSettings, column: str | None, task: TaskName
    ) -> None:
        self._warehouse, self._selection, self._settings = warehouse, selection, settings
        self._column = column
        self.reference, self.task = selection.reference, task
        self.name = valid_name(selection.table.table if selection.table else Path(selection.title).stem)
        self.revision = selection.identity
        known = self._listings.schema(self._identity) if selection.is_repeatable else None
        self.is_remembered = known is not None
        if known is not None:
            self._take(known)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_warehouse": None}  # workers read the file

    @property
    def _listings(self) -> Any:
        return Store(self._settings.store, self._settings.name or self.name).listings

    @cached_property
    def _identity(self) -> str:
        """Identifies the content and all settings on which opening depends."""
        settings = self._settings.model_dump_json(exclude={"store", "workers", "bigquery"})
        about = f"{FORMAT} {self.revision} {self.task} {settings}"
        return f"bigquery-{hashlib.sha256(about.encode()).hexdigest()[:16]}"

    def _take(self, schema: JsonObject) -> None:
        self.features, self.notes = schema["features"], schema["notes"]
        self.inputs = {name: Kind.parse(kind) for name, kind in schema["inputs"].items()}
        self.has_image, self.has_ids, self.is_table = False, schema["has_ids"], schema["is_table"]

    @cached_property
    def table(self) -> TableSource | KeyedTableSource:
        """The source `parquet:` of the rows, which are read first."""
        folder = Path(tempfile.mkdtemp(prefix="slipway-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._path = folder / f"{self.name}.parquet"
        session = self._selection.open_session(self._warehouse, self._settings, MAX_STREAMS)
        rows = write_rows(self._warehouse, session, self._path, self._selection.title)
        with self._errors_named():
            table = self._opened({})
            if kinds := self._kinds_of_texts(table):
                table = self._opened(kinds)
        self._read = f"The {rows:,} rows are those of {self._selection.title} in BigQuery as of {self._selection.time}."
        self._take_table(table, kinds)
        return table

    def _opened(self, kinds: dict[str, str]) -> TableSource | KeyedTableSource:
        features = self._settings.features
        if kinds:
            features = {**(features if isinstance(features, dict) else {}), **kinds}
        settings = self._settings.model_copy(update={"source": f"parquet:{self._path}", "features": features})
        return open_table_source(str(self._path), settings, self._column, self.task)

    def _kinds_of_texts(self, table: TableSource | KeyedTableSource) -> dict[str, str]:
        """Return the kinds of columns of the type STRING whose texts are all numbers, such as codes: categories."""
        columns = table.inferred(Ignored()).items()
        if isinstance(self._settings.features, str):
            return {}
        return {
            name: "category" if len(column.texts) <= MAX_INFERRED else "text"
            for name, column in columns
            if column.kind == Kind("number") and not column.excluded and self._selection.columns[name] == TEXT
        }

    def _take_table(self, table: TableSource | KeyedTableSource, kinds: dict[str, str]) -> None:
        texts = [
            f"The column {name} is a {kind}: it is a {TEXT} in BigQuery, although all its texts are numbers."
            for name, kind in kinds.items()
        ]
        self.features, self.inputs = table.features, table.inputs
        self.notes = [self._read, *texts, *table.notes]
        self.has_image, self.has_ids, self.is_table = table.has_image, table.has_ids, table.is_table
        self.stamps_are_times = table.stamps_are_times
        if self._selection.is_repeatable and not self.stamps_are_times:
            schema = {
                "features": self.features, "inputs": {name: str(kind) for name, kind in self.inputs.items()},
                "notes": self.notes, "has_ids": self.has_ids, "is_table": self.is_table,
            }  # fmt: skip
            self._listings.remember_schema(self._identity, schema)

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        """Name the table in errors, rather than the file that its rows are in."""
        try:
            yield
        except UserError as error:
            for name in ("message", "value", "allowed", "nearest", "fix"):
                if isinstance(text := getattr(error, name), str):
                    text = text.replace(f"parquet:{self._path}", self.reference)
                    setattr(error, name, text.replace(str(self._path), self._selection.title))
            raise

    def stamp(self) -> str | None:
        is_known = self._selection.is_repeatable and not self.stamps_are_times
        return self._identity if is_known else None

    def inferred(self, listed: Ignored) -> dict[str, InferredColumn]:
        return self.table.inferred(listed)

    def infer_again(self) -> None:
        with self._errors_named():
            self.table.infer_again()
        self._take_table(self.table, {})

    @property
    def spooled(self) -> list[str]:
        return [*self.table.spooled]

    def groups(self, listed: Iterable[Group]) -> dict[Group, Group]:
        with self._errors_named():
            return self.table.groups(listed)

    def parts(self) -> list[Part]:
        with self._errors_named():
            return [*self.table.parts()]

    def entries(self, part: Part, ignored: Ignored, scratch: Path) -> Iterator[Entry]:
        with self._errors_named():
            yield from self.table.entries(part, ignored, scratch)

    def rows(self, part: Part, ignored: Ignored, scratch: Path) -> Iterator[ListedRows] | None:
        rows = self.table.rows(part, ignored, scratch)
        return None if rows is None else self._named(rows)

    def _named(self, rows: Iterator[ListedRows]) -> Iterator[ListedRows]:
        with self._errors_named():
            yield from rows

    def reader(self, scratch: Path) -> Reader:
        return self.table.reader(scratch)
