"""The table that a source reads: its columns, its schema, and its rows, many at a time."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import IO, NamedTuple

from slipway.components.prepare_data.encoding.table_rows import RowSpool
from slipway.components.prepare_data.examples import source_error
from slipway.components.prepare_data.remote import open_file
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.source import Ignored, ListedRows
from slipway.components.prepare_data.sources.tables.header import COLUMNS, Header, HeaderReader
from slipway.components.prepare_data.sources.tables.inference import Cells
from slipway.components.prepare_data.sources.tables.listing import TableLister
from slipway.components.prepare_data.sources.tables.row_checks import RowChecks
from slipway.components.prepare_data.sources.tables.schema import read_schema
from slipway.core.errors import UserError
from slipway.core.manifest import TaskName
from slipway.core.paths import local_path
from slipway.core.tables.batch import Batch, Section, TableFile
from slipway.core.tables.cells import PlainTable
from slipway.core.tables.formats import FORMATS, open_table

# Rows of a table are listed in parts of this size in memory, or in this number of parts if they are larger.
PART_BYTES, MAX_PARTS = 32 << 20, 256
# The first bytes of tables that are not CSV.
PARQUET = b"PAR1"
OTHER_FORMATS = {PARQUET: "a Parquet file", b"PK\3\4": "an Excel or zip file", b"\x1f\x8b": "a gzip file"}


class TablePart(NamedTuple):
    """A part of the rows: its number, and the section of the file; None for the whole file."""

    number: int
    section: Section | None


class InputTable:
    """A CSV or Parquet file of examples.

    Args:
        argument: The path or gs:// URI of the file.
        settings: The user's settings.
        group_column: The column of the group, if data.group_by is set.
        task: What is learned.
        cells: The cells of its columns, if they are counted already: see `count_cells`.
        ending: The file name extension of its format; None if that is the prefix of data.source.

    Attributes:
        path: The file.
        task: What is learned.
        item: What a row is counted by: a line, or a row.
        header: The columns.
        schema: The kinds of the columns.
        mistake: Returns the error of the table with a message, `nearest` and `fix`.

    Raises:
        UserError: The file cannot be read, or columns are missing or cannot be inputs.
    """

    def __init__(
        self,
        argument: str,
        settings: DataSettings,
        group_column: str | None,
        task: TaskName,
        cells: Mapping[str, Cells] | None = None,
        ending: str | None = None,
    ) -> None:
        self.path = local_path(argument).expanduser().absolute()
        self.task = task
        self.mistake = functools.partial(source_error, settings.source, allowed=COLUMNS)
        self._settings = settings
        self._ending = ending or f".{settings.source.partition(':')[0]}"
        self._header_reader = HeaderReader(settings, group_column, self.mistake)
        self.infer(whole=False, cells=cells)

    @property
    def has_image(self) -> bool:
        """Whether the table is a list of images."""
        return "image" in self.header.columns

    @property
    def has_groups(self) -> bool:
        """Whether the table has the column of data.group_by."""
        return "group" in self.header.columns

    def infer(self, *, whole: bool, cells: Mapping[str, Cells] | None = None) -> None:
        """Read the header and the schema; see `read_schema`."""
        try:
            with self.path.open("rb") as file:
                table = self._open(file)
                self.item = table.item
                self._header_reader.forget_image(table, self.path.parent)
                self.header = self._header_reader.read(table)
                self._refuse_pattern()
                self.schema = read_schema(
                    table, self.path, self.header, self._settings, self.task, self.mistake, whole=whole, cells=cells
                )
        except OSError as error:
            raise self.mistake(f"{self.path} cannot be read: {error.strerror}.") from None

    def sections(self) -> list[Section | None]:
        """Return sections of the file that can be listed independently; None for the whole file."""
        with self.path.open("rb") as file:
            table = self._open(file)
            first = next(iter(table.batches()), None)
            if first is None:
                return [None]
            size = max(PART_BYTES, self.path.stat().st_size // MAX_PARTS)
            row_size = sum(column.nbytes for column in first.columns) // len(first) + 1
            return [*table.divided(size // row_size + 1)]

    def listed(self, part: TablePart, ignored: Ignored, scratch: Path) -> Iterator[tuple[Header, Batch, ListedRows]]:
        """Yield the rows of a part with their cells; write their features to a spool file in `scratch`."""
        layout = self.schema.layout
        with open_file(self.path, FORMATS[self._ending].read_bytes) as file:
            table = self._open(file)
            header = self._header_reader.read(table)  # other columns than before are an error
            checks = RowChecks(self.path, self.item, header, self.schema, self._settings.has_gaps, self.mistake)
            with RowSpool(scratch, layout, part.number) if layout.kinds else nullcontext() as spool:
                batches = self._not_empty(table.batches(part.section))
                for batch, rows in TableLister(checks).rows(batches, ignored, spool):
                    yield header, batch, rows

    def _not_empty(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        batch = None
        for batch in batches:
            yield batch
        if batch is None:
            raise self.mistake(f"{self.path} lists no {'image' if self.has_image else 'row'}s.")

    def _open(self, file: IO[bytes]) -> TableFile:
        """Return the table in the file."""
        if self._ending == ".csv":
            start = file.read(4)
            for first, other in OTHER_FORMATS.items():
                if start.startswith(first):
                    fix = "save the table as a CSV file"
                    if first == PARQUET:
                        fix = f"--set data.source=parquet:{self._settings.source.partition(':')[2]}"
                    raise self.mistake(f"{self.path} is {other}, not CSV.", fix=fix)
            file.seek(0)
        table = open_table(file, self.path, self._ending, self.mistake)
        formats, markers = self._settings.number_format, self._settings.missing_values
        for name in formats:
            if name not in table.names:
                raise UserError.unknown("column", name, table.names, setting="data.number_format")
        return PlainTable(table, formats, markers) if formats or markers else table

    def _refuse_pattern(self) -> None:
        patterns = {"group": self._settings.group_by, "order": self._settings.order_by}
        for use, pattern in patterns.items():
            if pattern is not None and use not in self.header.columns and self.header.key is None:
                raise UserError(
                    f"The rows of {self.path} have no names in which data.{use}_by could be found.",
                    setting=f"data.{use}_by",
                    value=pattern,
                    allowed="column:NAME; a regular expression only with data.id",
                    fix=f"--set data.{use}_by=column:NAME",
                )
