"""The tables of the imitated BigQuery: their types, their rows as of several times, and who may use them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any

import pyarrow

from tests.fakes.errors import ServiceError
from tests.fakes.world import World

SERVICE = "bigquery.googleapis.com"
# https://cloud.google.com/bigquery/docs/reference/storage#arrow_schema_details
ARROW: Mapping[str, pyarrow.DataType] = {
    "INTEGER": pyarrow.int64(), "FLOAT": pyarrow.float64(), "NUMERIC": pyarrow.decimal128(38, 9),
    "BIGNUMERIC": pyarrow.decimal256(76, 38), "BOOLEAN": pyarrow.bool_(), "STRING": pyarrow.string(),
    "BYTES": pyarrow.binary(), "DATE": pyarrow.date32(), "DATETIME": pyarrow.timestamp("us"),
    "TIMESTAMP": pyarrow.timestamp("us", "UTC"), "TIME": pyarrow.time64("us"), "JSON": pyarrow.string(),
    "GEOGRAPHY": pyarrow.string(),
}  # fmt: skip
WINDOW_MS = 7 * 24 * 3600 * 1000


@dataclass
class FakeTable:
    """A table: its fields, its rows since each of the times (in milliseconds), and what kind it is."""

    fields: dict[str, str]
    versions: dict[int, pyarrow.Table]
    kind: str = "TABLE"
    created: int = 0
    size: int | None = None
    is_streamed: bool = False
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def newest(self) -> pyarrow.Table:
        return self.versions[max(self.versions)]

    @property
    def bytes(self) -> int:
        return self.newest.nbytes if self.size is None else self.size

    def at(self, ms: int) -> pyarrow.Table | None:
        """Return the rows as of a time; None if the table did not exist."""
        before = [changed for changed in self.versions if changed <= ms]
        return self.versions[max(before)] if before else None


class Tables:
    """The tables by PROJECT.DATASET.TABLE."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.tables: dict[str, FakeTable] = {}

    def add_table(
        self, name: str, columns: Mapping[str, str], rows: Sequence[Sequence[object]], changed: datetime | None = None,
        **about: Any,
    ) -> FakeTable:  # fmt: skip
        """Create or change a table as of a time, by default now.

        Args:
            name: PROJECT.DATASET.TABLE.
            columns: The types of its columns in the words of the API, such as INTEGER.
            rows: The values of its rows; dates and times as ISO text.
            changed: The time.
            about: Other attributes of `FakeTable`.
        """
        ms = int((changed or datetime.now(UTC)).timestamp() * 1000)
        arrays = [
            pyarrow.array([value_of(row[index], kind) for row in rows], arrow_type(kind))
            for index, kind in enumerate(columns.values())
        ]
        content = pyarrow.Table.from_arrays(arrays, names=[*columns])
        table = self.tables.get(name)
        if table is None or table.fields != dict(columns):
            table = self.tables[name] = FakeTable(dict(columns), {}, created=ms)
        table.versions[ms] = content
        for attribute, value in about.items():
            setattr(table, attribute, value)
        return table

    def require(self, caller: str, permission: str, name: str) -> None:
        project, dataset, table = name.split(".", 2)
        self._world.require_service(self._world.project(project), SERVICE)
        self._world.require(
            caller,
            permission,
            f"projects/{project}/datasets/{dataset}/tables/{table}",
            f"projects/{project}/datasets/{dataset}",
            f"projects/{project}",
            message=f"Access Denied: Table {legacy(name)}: Permission {permission} denied on table {legacy(name)} "
            "(or it may not exist).",
        )

    def table(self, name: str) -> FakeTable:
        if name not in self.tables:
            dataset = name.rpartition(".")[0]
            if not any(other.startswith(f"{dataset}.") for other in self.tables):
                raise ServiceError(404, f"Not found: Dataset {dataset.replace('.', ':', 1)}")
            raise ServiceError(404, f"Not found: Table {legacy(name)}")
        return self.tables[name]

    def version(self, name: str, table: FakeTable, at: datetime, prefix: str) -> pyarrow.Table:
        ms, present = int(at.timestamp() * 1000), now()
        text = f"{prefix}Invalid time travel timestamp {ms} for table {legacy(name)}@{ms}."
        earliest = max(present - WINDOW_MS, table.created)
        if ms > present:
            raise ServiceError(400, f"{text} It is in the future.")
        rows = table.at(ms)
        if ms < earliest or rows is None:
            raise ServiceError(400, f"{text} Cannot read before {earliest}.")
        return rows


def now() -> int:
    return int(time.time() * 1000)


def legacy(name: str) -> str:
    project, rest = name.split(".", 1)
    return f"{project}:{rest}"


def reference(name: str) -> dict[str, str]:
    project, dataset, table = name.split(".", 2)
    return {"projectId": project, "datasetId": dataset, "tableId": table}


def joined(reference: Mapping[str, str]) -> str:
    return ".".join(reference[part] for part in ("projectId", "datasetId", "tableId"))


def field_of(name: str, kind: str) -> dict[str, Any]:
    if kind.startswith("ARRAY<"):
        return {"name": name, "type": kind[6:-1], "mode": "REPEATED"}
    fields = {"fields": [{"name": "part", "type": "STRING"}]} if kind == "RECORD" else {}
    return {"name": name, "type": kind, "mode": "NULLABLE", **fields}


def arrow_type(kind: str) -> pyarrow.DataType:
    if kind.startswith("ARRAY<"):
        return pyarrow.list_(arrow_type(kind[6:-1]))
    return pyarrow.struct([("part", pyarrow.string())]) if kind == "RECORD" else ARROW[kind]


def kind_of_arrow(kind: pyarrow.DataType) -> str:
    if pyarrow.types.is_list(kind):
        return f"ARRAY<{kind_of_arrow(kind.value_type)}>"
    return "RECORD" if pyarrow.types.is_struct(kind) else next(name for name, arrow in ARROW.items() if arrow == kind)


def value_of(value: Any, kind: str) -> Any:
    """Return a value of JSON or SQLite as one of a type."""
    if value is None:
        return None
    if kind.startswith("ARRAY<") and isinstance(value, str):
        return json.loads(value)
    readers = {"DATE": date, "DATETIME": datetime, "TIMESTAMP": datetime, "TIME": time_of_day}
    if kind in readers and isinstance(value, str):
        return readers[kind].fromisoformat(value)
    if kind in ("NUMERIC", "BIGNUMERIC"):
        return Decimal(str(value))
    if kind == "BYTES" and isinstance(value, str):
        return value.encode()
    return bool(value) if kind == "BOOLEAN" else value
