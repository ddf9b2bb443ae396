"""Write the rows of a read session to a Parquet file: all streams at once, each continued where it broke off.

Which rows a stream has, and which stream is faster, differs between sessions. The order of the file's rows does not
matter: the key of a row is a hash of its values, by which the shards are sorted.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from slipway.components.prepare_data.bigquery.service import Warehouse
from slipway.core import events
from slipway.core.errors import UserError
from slipway.core.formatting import binary_size

MAX_STREAMS = 8
# Rows and bytes that are written at once, of each stream.
GROUP_ROWS, GROUP_BYTES = 1 << 16, 32 << 20


# Receives the number of rows that were written, and of all.
Show: TypeAlias = "Callable[[int, int], object]"


def write_rows(warehouse: Warehouse, session: Any, path: Path, title: str, show: Show | None = None) -> int:
    """Write all rows of a session to a Parquet file; return their number.

    Args:
        warehouse: BigQuery, whose connection for rows is then closed: processes may be forked.
        session: The session.
        path: The file.
        title: What is read.
        show: Shows the progress; by default, it is an event.

    Raises:
        UserError: BigQuery fails, or the disk has no room.
    """
    size = int(session.estimated_total_bytes_scanned)
    if size > (free := shutil.disk_usage(path.parent).free):
        raise UserError(
            f"{title} has {binary_size(size)}, and {path.parent} has room for {binary_size(free)}.",
            setting="TMPDIR", value=str(path.parent.parent),
            fix="TMPDIR=FOLDER slipway run, with a folder that has room",
        )  # fmt: skip
    schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(session.arrow_schema.serialized_schema))
    events.phase(f"reading {title} from BigQuery")
    with pyarrow.parquet.ParquetWriter(path, _stored(schema), compression="lz4") as file:
        writing = _Writing(warehouse, schema, file, int(session.estimated_row_count), show or _progress)
        with ThreadPoolExecutor(max_workers=max(1, len(session.streams))) as threads:
            try:
                for finished in [threads.submit(writing.copy, stream.name) for stream in session.streams]:
                    finished.result()
            finally:  # after an error or a signal, no thread waits for its stream
                writing.ended.set()
                warehouse.close()
    return writing.rows


def _progress(done: int, total: int) -> None:
    events.progress(done, total, "rows")


class _Writing:
    """Copies streams to a file, each in a thread of its own."""

    def __init__(self, warehouse: Warehouse, schema: pyarrow.Schema, file: Any, total: int, show: Show) -> None:
        self._warehouse, self._schema, self._file, self._total = warehouse, schema, file, total
        self._lock, self._show = threading.Lock(), show
        self.ended, self.rows = threading.Event(), 0

    def copy(self, stream: str) -> None:
        """Copy the rows of a stream, unless another one fails."""
        batches: list[pyarrow.RecordBatch] = []
        try:
            for response in self._warehouse.responses(stream):
                if self.ended.is_set():
                    return
                data = pyarrow.py_buffer(response.arrow_record_batch.serialized_record_batch)
                batches.append(pyarrow.ipc.read_record_batch(data, self._schema))
                rows, size = sum(map(len, batches)), sum(batch.nbytes for batch in batches)
                if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                    self._write(batches)
                    batches = []
            self._write(batches)
        except BaseException:
            self.ended.set()
            raise

    def _write(self, batches: list[pyarrow.RecordBatch]) -> None:
        table = pyarrow.Table.from_batches(batches, self._schema).cast(_stored(self._schema))
        with self._lock:
            self._file.write_table(table, GROUP_ROWS)
            self.rows += len(table)
            self._show(self.rows, max(self.rows, self._total))


def _stored(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Return the schema with floats in place of decimals, without metadata."""
    return pyarrow.schema(
        [
            pyarrow.field(field.name, pyarrow.float64() if pyarrow.types.is_decimal(field.type) else field.type)
            for field in schema
        ]
    )
