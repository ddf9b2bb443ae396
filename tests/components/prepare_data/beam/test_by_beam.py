"""Beam's workers list the parts of a source as local processes do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.csv
import pyarrow.parquet
import pytest

from slipway.components.prepare_data.beam import workers as by_beam
from slipway.components.prepare_data.beam.workers import ListTask
from slipway.components.prepare_data.encoding.messages import example
from slipway.components.prepare_data.listing.split import Summary
from slipway.components.prepare_data.prepare import list_source, prepare
from slipway.components.prepare_data.publishing import store as store_module
from slipway.components.prepare_data.publishing.store import Store
from slipway.components.prepare_data.settings import BeamSettings, DataSettings
from slipway.components.prepare_data.sources import open_source
from slipway.components.prepare_data.sources.source import Ignored
from slipway.components.prepare_data.sources.tables import input_table
from slipway.core.errors import UserError
from slipway.core.manifest import TaskName
from slipway.core.tables import csv_file
from tests.components.prepare_data.beam.test_beam import HERE, same
from tests.components.prepare_data.conftest import encoded_image
from tests.components.prepare_data.sources.test_tfrecord import damaged, feature, framed, record

MakeSettings = Callable[..., DataSettings]
Listed = list[list[ListTask]]


class Case(NamedTuple):
    """A source, the settings with which it is read, and its number of parts."""

    write: Callable[[Path], str]
    parts: int
    settings: Mapping[str, Any]
    task: TaskName = "classification"


def write_images(folder: Path) -> str:
    """Write images without keys in three files."""
    for offset, name in enumerate("abc"):
        images = [encoded_image(offset * 1000 + number) for number in range(40)]
        data = b"".join(record(image, number % 2) for number, image in enumerate(images))
        (folder / f"{name}.tfrecord").write_bytes(data)
    return f"tfrecord:{folder}"


def write_damaged(folder: Path) -> str:
    """Write images, of which three are damaged."""
    source = write_images(folder)
    damaged(folder / "a.tfrecord")
    return source


def write_records(folder: Path) -> str:
    """Write examples of which several are equal, in two files."""
    for file in range(2):
        rows = [{"x": float(number // 4 % 30), "label": number % 2} for number in range(60 + file)]
        messages = [example((name.encode(), feature(value)) for name, value in row.items()) for row in rows]
        (folder / f"{file}.tfrecord").write_bytes(b"".join(map(framed, messages)))
    return f"tfrecord:{folder}"


def write_table(folder: Path) -> str:
    """Write a table with quoted cells, equal rows, splits and missing numbers."""
    rows = [
        f'{number / 7},"{"xyz"[number % 3]}, {"w" * (number % 5)}\nand {number % 2}",'
        f"{number if number % 10 else ''},{'test' if number % 7 == 0 else 'train'},{number % 11 / 3}"
        for number in [*range(1500), *range(200)]
    ]
    (folder / "table.csv").write_text("\n".join(["size,kind,age,split,label", *rows]))
    return f"csv:{folder / 'table.csv'}"


def write_parquet(folder: Path) -> str:
    """Write columns of numbers, texts and several labels, in two row groups."""
    numbers = range(1500)
    table = pyarrow.table(
        {
            "size": [number / 7 for number in numbers],
            "kind": [f"kind {number % 9}" for number in numbers],
            "patient": [f"p{number // 5}" for number in numbers],
            "label": ["|".join("xyz"[: 1 + number % 3]) for number in numbers],
        }
    )
    pyarrow.parquet.write_table(table, folder / "table.parquet", row_group_size=800)
    return f"parquet:{folder / 'table.parquet'}"


LABEL = {"label": {"classes": 2}}
CASES = {
    "images": Case(write_damaged, 3, {"features": {"image": "image", **LABEL}, "skip_corrupt": 0.05}),
    "records": Case(write_records, 2, {"features": {"x": "number", **LABEL}, "inputs": ["x"], "group_by": "column:x"}),
    "csv": Case(write_table, 8, {}, "regression"),
    "parquet": Case(
        write_parquet, 5, {"group_by": "column:patient", "order_by": "column:size", "horizon": 3}, "multilabel"
    ),
}


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Listed:
    """Small parts of tables; receives the parts of each pipeline that lists."""
    monkeypatch.setattr(input_table, "PART_BYTES", 1 << 14)
    found: Listed = []
    run = by_beam.run_by_beam

    def recorded(beam: BeamSettings, work: Any, tasks: Sequence[Any], *others: Any) -> int:
        found.extend([[*tasks]] if isinstance(tasks[0], ListTask) else [])
        return run(beam, work, tasks, *others)

    monkeypatch.setattr(by_beam, "run_by_beam", recorded)
    return found


def listing(settings: DataSettings, task: TaskName, folder: Path) -> tuple[Summary, Ignored]:
    """List a source, by Beam if the settings have it; return what its listing says."""
    source = open_source(settings, task)
    folder.mkdir()
    with contextlib.ExitStack() as folders:
        workers = by_beam.BeamWorkers(settings.beam) if settings.beam else None
        lister = (workers, Store(settings.store, "name"), folders) if workers else None
        found = list_source(source, settings, folder, lister)
        return found.summary(), found.ignored


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_listing_and_the_data_set_are_the_same(
    make_settings: MakeSettings, tmp_path: Path, listed: Listed, name: str
) -> None:
    case = CASES[name]
    (tmp_path / "source").mkdir()
    source = case.write(tmp_path / "source")
    local = make_settings(source, **case.settings, name="name")
    by_workers = make_settings(source, **case.settings, name="name", beam=HERE, store=str(tmp_path / "beam"))
    assert listing(local, case.task, tmp_path / "one") == listing(by_workers, case.task, tmp_path / "two")
    assert [*map(len, listed)] == [case.parts]
    assert not [*(tmp_path / "beam").glob("*/.*.work")]
    one, other = prepare(local, 3, task=case.task), prepare(by_workers, 3, task=case.task)
    assert same(one, other)
    assert [*map(len, listed)] == [case.parts] * 2
    assert other.manifest.written_by.startswith("Apache Beam")
    assert {path.name for path in other.folder.parent.iterdir()} == {".listings", other.folder.name}


@pytest.mark.slow
def test_columns_that_turn_out_to_be_text_are_listed_again(
    make_settings: MakeSettings, tmp_path: Path, listed: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"{number},{number % 2}" for number in range(20_000)]
    (tmp_path / "table.csv").write_text("\n".join(["x,label", *rows, "unknown,1"]))
    monkeypatch.setattr(csv_file, "BATCH_BYTES", 1 << 12)
    monkeypatch.setattr(input_table, "PART_BYTES", 1 << 17)
    source = f"csv:{tmp_path / 'table.csv'}"
    one = prepare(make_settings(source, inputs=["x"]), 2)
    other = prepare(make_settings(source, inputs=["x"], beam=HERE, store=str(tmp_path / "beam")), 2)
    assert same(one, other)
    assert len(listed) == 2
    assert one.manifest.inputs["x"].kind == "category"


@pytest.mark.slow
def test_the_mistake_is_the_one_that_processes_find(
    make_settings: MakeSettings, tmp_path: Path, listed: Listed
) -> None:
    rows = [f"{number},a" for number in range(3000)]
    rows[1700], rows[2900] = "x,a", "y,a"
    (tmp_path / "table.csv").write_text("\n".join(["number,label", *rows]))
    settings = make_settings(f"csv:{tmp_path / 'table.csv'}", features={"number": "number"}, beam=HERE)
    with pytest.raises(UserError, match=r"Line 1702 of .* has an invalid number .*'x'"):
        prepare(settings, 1)
    assert len(listed[0]) == 3
    assert not Path(settings.store).exists()


def kill(settings: DataSettings, monkeypatch: pytest.MonkeyPatch, finished: int | None) -> None:
    """Leave what a run leaves that is killed after it has listed so many parts, or by default while it writes."""
    run = by_beam.run_by_beam

    def killed(beam: BeamSettings, work: Any, tasks: Sequence[Any], *others: Any) -> int:
        done = run(beam, work, tasks[:finished], *others)
        if finished is None and isinstance(tasks[0], ListTask):
            return done
        patch.setattr(store_module.shutil, "rmtree", lambda *arguments, **options: None)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(by_beam, "run_by_beam", killed)
        prepare(settings, 3, task="regression")


@pytest.mark.slow
@pytest.mark.parametrize(("finished", "left"), [(2, 2), (8, 8), (None, 8)])
def test_the_lists_of_a_killed_run_are_used(
    make_settings: MakeSettings,
    tmp_path: Path,
    listed: Listed,
    monkeypatch: pytest.MonkeyPatch,
    finished: int | None,
    left: int,
) -> None:
    source = write_table(tmp_path)
    expected = prepare(make_settings(source), 3, task="regression")
    settings = make_settings(source, beam=HERE, store=str(tmp_path / "beam"))
    kill(settings, monkeypatch, finished)
    assert len([*(tmp_path / "beam").rglob("part-*.result")]) == left
    listed.clear()
    assert same(prepare(settings, 3, task="regression"), expected)
    assert [*map(len, listed)] == ([8 - left] if left < 8 else [])
    assert not [*(tmp_path / "beam").glob("*/.*.work")]


@pytest.mark.slow
def test_the_lists_of_a_source_that_has_changed_are_not_used(
    make_settings: MakeSettings, tmp_path: Path, listed: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_table(tmp_path)
    settings = make_settings(source, beam=HERE, store=str(tmp_path / "beam"))
    kill(settings, monkeypatch, 8)
    path = tmp_path / "table.csv"
    path.write_text(path.read_text().replace("\n0.0,", "\n0.5,"))
    listed.clear()
    assert same(prepare(settings, 3, task="regression"), prepare(make_settings(source), 3, task="regression"))
    assert [*map(len, listed)] == [8]
    assert not [*(tmp_path / "beam").glob("*/.*.work")]


def test_rows_with_ids_are_listed_by_one_process(make_settings: MakeSettings, tmp_path: Path, listed: Listed) -> None:
    rows = [f"row {number},{number / 7},{number % 2}" for number in range(3000)]
    (tmp_path / "table.csv").write_text("\n".join(["name,size,label", *rows]))
    settings = make_settings(f"csv:{tmp_path / 'table.csv'}", id="name", beam=HERE)
    listing(settings, "classification", tmp_path / "scratch")
    assert listed == []
