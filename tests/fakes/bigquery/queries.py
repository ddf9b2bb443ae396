"""Queries of the imitated BigQuery, which SQLite runs on copies of the tables whose names have backticks."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any

import pyarrow

from tests.fakes.bigquery.tables import FakeTable, Tables, arrow_type, field_of, reference, value_of
from tests.fakes.errors import ServiceError


def run_query(tables: Tables, query: dict[str, Any], caller: str) -> tuple[dict[str, Any], pyarrow.Table]:
    """Return the statistics and the rows of a query, in which tables' names have backticks."""
    text = query["query"]
    statement = re.sub(r"--[^\n]*", "", text).split(maxsplit=1)[0].upper()
    parameters = {entry["name"]: entry["parameterValue"]["value"] for entry in query.get("queryParameters", [])}
    for name in re.findall(r"@(\w+)", text):
        if name not in parameters:
            raise ServiceError(400, f"Query parameter '{name}' not found at [1:1]")
    names = [*dict.fromkeys(re.findall(r"`([^`]+\.[^`]+\.[^`]+)`", text))]
    types: dict[str, str] = {}
    with sqlite3.connect(":memory:") as database:
        for name in names:
            tables.require(caller, "bigquery.tables.getData", name)
            table = tables.table(name)
            rows = _as_of(tables, name, table, text, parameters)
            types |= table.fields
            columns = ", ".join(f'"{column}"' for column in table.fields)
            database.execute(f'CREATE TABLE "{name}" ({columns})')
            marks = ", ".join("?" * len(table.fields))
            values = [tuple(map(_plain, row.values())) for row in rows.to_pylist()]
            database.executemany(f'INSERT INTO "{name}" VALUES ({marks})', values)
        plain = re.sub(r"FOR SYSTEM_TIME AS OF @\w+", "", text)
        try:
            cursor = database.execute(plain) if statement in ("SELECT", "WITH") else None
        except sqlite3.Error as error:
            raise ServiceError(400, _said(str(error))) from None
    if cursor is None:
        return {"totalBytesProcessed": "0", "query": {"statementType": statement}}, pyarrow.table({})
    columns, rows_of_query = [entry[0] for entry in cursor.description], cursor.fetchall()
    kinds = {
        column: types.get(column) or _kind_of([row[i] for row in rows_of_query]) for i, column in enumerate(columns)
    }
    arrays = [
        pyarrow.array([value_of(row[i], kind) for row in rows_of_query], arrow_type(kind))
        for i, kind in enumerate(kinds.values())
    ]
    processed = str(sum(tables.tables[name].bytes for name in names))
    statistics = {
        "totalBytesProcessed": processed,
        "query": {
            "statementType": "SELECT",
            "totalBytesProcessed": processed,
            "totalBytesBilled": "0",
            "referencedTables": [reference(name) for name in names],
            "schema": {"fields": [field_of(column, kind) for column, kind in kinds.items()]},
        },
    }
    return statistics, pyarrow.Table.from_arrays(arrays, names=columns)


def _as_of(tables: Tables, name: str, table: FakeTable, text: str, parameters: Mapping[str, str]) -> pyarrow.Table:
    if not (match := re.search(rf"`{re.escape(name)}` FOR SYSTEM_TIME AS OF @(\w+)", text)):
        return table.newest
    return tables.version(name, table, datetime.fromisoformat(parameters[match[1]]), "")


def _plain(value: Any) -> Any:
    """Return a value that SQLite stores."""
    if isinstance(value, date | datetime | time_of_day):
        return value.isoformat()
    if isinstance(value, list):
        return json.dumps(value)
    return float(value) if isinstance(value, Decimal) else value


def _kind_of(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    return "INTEGER" if kinds == {int} else "FLOAT" if kinds and kinds <= {int, float} else "STRING"


def _said(text: str) -> str:
    """Return SQLite's error as BigQuery says it."""
    if match := re.fullmatch(r"no such column: (.+)", text):
        return f"Unrecognized name: {match[1]} at [1:8]"
    return f"Syntax error: {text} at [1:1]"
