"""What the source reads: the columns, as of which time, and what BigQuery bills for it."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow

from slipway.components.cloud.refusals import message_of
from slipway.components.cloud.retries import status_of
from slipway.components.prepare_data.bigquery.names import PREFIX, QUERY, TableName, table_name
from slipway.components.prepare_data.bigquery.service import PARAMETER, OverLimitError, Warehouse
from slipway.components.prepare_data.examples import source_error
from slipway.components.prepare_data.remote import content, is_remote
from slipway.components.prepare_data.settings import DataSettings, bytes_of
from slipway.components.prepare_data.sources.record_layout import additional_kinds
from slipway.components.prepare_data.sources.tables.header import IMAGE_COLUMNS, HeaderReader
from slipway.core.errors import UserError, nearest
from slipway.core.formatting import binary_size
from slipway.core.paths import local_path
from slipway.core.tables.batch import Batch, TableFile
from slipway.core.values import JsonObject

# What can be read as it was earlier; a table snapshot never changes. The types of tables:
# https://cloud.google.com/bigquery/docs/reference/rest/v2/tables#Table.FIELDS.type
TABLE, FROZEN = "TABLE", "SNAPSHOT"
# The longest time travel window, and how long ago an unchanged table is read, which is within the shortest, two days.
# https://cloud.google.com/bigquery/docs/time-travel
WINDOW, UNCHANGED = timedelta(days=7), timedelta(days=1)
# The time of a change is rounded down to milliseconds.
ROUNDED = timedelta(milliseconds=1)
# How far the clock of this machine may be ahead.
CLOCK = timedelta(seconds=10)
# Types whose values are no inputs. https://cloud.google.com/bigquery/docs/reference/standard-sql/data-types
REFUSED = {
    "BYTES": "bytes", "RECORD": "a STRUCT", "STRUCT": "a STRUCT", "GEOGRAPHY": "a GEOGRAPHY", "JSON": "JSON",
    "INTERVAL": "an INTERVAL", "RANGE": "a RANGE",
}  # fmt: skip
# On-demand prices of a TiB in US dollars and what is free in a month: https://cloud.google.com/bigquery/pricing
PRICE_SOURCE = "https://cloud.google.com/bigquery/pricing, October 2026"
TABLE_PRICE, TABLE_FREE, QUERY_PRICE, QUERY_FREE = 1.10, "300 TiB", 6.25, "1 TiB"
TIB, GIB = 1 << 40, 1 << 30
# The error of a time as of which a table cannot be read.
OUT_OF_TIME = re.compile(r"time travel|snapshot time", re.IGNORECASE)
# A query whose rows can change although its tables do not.
CHANGING = re.compile(
    r"\b(CURRENT_(DATE|DATETIME|TIME|TIMESTAMP)|RAND|GENERATE_UUID|SESSION_USER)\b|\bTABLESAMPLE\b", re.IGNORECASE
)
COMMENT = re.compile(r"--[^\n]*|#[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Selection:
    """What is read.

    Attributes:
        reference: The source as the user wrote it.
        table: The table; None for a query.
        query: The query's text.
        columns: The types of its columns by name.
        version: The time of the snapshot, which identifies the content: by default, just after the last change.
        at: As of which time it is read; None for as it is now.
        is_repeatable: Whether another run finds the same rows at this version.
        bytes: What is billed, as far as it is known.
    """

    reference: str
    table: TableName | None
    query: str
    columns: Mapping[str, str]
    version: datetime
    at: datetime | None
    is_repeatable: bool
    bytes: int

    @property
    def title(self) -> str:
        """What messages call it."""
        return self.reference.removeprefix(PREFIX)

    @property
    def identity(self) -> str:
        """Identifies the content: the table or the text of the query, and the time."""
        content = str(self.table) if self.table else hashlib.sha256(self.query.encode()).hexdigest()
        return f"{content} {self.time}"

    @property
    def time(self) -> str:
        """The time of the snapshot, as data.bigquery.snapshot accepts it."""
        return self.version.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def check_cost(self, settings: DataSettings) -> None:
        """Check that reading is billed for no more than data.bigquery.max_bytes.

        Raises:
            UserError: It is billed for more.
        """
        if self.bytes > bytes_of(settings.bigquery.max_bytes):
            raise self.too_much(settings)

    def too_much(self, settings: DataSettings) -> UserError:
        """Return the error of a source that costs too much."""
        price, free = (TABLE_PRICE, TABLE_FREE) if self.table else (QUERY_PRICE, QUERY_FREE)
        fewer = "name fewer columns in data.inputs" if self.table else f"select fewer columns in {self.title}"
        needed, dollars = math.ceil(self.bytes / GIB), self.bytes / TIB * price
        return UserError(
            f"BigQuery would bill {binary_size(self.bytes)} for {self.reference}: about ${dollars:,.2f} at "
            f"${price:.2f} per TiB, of which {free} per month are free ({PRICE_SOURCE}).",
            setting="data.bigquery.max_bytes",
            value=settings.bigquery.max_bytes,
            fix=f"--set 'data.bigquery.max_bytes={needed} GiB', or {fewer}",
        )

    def open_session(self, warehouse: Warehouse, settings: DataSettings, streams: int) -> Any:
        """Return the session that reads it, after a query was run.

        Raises:
            UserError: It cannot be read, or it costs too much.
        """
        table, at = self.table, self.at
        if table is None:
            self.check_cost(settings)
            try:
                table = warehouse.query(self.query, _parameter(self.query, at), bytes_of(settings.bigquery.max_bytes))
            except OverLimitError as error:
                more = re.search(r"(\d+) or higher", str(error))
                raise replace(self, bytes=int(more[1]) if more else self.bytes).too_much(settings) from None
            at = None
        try:
            session = warehouse.session(table, [*self.columns], at, streams)
        except Exception as error:
            if isinstance(error, UserError) or status_of(error) not in (400, 404):
                raise
            raise self._unreadable(message_of(error), settings) from error
        if self.table is not None:  # the rows of a query are free
            replace(self, bytes=session.estimated_total_bytes_scanned or self.bytes).check_cost(settings)
        return session

    def _unreadable(self, text: str, settings: DataSettings) -> UserError:
        text = text.removeprefix("request failed: ")
        if OUT_OF_TIME.search(text):
            return _wrong_time(self.title, text, settings)
        return source_error(self.reference, f"{self.title} cannot be read: {text}.", fix=_as_query(self.title))


def select(warehouse: Warehouse, argument: str, settings: DataSettings, column: str | None) -> Selection:
    """Return what the source reads: the columns with a use.

    Args:
        warehouse: BigQuery.
        argument: data.source without its prefix.
        settings: The user's settings.
        column: The column of data.group_by.

    Raises:
        UserError: As `select_all`; or columns are missing or cannot be read.
    """
    selection = select_all(warehouse, argument, settings)
    return replace(selection, columns=_needed(selection, settings, column))


def select_all(warehouse: Warehouse, argument: str, settings: DataSettings) -> Selection:
    """Return a table or the rows of a query with all columns; asks only for metadata, which is free.

    Raises:
        UserError: There is no such table or file, or the query is not valid.
    """
    now = datetime.now(UTC)
    if settings.bigquery.snapshot is not None:
        _check_time(settings.bigquery.snapshot, now)
    select_from = _of_query if argument.lower().endswith(QUERY) else _of_table
    return select_from(warehouse, argument, settings, now)


def _of_table(warehouse: Warehouse, argument: str, settings: DataSettings, now: datetime) -> Selection:
    name = table_name(argument)
    try:
        metadata = warehouse.table(name)
    except Exception as error:
        if status_of(error) != 404:
            raise
        near = nearest(str(name), warehouse.tables(name))
        raise source_error(
            settings.source, f"BigQuery has no table {name}: {message_of(error)}.", nearest=near and f"{PREFIX}{near}",
            fix=None if near else f"bq ls {name.project}:{name.dataset} lists the tables",
        ) from None  # fmt: skip
    kind = metadata.get("type", TABLE)
    if kind not in (TABLE, FROZEN):
        raise source_error(
            settings.source, f"{name} is a {kind.replace('_', ' ').lower()}, which only a query can read.",
            allowed="a table or a table snapshot", fix=_as_query(str(name)),
        )  # fmt: skip
    created = datetime.fromtimestamp(int(metadata.get("creationTime", 0)) / 1000, UTC) + ROUNDED
    snapshot = None if kind == FROZEN else settings.bigquery.snapshot
    version, at, is_repeatable = _times(_changed([metadata]), snapshot, now, created)
    columns = {field["name"]: _type(field) for field in metadata.get("schema", {}).get("fields", ())}
    size, as_of = int(metadata.get("numBytes", 0)), None if kind == FROZEN else at
    return Selection(settings.source, name, "", columns, version, as_of, is_repeatable, size)


def _of_query(warehouse: Warehouse, argument: str, settings: DataSettings, now: datetime) -> Selection:
    path = local_path(argument).expanduser()
    try:
        text = (content(path) if is_remote(path) else path.read_bytes()).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise source_error(
            settings.source, f"{path} cannot be read: {reason}.",
            fix="correct the path; a container has the files of the project that git tracks, or --set "
            "data.source=bigquery:gs://BUCKET/FILE.sql",
        ) from None  # fmt: skip
    snapshot = settings.bigquery.snapshot
    if snapshot is not None and _parameter(text, now) is None:
        raise UserError(
            f"The query in {argument} does not use the parameter @{PARAMETER}.", setting="data.bigquery.snapshot",
            value=snapshot.isoformat(),
            fix=f"write FOR SYSTEM_TIME AS OF @{PARAMETER} after the tables' names in {argument}",
        )  # fmt: skip
    try:
        statistics = _dry_run(warehouse, text, snapshot, now)
    except Exception as error:
        if isinstance(error, UserError) or status_of(error) not in (400, 404):
            raise
        if snapshot is not None and OUT_OF_TIME.search(message_of(error)):
            raise _wrong_time(argument, message_of(error), settings) from None
        raise source_error(
            settings.source,
            f"BigQuery refuses the query in {argument}: {message_of(error)}.",
            fix=f"correct {argument}",
        ) from None
    query = statistics.get("query", {})
    if query.get("statementType") != "SELECT":
        raise source_error(
            settings.source, f"{argument} is a {query.get('statementType', 'script')}, not a query that reads.",
            allowed="one SELECT", fix=f"write one SELECT in {argument}",
        )  # fmt: skip
    changed = _changed(_tables_of(warehouse, query)) if not CHANGING.search(COMMENT.sub("", text)) else None
    version, at, is_repeatable = _times(changed, snapshot, now)
    columns = {field["name"]: _type(field) for field in query["schema"]["fields"]}
    return Selection(
        settings.source, None, text, columns, version, at, is_repeatable, int(statistics["totalBytesProcessed"])
    )


def _dry_run(warehouse: Warehouse, text: str, snapshot: datetime | None, now: datetime) -> JsonObject:
    """Return the statistics of a query, before it is known when its tables were changed: one may be very new."""
    try:
        return warehouse.dry_run(text, _parameter(text, snapshot or now - CLOCK))
    except Exception as error:
        if snapshot is not None or not (created := re.search(r"Cannot read before (\d+)", str(error))):
            raise
        at = datetime.fromtimestamp(int(created[1]) / 1000, UTC) + ROUNDED
        return warehouse.dry_run(text, _parameter(text, at))


def _wrong_time(title: str, text: str, settings: DataSettings) -> UserError:
    """Return the error of a time as of which BigQuery does not have the rows."""
    snapshot = settings.bigquery.snapshot
    return UserError(
        f"{title} cannot be read as of that time: {text}.",
        setting="data.bigquery.snapshot",
        value=snapshot and snapshot.isoformat(),
        allowed="a time after the table was created and within its time travel window of two to seven days",
        fix="--set data.bigquery.snapshot=null, or read a table snapshot: CREATE SNAPSHOT TABLE … CLONE …"
        if snapshot
        else "try again: the table was created or changed moments ago",
    )


def _tables_of(warehouse: Warehouse, query: JsonObject) -> list[JsonObject]:
    """Return the metadata of the tables that a query reads; empty ones of those whose metadata cannot be read."""
    listed = []
    for reference in query.get("referencedTables", []):
        name = TableName(reference["projectId"], reference["datasetId"], reference["tableId"])
        try:
            listed.append(warehouse.table(name))
        except Exception as error:
            if not isinstance(error, UserError) and status_of(error) not in (400, 404):
                raise
            listed.append({})
    return listed


def _changed(tables: Collection[JsonObject]) -> datetime | None:
    """Return when tables were last changed; None if that is not known, as of rows that are being streamed."""
    known = [table.get("type") in (TABLE, FROZEN) and "streamingBuffer" not in table for table in tables]
    if not tables or not all(known):
        return None
    return max(datetime.fromtimestamp(int(table["lastModifiedTime"]) / 1000, UTC) for table in tables)


def _times(
    changed: datetime | None, snapshot: datetime | None, now: datetime, created: datetime | None = None
) -> tuple[datetime, datetime, bool]:
    """Return the version of the content, as of which time it is read, and whether the version identifies it.

    A table that has not changed for long is read as of a later time than that of its last change, which BigQuery no
    longer knows; the rows are the same.
    """
    if snapshot is not None:
        return snapshot.astimezone(UTC), snapshot, True
    if changed is None:
        present = max(now - CLOCK, created or now - CLOCK)
        return present, present, False
    return changed + ROUNDED, max(changed + ROUNDED, now - UNCHANGED), True


def _check_time(snapshot: datetime, now: datetime) -> None:
    problem = "is in the future" if snapshot > now else "is more than seven days ago" if snapshot < now - WINDOW else ""
    if problem:
        raise UserError(
            f"The time {snapshot.isoformat()} {problem}.",
            setting="data.bigquery.snapshot",
            value=snapshot.isoformat(),
            allowed="a time within the time travel window of two to seven days",
            fix="--set data.bigquery.snapshot=null, or read a table snapshot, which is kept for longer",
        )


def _parameter(text: str, at: datetime | None) -> datetime | None:
    """Return the value of the parameter of a query that uses it."""
    return at if re.search(rf"@{PARAMETER}\b", COMMENT.sub("", text)) else None


def _type(field: JsonObject) -> str:
    return f"ARRAY<{field['type']}>" if field.get("mode") == "REPEATED" else str(field["type"])


def _needed(selection: Selection, settings: DataSettings, column: str | None) -> dict[str, str]:
    """Return the columns to read: all, or those of data.inputs and with another use.

    Raises:
        UserError: A column is missing, or has values that cannot be inputs.
    """
    mistake = cast(
        "Callable[..., UserError]", lambda message, **more: source_error(selection.reference, message, **more)
    )
    columns, dividing = selection.columns, (column, settings.order_column)
    reader = HeaderReader(settings, column, mistake)
    no_files = Batch([1], [pyarrow.array([""])] * len(columns), simple=True)
    about = cast(TableFile, SimpleNamespace(names=[*columns], header=selection.title, batches=lambda: [no_files]))
    reader.forget_image(about, Path())  # listing knows whether a column has files
    header = reader.read(about)
    if settings.inputs is not None:
        named = {
            *settings.inputs,
            *additional_kinds(settings),
            *(header.names[index] for index in header.columns.values()),
        }
        if "image" in settings.inputs:
            named |= {*IMAGE_COLUMNS}
        for name in settings.inputs:
            if name not in columns and name != "image":
                raise UserError.unknown("column", name, [*columns], setting="data.inputs")
        columns = {name: kind for name, kind in columns.items() if name in named}
    refused = {name: why for name, kind in columns.items() if (why := why_refused(kind))}
    if refused:
        kept = [name for name in header.additional if not why_refused(selection.columns[name]) and name not in dividing]
        named_columns = "; ".join(f"{name} is {why}" for name, why in refused.items())
        fix = f"--set {shlex.quote(f'data.inputs={json.dumps(kept, ensure_ascii=False)}')}" if selection.table else ""
        flatten = f"read its parts as columns of their own in a query: {_as_query(selection.title)}"
        raise source_error(
            selection.reference,
            f"Columns of {selection.title} have no values that can be inputs: {named_columns}.",
            allowed="columns of numbers, texts, booleans, dates and times",
            fix=f"{fix}, or {flatten}"
            if fix and kept
            else f"select other columns, or their parts, in {selection.title}",
        )
    return dict(columns)


def why_refused(kind: str) -> str | None:
    """Return what the values of a type are that cannot be inputs; None if they can."""
    return f"an {kind}" if kind.startswith("ARRAY<") else REFUSED.get(kind)


def _as_query(name: str) -> str:
    return f"write query.sql, such as SELECT * FROM `{name}`, and --set data.source=bigquery:query.sql"
