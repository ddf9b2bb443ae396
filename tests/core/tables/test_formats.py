"""A format of tables is a row of `FORMATS`: whatever opens tables knows it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from slipway.core.errors import UserError
from slipway.core.tables import formats
from slipway.core.tables.csv_file import CsvFile


class TabFile(CsvFile):
    """Stands for the reader of another format."""


def test_a_row_adds_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    row = formats.Format("TSV", f"{__name__}:TabFile", 1)
    monkeypatch.setitem(formats.FORMATS, ".tsv", row)
    assert formats.is_table(Path("rows.TSV"))
    table = formats.open_table(io.BytesIO(b"a,b\n1,2\n"), "rows.tsv", ".tsv", UserError)
    assert type(table) is TabFile
    assert table.names == ["a", "b"]


@pytest.mark.parametrize("row", formats.FORMATS.values(), ids=lambda row: row.title)
def test_every_format_has_a_reader(row: formats.Format) -> None:
    assert row.read_bytes >= 1 << 20
    with pytest.raises(UserError):
        formats.open_table(io.BytesIO(b"\xff\n"), "it", f".{row.title.lower()}", UserError)
