"""BigQuery's Storage Read API over gRPC: sessions, whose streams have other rows each time."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pyarrow
import pyarrow.ipc

from tests.fakes.bigquery.tables import Tables
from tests.fakes.errors import ServiceError
from tests.fakes.grpc_service import GrpcServer
from tests.fakes.world import World

STORAGE = "bigquerystorage.googleapis.com"
ROWS_SENT = 100
MAX_STREAMS = 3


class TableReads:
    """The streams of all sessions by name; served from the first call on, as importing Google's messages takes long."""

    def __init__(self, tables: Tables, world: World, server: GrpcServer) -> None:
        self._tables, self._world, self._server = tables, world, server
        self._streams: dict[str, list[pyarrow.RecordBatch]] = {}
        self._random = random.Random(0)
        self._are_served = False
        server.start_on_first_call(self._serve)

    def _serve(self) -> None:
        if self._are_served:
            return
        self._are_served = True
        from google.cloud.bigquery_storage_v1 import types

        self._server.add(
            "google.cloud.bigquery.storage.v1.BigQueryRead",
            {
                "CreateReadSession": (types.CreateReadSessionRequest, self._create_session),
                "ReadRows": (types.ReadRowsRequest, self._read_rows),
            },
        )

    def _create_session(self, request: Any, caller: str) -> Any:
        from google.cloud.bigquery_storage_v1 import types

        session = request.read_session
        project = request.parent.removeprefix("projects/")
        self._require_storage(caller, "bigquery.readsessions.create", project)
        match = re.fullmatch(r"projects/([^/]+)/datasets/([^/]+)/tables/([^/]+)", session.table)
        if match is None:
            raise ServiceError(400, "request failed: invalid table name")
        name = ".".join(match.groups())
        resources = (
            f"projects/{match[1]}/datasets/{match[2]}/tables/{match[3]}",
            f"projects/{match[1]}/datasets/{match[2]}",
        )
        message = f"request failed: the user does not have 'bigquery.tables.getData' permission for '{session.table}'"
        if not match[2].startswith("_"):  # a temporary table belongs to whom ran the query
            self._world.require(caller, "bigquery.tables.getData", *resources, f"projects/{match[1]}", message=message)
        if session.data_format == types.DataFormat.DATA_FORMAT_UNSPECIFIED:
            raise ServiceError(400, "request failed: data format unspecified")
        if session.data_format != types.DataFormat.ARROW:
            raise ServiceError(501, "Only Arrow is imitated.")
        table = self._tables.table(name)
        if table.kind not in ("TABLE", "SNAPSHOT"):
            raise ServiceError(400, "request failed: non-table entities cannot be read with the storage API")
        rows = table.newest
        if "snapshot_time" in session.table_modifiers:
            rows = self._tables.version(name, table, session.table_modifiers.snapshot_time, "request failed: ")
        if fields := list(session.read_options.selected_fields):
            if unknown := [column for column in fields if column not in table.fields]:
                text = f"The following selected fields do not exist in the table schema: {', '.join(unknown)}"
                raise ServiceError(400, f"request failed: {text}")
            rows = rows.select([column for column in table.fields if column in fields])
        identity = f"{request.parent}/locations/eu/sessions/{self._world.number()}"
        names = []
        for number, batches in enumerate(self._divided(rows, request.max_stream_count or MAX_STREAMS)):
            names.append(f"{identity}/streams/{number}")
            self._streams[names[-1]] = batches
        share = len(rows.schema) / len(table.fields)
        return types.ReadSession(
            name=identity,
            table=session.table,
            data_format=session.data_format,
            arrow_schema={"serialized_schema": rows.schema.serialize().to_pybytes()},
            streams=[{"name": stream} for stream in names],
            estimated_total_bytes_scanned=int(table.bytes * share),
            estimated_row_count=len(rows),
        )

    def _divided(self, rows: pyarrow.Table, most: int) -> list[list[pyarrow.RecordBatch]]:
        """Divide rows among streams, otherwise in each session; an empty table has no stream."""
        if not len(rows):
            return []
        order = list(range(len(rows)))
        self._random.shuffle(order)
        count = min(most, MAX_STREAMS, len(order))
        parts = [rows.take(order[number::count]).combine_chunks() for number in range(count)]
        return [part.to_batches(max_chunksize=ROWS_SENT) for part in parts]

    def _read_rows(self, request: Any, caller: str) -> Iterator[Any]:
        from google.cloud.bigquery_storage_v1 import types

        self._require_storage(caller, "bigquery.readsessions.getData", request.read_stream.split("/")[1])
        if request.read_stream not in self._streams:
            raise ServiceError(404, f"request failed: stream {request.read_stream} was not found")
        batches, skipped = self._streams[request.read_stream], request.offset
        if skipped > sum(map(len, batches)):
            raise ServiceError(400, f"request failed: offset {skipped} is larger than the stream")
        options = pyarrow.ipc.IpcWriteOptions(compression="lz4")
        for batch in batches:
            if len(kept := batch.slice(min(skipped, len(batch)))):
                data = {"serialized_record_batch": _serialized(kept, options)}
                yield types.ReadRowsResponse(row_count=len(kept), arrow_record_batch=data)
            skipped = max(0, skipped - len(batch))

    def _require_storage(self, caller: str, permission: str, project: str) -> None:
        self._world.require_service(self._world.project(project), STORAGE)
        self._world.require(
            caller,
            permission,
            f"projects/{project}",
            message=f"request failed: the user does not have '{permission}' permission for 'projects/{project}'",
        )


def _serialized(batch: pyarrow.RecordBatch, options: Any) -> bytes:
    """Return a record batch as a message, without its schema."""
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    messages = pyarrow.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # the schema
    return messages.read_next_message().serialize().to_pybytes()
