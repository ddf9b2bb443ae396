"""Memory use does not grow with the number of images."""

from __future__ import annotations

import gc
import multiprocessing
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway.components.prepare_data import prepare as prepare_module
from slipway.components.prepare_data.listing import conflicts, entries, lists
from slipway.components.prepare_data.listing import parts as listing_parts
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.validation import suspicions
from slipway.components.prepare_data.writing import shards
from slipway.core.tables import csv_file

pytestmark = pytest.mark.slow

# A list of all examples would need 300 bytes each (the key alone has 192): 1.3 MB more for many than for few.
FEW, MANY = 500, 5_000
MAX_MORE = 400_000
# The list of the examples of one shard is held.
SHARDS = 10


def comment(number: int) -> bytes:
    """Return a chunk that makes a PNG file unique."""
    content = b"tEXtComment\0%d" % number
    return struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers that few examples fill."""
    monkeypatch.setattr(listing_parts, "ENTRIES_LISTED", 100)
    monkeypatch.setattr(entries, "ROWS_READ", 100)
    monkeypatch.setattr(entries, "PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(shards, "BUFFER_BYTES", 1 << 14)


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
    for source in ("digits", f"images:{root / str(FEW)}"):  # triggers the lazy imports, which forks would repeat
        prepare_module.prepare(DataSettings(source=source, store=str(root), check="header"), 1)
    return {count: root / str(count) for count in (FEW, MANY)}


def peak(settings: DataSettings) -> int:
    """Return the peak memory of preparing a data set, in bytes.

    In a fork: threads and garbage of other tests stay in this process.
    """
    with multiprocessing.get_context("fork").Pool(1, initializer=gc.freeze) as pool:
        return pool.apply(_peak, [settings])


def _peak(settings: DataSettings) -> int:
    tracemalloc.start()
    prepare_module.prepare(settings, SHARDS)
    return tracemalloc.get_traced_memory()[1]


def more_for_many(folders: dict[int, Path], store: Path, group_by: str | None = None) -> int:
    """Return the difference of peak memory, in bytes, between many and few images."""
    peaks = {}
    for count, folder in folders.items():
        settings = DataSettings(
            source=f"images:{folder}", store=str(store / str(count)), check="header", group_by=group_by
        )
        peaks[count] = peak(settings)
        prepared = prepare_module.prepare(settings, SHARDS)
        assert sum(split.examples for split in prepared.manifest.splits.values()) == count
    print(peaks)
    return peaks[MANY] - peaks[FEW]


@pytest.mark.parametrize("group_by", [None, r"/(\d+)\d\.png"])
def test_ten_times_the_images_take_the_same_memory(
    folders: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_by: str | None
) -> None:
    assert more_for_many(folders, tmp_path, group_by) < MAX_MORE


def test_a_list_that_is_held_in_memory_would_be_noticed(
    folders: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "PIECE_BYTES", 1 << 30)
    assert more_for_many(folders, tmp_path) > MAX_MORE


def write_table(folder: Path, rows: int) -> Path:
    table = folder / f"{rows}.csv"
    lines = (f"{number / 7},{number % 100},{'abc'[number % 3]}" for number in range(rows))
    table.write_text("\n".join(["one,two,label", *lines]))
    return table


def table_peak(folder: Path, rows: int) -> int:
    """Return the peak memory of preparing a table, in bytes."""
    return peak(DataSettings(source=f"csv:{write_table(folder, rows)}", store=str(folder / f"sets of {rows}")))


@pytest.mark.parametrize("in_one_piece", [False, True])
def test_ten_times_the_rows_take_the_same_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_one_piece: bool
) -> None:
    monkeypatch.setattr(csv_file, "BATCH_BYTES", 1 << 15)
    monkeypatch.setattr(lists, "BATCH_BYTES", 1 << 17)
    monkeypatch.setattr(entries, "ROWS_READ", 1000)
    monkeypatch.setattr(conflicts, "MAX_EXAMPLES", 1000)
    monkeypatch.setattr(suspicions, "MAX_EXAMPLES", 100)
    monkeypatch.setattr(entries, "PIECE_BYTES", 1 << (30 if in_one_piece else 16))
    prepare_module.prepare(DataSettings(source=f"csv:{write_table(tmp_path, 100)}", store=str(tmp_path)), 1)  # imports
    few, many = table_peak(tmp_path, 2000), table_peak(tmp_path, 20_000)
    print(few, many)
    assert (many - few > MAX_MORE) == in_one_piece, (few, many)
