"""The formats of tables, `FORMATS`, without the libraries that read them."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from slipway.core.tables.batch import Mistake, TableFile

# What each is called, by the ending of a file's name.
FORMATS = {".csv": "CSV", ".parquet": "Parquet"}


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
    if ending == ".parquet":
        from slipway.core.tables.parquet_file import ParquetFile

        return ParquetFile(file, path, mistake)
    from slipway.core.tables.csv_file import CsvFile

    return CsvFile(file, path, mistake, keep_faults=keep_faults)
