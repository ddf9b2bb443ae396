"""A table is scanned without writing its data set; what is said of it is what preparing it says."""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.scan_table import scan, scan_table
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.writing.shard_tasks import ShardTasks
from slipway.components.prepare_data.writing.shards import ShardResult
from slipway.core.manifest import Manifest, TaskName
from slipway.core.tables import csv_file

MakeSettings = Callable[..., DataSettings]
RANDOM = random.Random(0)
ROWS = 3000


def write(path: Path, task: TaskName) -> Path:
    """Write a table with gaps, equal rows, conflicts, an input that is the label, and outliers."""
    lines = ["number,gaps,count,city,day,copy,label"]
    for index in range(ROWS):
        label = RANDOM.choice(["yes", "no", "yes; no" if task == "multilabel" else "yes"])
        if task == "regression":
            label = f"{1e7 if index % 500 == 7 else RANDOM.uniform(1, 9):.3f}"
        cells = [f"{RANDOM.gauss(0, 1):.4f}", RANDOM.choice(["", "NA", f"{RANDOM.random():.4f}"]),
                 f"{RANDOM.randrange(9)}", RANDOM.choice(["Bern", "Zug", ""]), f"2024-03-{RANDOM.randrange(10, 30)}",
                 label, label]  # fmt: skip
        lines += [",".join(cells)] * RANDOM.choice([1, 1, 1, 2])
        if index % 9 == 0:
            lines.append(",".join([*cells[:-2], cells[-2], "3" if task == "regression" else "no"]))
    path.write_text("\n".join([*lines, ""]))
    return path


def about(manifest: Manifest) -> Manifest:
    """Return the manifest without the shards and what they are called by."""
    splits = {name: split.model_copy(update={"shards": []}) for name, split in manifest.splits.items()}
    return manifest.model_copy(update={"fingerprint": "", "splits": splits})


@pytest.mark.parametrize(
    ("task", "more"),
    [
        ("classification", {}),
        ("classification", {"duplicates": "drop", "missing": "refuse", "skip_corrupt": 0.9}),
        ("classification", {"group_by": "column:day"}),
        ("multilabel", {}),
        ("regression", {}),
        ("regression", {"target": "log"}),
    ],
)
def test_a_scan_says_what_preparing_says(
    tmp_path: Path,
    make_settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
    task: TaskName,
    more: dict[str, object],
) -> None:
    monkeypatch.setattr(csv_file, "BATCH_BYTES", 1 << 14)
    settings = make_settings(f"csv:{write(tmp_path / 't.csv', task)}", **more)
    prepared = prepare(settings, 1, task=task).manifest
    scanned = scan(settings, task)
    assert about(scanned.manifest) == about(prepared)
    assert prepared.notes
    assert not any(split.shards for split in scanned.manifest.splits.values())


def test_an_unwritten_shard_has_the_bytes_of_a_written_one(
    tmp_path: Path, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(f"csv:{write(tmp_path / 't.csv', 'classification')}")
    prepared = prepare(settings, 1)
    files = [shard.file for split in prepared.manifest.splits.values() for shard in split.shards]
    written = [(prepared.folder / file).read_bytes() for file in files]
    read: list[bytes] = []

    def shards(tasks: ShardTasks, results: dict[str, list[ShardResult]]) -> object:
        unwritten = original(tasks, results)
        for file in itertools.chain.from_iterable(unwritten.values()):
            with file.open("rb") as opened:
                read.append(opened.read(7) + opened.read())
        return unwritten

    original = ShardTasks.shards
    monkeypatch.setattr(ShardTasks, "shards", shards)
    scan(settings, "classification")
    assert read == written


@pytest.mark.parametrize(
    ("last", "kind", "missing", "formats"),
    [
        ("7", "number", 2, {}),
        ("", "number", 3, {}),
        ("abc", None, 2, {}),
        ('"1,234.5"', "number", 2, {"x": "1,234.56"}),
    ],
)
def test_later_cells_of_a_column_of_numbers_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, kind: str | None, missing: int, formats: dict[str, str]
) -> None:
    """`slipway init --table` reads most numbers once; where it was mistaken in them, it reads all again."""
    monkeypatch.setattr(csv_file, "BATCH_BYTES", 1 << 12)
    path = tmp_path / "t.csv"
    rows = [f"{number}.5,{number % 3},{number % 2}" for number in range(2500)]
    path.write_text("\n".join(["x,y,label", *rows, ",1,1", "NA,2,0", f"{last},0,1", ""]))
    table = scan_table(path, "label")
    kinds = {name: given.kind for name, given in table.manifest.inputs.items()}
    assert (kinds.get("x"), table.columns["x"].missing) == (kind, missing)
    assert dict(table.settings.number_format) == formats
    assert table.rows == len(rows) + 3


@pytest.mark.parametrize(
    ("written", "order", "expected"),
    [
        ("%Y-%m-%d", "forward", "column:day"),
        ("%d.%m.%Y", "backward", "column:day"),
        ("%Y-%m-%d", "nearly", "column:day"),
        ("%Y-%m-%d", "random", None),
        ("%Y-01-01", "forward", None),  # too few different dates
    ],
)
def test_a_date_that_orders_the_rows_is_proposed_for_the_splits(
    tmp_path: Path, written: str, order: str, expected: str | None
) -> None:
    days = [datetime.date(2024, 1, 28) + datetime.timedelta(days=number) for number in range(200)]
    if order == "backward":
        days.reverse()
    if order == "nearly":
        days[50], days[51] = days[51], days[50]
    if order == "random":
        random.Random(0).shuffle(days)
    table = tmp_path / "t.csv"
    rows = [f"{day.strftime(written)},{number % 7}.5,{'ab'[number % 2]}\n" for number, day in enumerate(days)]
    table.write_text("day,amount,label\n" + "".join(rows))
    result = scan_table(table, "label")
    assert result.settings.order_by == expected
    kinds = {"%Y-%m-%d": None, "%d.%m.%Y": {"day": "date_dmy"}, "%Y-01-01": None}
    assert result.settings.features == (kinds[written] if expected else None)
    assert ("day" in result.manifest.inputs) is (expected is None)
    assert "day" in result.columns
    # It is not proposed where a split would lack a class.
    one_class = [row.replace(",b", ",a") for row in rows[:170]]
    table.write_text("day,amount,label\n" + "".join([*one_class, *rows[170:]]))
    assert scan_table(table, "label").settings.order_by is None
