"""The formats of tables, `FORMATS`, without the libraries that read them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from slipway.core.tables.batch import Mistake, TableFile


@dataclass(frozen=True)
class Format:
    """A format of tables: its title, its `TableFile` as module:class, and the bytes of one request to a bucket."""

    title: str
    reader: str
    read_bytes: int


# By the ending of a file's name. A Parquet file is read in pieces of different columns.
FORMATS = {
    ".csv": Format("CSV", "slipway.core.tables.csv_file:CsvFile", 4 << 20),
    ".parquet": Format("Parquet", "slipway.core.tables.parquet_file:ParquetFile", 1 << 20),
}


def is_table(path: Path) -> bool:
    """Return whether a file's name ends as that of a table."""
    return path.suffix.lower() in FORMATS


def open_table(file: IO[bytes], path: object, ending: str, mistake: Mistake, *, keep_faults: bool = False) -> TableFile:
    """Return the table in an open file.

    Args:
        file: The file.
        path: Its path, for messages.
        ending: Its format; see `FORMATS`.
        mistake: Returns the error of a file with this message.
        keep_faults: Whether a row that cannot be read is a fault of its batch; otherwise, it is an error.

    Raises:
        UserError: It does not have this format.
    """
    module, _, name = FORMATS[ending].reader.partition(":")
    table: TableFile = getattr(importlib.import_module(module), name)(file, path, mistake, keep_faults=keep_faults)
    return table
