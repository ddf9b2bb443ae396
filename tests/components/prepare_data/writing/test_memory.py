"""Memory use does not grow with the number of images."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from slipway.components.prepare_data import prepare as prepare_module
from slipway.components.prepare_data.listing import index, table_index
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.writing import set_writer
from slipway.core.tables import csv_file

pytestmark = pytest.mark.slow

# A list of all examples would need 300 bytes each (the key alone has 192): 5.4 MB more for many than for few.
# Of rows: a tenth of what the list of 50,000 takes.
MAX_MORE_OF_TABLE = 1 << 20
FEW, MANY = 2_000, 20_000
MAX_MORE = 3_000_000


class WorkersInThisProcess:
    """Replaces the worker processes, so that all allocations are in this process."""

    def __init__(self, work: Callable[[Any, Callable[[int], None]], Any], count: int) -> None:
        self._work = work

    def __enter__(self) -> WorkersInThisProcess:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(self, tasks: Sequence[Any], tick: object = None, meanwhile: object = None) -> Iterator[tuple[int, Any]]:
        for number, task in enumerate(tasks):
            yield number, self._work(task, lambda count: None)


def comment(number: int) -> bytes:
    """Return a chunk that makes a PNG file unique."""
    content = b"tEXtComment\0%d" % number
    return struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, encoded: Callable[..., bytes]) -> dict[int, Path]:
    """Sources of few and of many images, with long names."""
    root = tmp_path_factory.mktemp("memory")
    image = encoded(1)
    for count in (FEW, MANY):
        (root / str(count) / "a").mkdir(parents=True)
        for number in range(count):
            path = root / str(count) / "a" / f"{number:0186d}.png"
            path.write_bytes(image[:-12] + comment(number) + image[-12:])
    prepare_module.prepare(DataSettings(source="digits", store=str(root)), 1)  # triggers the lazy imports
    return {count: root / str(count) for count in (FEW, MANY)}


def more_for_many(
    folders: dict[int, Path], store: Path, monkeypatch: pytest.MonkeyPatch, group_by: str | None = None
) -> int:
    """Return the difference of peak memory, in bytes, between many and few images."""
    for module in (prepare_module, set_writer):
        monkeypatch.setattr(module, "Workers", WorkersInThisProcess)
    peaks = {}
    for count, folder in folders.items():
        settings = DataSettings(
            source=f"images:{folder}", store=str(store / str(count)), check="header", group_by=group_by
        )
        tracemalloc.start()
        prepared = prepare_module.prepare(settings, 1)
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sum(split.examples for split in prepared.manifest.splits.values()) == count
    print(peaks)
    return peaks[MANY] - peaks[FEW]


@pytest.mark.parametrize("group_by", [None, r"/(\d+)\d\.png"])
def test_ten_times_the_images_take_the_same_memory(
    folders: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_by: str | None
) -> None:
    assert more_for_many(folders, tmp_path, monkeypatch, group_by) < MAX_MORE


def test_a_list_that_is_held_in_memory_would_be_noticed(
    folders: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MAX_ROWS_DEALT", 10**9)
    assert more_for_many(folders, tmp_path, monkeypatch) > MAX_MORE


def table_peak(folder: Path, rows: int) -> int:
    """Return the peak memory of preparing a table, in bytes."""
    table = folder / f"{rows}.csv"
    lines = (f"{number / 7},{number % 100},{'abc'[number % 3]}" for number in range(rows))
    table.write_text("\n".join(["one,two,label", *lines]))
    settings = DataSettings(source=f"csv:{table}", store=str(folder / f"sets of {rows}"))
    tracemalloc.start()
    prepare_module.prepare(settings, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("in_one_piece", [False, True])
def test_ten_times_the_rows_take_the_same_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_one_piece: bool
) -> None:
    for module in (prepare_module, set_writer):
        monkeypatch.setattr(module, "Workers", WorkersInThisProcess)
    monkeypatch.setattr(csv_file, "BATCH_BYTES", 1 << 15)
    monkeypatch.setattr(table_index, "BATCH_BYTES", 1 << 17)
    monkeypatch.setattr(table_index, "ROWS_READ", 1000)
    monkeypatch.setattr(table_index, "PIECE_BYTES", 1 << (30 if in_one_piece else 16))
    table_peak(tmp_path, 100)  # triggers the lazy imports
    few, many = table_peak(tmp_path, 5000), table_peak(tmp_path, 50_000)
    assert (many - few > MAX_MORE_OF_TABLE) == in_one_piece, (few, many)
