"""Tables are prepared column by column: their data sets are, byte for byte, those of preparing row by row."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pyarrow
import pyarrow.parquet
import pytest

from slipway.components.prepare_data.listing import entries
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import open_source
from slipway.components.prepare_data.sources.tables import input_table
from slipway.core.errors import UserError
from slipway.core.manifest import TaskName
from slipway.core.tables import csv_file

ROWS = 1500
CITIES = ("Geneva", "Bern", " Basel ", "Zug", "")
# Texts on which CSV readers, or those of numbers, differ.
ODD = (
    "Zürich",
    "O'Hare",
    'say "ah"',
    "a\\b",
    "two\nlines",
    "a\tb",
    "\u00a0nbsp\u00a0",
    "x\x1f",
    "\ufeffbom",
    "1_0",
    "🚢",
)
# Other ways to write numbers.
WRITTEN = ("1e3", "+5", ".5", "-0", "1e-400", "٣", " 7 ", "0.1", "16777217", "1E+2", "-.0e0", "3.4028235e38")


class Table(NamedTuple):
    """A generated table, how it is prepared, and the digest of the data set that it became row by row."""

    lines: Callable[[random.Random], Iterator[list[str]]]
    expected: str
    settings: Mapping[str, object] = MappingProxyType({})
    task: TaskName = "classification"
    end: str = "\n"
    encoding: str = "utf-8"
    replicas: int = 2


def numbers(rng: random.Random) -> Iterator[list[str]]:
    yield ["b", "a", "key", "zone", "image_width", "label"]
    for _ in range(ROWS):
        yield [f"{rng.gauss(0, 10 ** rng.randrange(-3, 3)):.6g}" for _ in range(5)] + [
            rng.choice(["yes", "no", "maybe"])
        ]


def houses(rng: random.Random) -> Iterator[list[str]]:
    yield ["area", "city", "rooms", "price", "zip"]
    for _ in range(ROWS):
        yield [
            f"{rng.uniform(20, 200):.2f}", rng.choice(CITIES), str(rng.randrange(1, 9)),
            f"{rng.uniform(1e5, 1e6):.0f}", f"{rng.randrange(1000, 1100)}",
        ]  # fmt: skip


def with_gaps(rng: random.Random) -> Iterator[list[str]]:
    for index, row in enumerate(houses(rng)):
        if index and rng.random() < 0.03:
            row[rng.choice([0, 2, 3])] = rng.choice(["", "NA", "nan", "?", "inf", "-nan"])
        yield row


def odd(rng: random.Random) -> Iterator[list[str]]:
    yield ["text", "written", "plain", "label", "split"]
    for _ in range(ROWS):
        split = rng.choice(["train", "Val", "TEST", "train"])
        yield [rng.choice(ODD), rng.choice(WRITTEN), f"{rng.random():.3f}", rng.choice(["ä", "b", "c'"]), split]


def copies(rng: random.Random) -> Iterator[list[str]]:
    yield ["one", "two", "label", "split"]
    for _ in range(ROWS):
        split = rng.choice(["train", "validation", "test", "train"])
        yield [str(rng.randrange(12)), str(rng.randrange(12)), rng.choice("ab"), split]


def patients(rng: random.Random) -> Iterator[list[str]]:
    yield ["patient", "age", "label", "note"]
    for _ in range(ROWS):
        yield [f"p{rng.randrange(200)}", str(rng.randrange(90)), rng.choice(["ill", "well"]), f"note {rng.random()}"]


def beaches(rng: random.Random) -> Iterator[list[str]]:
    yield ["height", "label"]
    for _ in range(ROWS):
        yield [f"{rng.random():.4f}", "|".join(rng.sample(["sea", "sun", "sand"], rng.randrange(4)))]


def kinds(rng: random.Random) -> Iterator[list[str]]:
    yield ["vector", "count", "words", "label", "x"]
    for _ in range(ROWS):
        yield [
            f"{rng.random():.3f} {rng.random():.3f}",
            str(rng.randrange(9)),
            "a b",
            rng.choice("uv"),
            str(rng.random()),
        ]


TABLES = {
    "numbers": Table(numbers, "eec5a7447624613f"),
    "numbers in several shards": Table(numbers, "b5b07963f92ddc71", replicas=7),
    "categories and a target": Table(
        houses, "ae7313c3ead1e85d", {"label": "price", "features": {"zip": "category"}}, "regression"
    ),
    "gaps": Table(with_gaps, "9347071b30f80a85", {"label": "price", "skip_corrupt": 0.1}, "regression", "\r\n"),
    "gaps refused": Table(
        with_gaps,
        "b7d529d8674a1b24",
        {"label": "price", "skip_corrupt": 0.1, "missing": "refuse"},
        "regression",
        "\r\n",
    ),
    "odd texts": Table(odd, "6805bf06cecbe5d8", encoding="utf-8-sig"),
    "copies": Table(copies, "8f9b733959b4c76a"),
    "groups": Table(patients, "19f58505c1e44d1c", {"group_by": "column:patient", "inputs": ["age"]}),
    "several labels": Table(beaches, "81ab7c3627062ad8", {}, "multilabel"),
    "kinds": Table(
        kinds,
        "0516061d7f2e0156",
        {
            "features": {"vector": "number[2]", "count": "integer", "words": "text[]"},
            "inputs": ["vector", "count", "x"],
        },
    ),
    "some inputs": Table(
        houses,
        "044eb0781eb77921",
        {
            "label": "rooms",
            "inputs": ["area"],
            "features": {"zip": "number"},
            "split": {"train": 0.6, "validation": 0.2, "test": 0.2},
        },
    ),
}


def content(prepared: Prepared) -> str:
    """Return a digest of a data set's fingerprint, shards, hashes of keys, statistics, notes and skipped examples."""
    about = {"fingerprint", "splits", "inputs", "target", "features", "notes", "skipped_count", "skipped"}
    # The shape says the same; no column has dates, or a format of numbers.
    fields = {"nullable", "order", "written", "missing"}
    unused = {"inputs": {"__all__": fields}, "target": fields}
    digest = hashlib.sha256(prepared.manifest.model_dump_json(include=about, exclude=unused).encode())
    for path in sorted(prepared.folder.glob("*.u64")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def written(cell: str) -> str:
    quoted = any(mark in cell for mark in '",\n') or cell.startswith("\ufeff")
    return '"' + cell.replace('"', '""') + '"' if quoted else cell


def write(path: Path, table: Table) -> None:
    lines = [",".join(map(written, row)) for row in table.lines(random.Random(7))]
    if table.lines is houses:
        lines[3:3] = [""]  # an empty line
    path.write_bytes((table.end.join(lines) + (table.end if len(lines) % 2 else "")).encode(table.encoding))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_becomes_the_same_data_set(
    tmp_path: Path, make_settings: Callable[..., DataSettings], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    table = TABLES[name]
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "table.csv", table)
    settings = make_settings("csv:table.csv", **table.settings)
    prepared = prepare(settings, table.replicas, task=table.task)
    assert content(prepared) == table.expected


@pytest.mark.parametrize("name", ["numbers in several shards", "copies", "several labels"])
@pytest.mark.usefixtures("processes")
def test_pieces_on_disk_change_nothing(
    tmp_path: Path, make_settings: Callable[..., DataSettings], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(entries, "PIECE_BYTES", 1 << 12)
    monkeypatch.setattr(entries, "ROWS_READ", 100)
    test_a_table_becomes_the_same_data_set(tmp_path, make_settings, monkeypatch, name)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_listed_in_parts_as_in_one(
    tmp_path: Path, make_settings: Callable[..., DataSettings], monkeypatch: pytest.MonkeyPatch, name: str, ending: str
) -> None:
    table = TABLES[name]
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "table.csv", table)
    if ending == "parquet":
        as_texts(tmp_path / "table.csv")
    found = []
    for size in (input_table.PART_BYTES, 1 << 13):
        monkeypatch.setattr(input_table, "PART_BYTES", size)
        settings = make_settings(f"{ending}:table.{ending}", store=str(tmp_path / str(size)), **table.settings)
        assert (len(open_source(settings, table.task).parts()) > 3) == (size == 1 << 13)
        found.append(prepare(settings, table.replicas, task=table.task).manifest)
    about = {"splits", "inputs", "target", "features", "skipped_count", "skipped"}
    assert found[0].model_dump(include=about) == found[1].model_dump(include=about)
    assert found[0].fingerprint == found[1].fingerprint or found[0].skipped_count


def as_texts(path: Path) -> None:
    """Write a Parquet file with the same cells beside a CSV file."""
    with path.open("rb") as file:
        table = csv_file.CsvFile(file, path, UserError)
        batches = [pyarrow.record_batch(batch.columns, table.names) for batch in table.batches()]
    pyarrow.parquet.write_table(pyarrow.Table.from_batches(batches), path.with_suffix(".parquet"))


@pytest.mark.usefixtures("processes")
def test_the_first_mistake_of_all_parts_is_raised(
    tmp_path: Path, make_settings: Callable[..., DataSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second part is read faster than the first one, whose mistake comes late."""
    monkeypatch.setattr(input_table, "PART_BYTES", 1 << 16)
    rows = [f"{number},a" for number in range(20_000)]
    table = tmp_path / "table.csv"
    parts = open_source(make_settings(f"csv:{write_rows(table, rows)}")).parts()
    assert len(parts) > 2
    end = parts[0].section.rows
    rows[end - 1], rows[end], rows[-1] = "x,a", "y,a", "z,a"
    settings = make_settings(f"csv:{write_rows(table, rows)}", features={"number": "number"}, workers=3)
    for _ in range(3):
        with pytest.raises(UserError, match=f"Line {end + 1} of .* has an invalid number .*'x'"):
            prepare(settings, 1)


def write_rows(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(["number,label", *rows]))
    return path


class ImageList(NamedTuple):
    """The additional columns of a list of images, how it is prepared, and the digest of its data set, as of a table."""

    expected: str
    header: str = ""
    row: Callable[[int], str] = lambda _: ""
    settings: Mapping[str, object] = MappingProxyType({})
    task: TaskName = "classification"
    image: str = "image"


def notes(number: int) -> str:
    texts = f'note {number % 7},"{ODD[number % len(ODD)].replace(chr(34), chr(34) * 2)}"'
    return f"{texts},{number},{number / 8} {-number},0 0 0.5 {number / 90},{'' if number % 9 == 4 else number / 3}"


IMAGE_LISTS = {
    "no columns": ImageList("e848a3935c0224e4", "label", lambda number: "ab"[number % 2]),
    "kinds": ImageList(
        "8cb788ee949e3b78", "label,split,note,odd,count,pair,box,weight",
        lambda number: f"{'ab'[number % 2]},{('train', 'Val', 'TEST', 'train')[number // 2 % 4]},{notes(number)}",
        {
            "features": {"count": "integer", "pair": "number[2]", "box": "bounding_box", "weight": "number"},
            "inputs": ["image", "pair", "weight", "note"], "missing": "mean",
        },
    ),
    "skipped": ImageList(
        "19395e08fe0104a0", "target,weight", lambda number: f"{'' if number % 9 == 4 else number},{number % 8 or 'NA'}",
        {"label": "target", "features": {"weight": "number"}, "inputs": ["image", "weight"], "missing": "refuse",
         "skip_corrupt": 0.5},
        "regression",
    ),
    "groups": ImageList(
        "61582204cd992b76", "patient,labels", lambda number: f"p{number // 3},{'|'.join('xyz'[: number % 4])}",
        {"label": "labels", "group_by": "column:patient"}, "multilabel",
    ),
    "second images": ImageList(
        "87179a02e01ce234", "label,mask,more",
        lambda number: f"{'ab'[number % 2]},./{89 - number}.png,{number}.png 0.png",
        {"features": {"mask": "image", "more": "image[]"}, "inputs": ["image", "mask"]},
    ),
    "only other images": ImageList(
        "ff18beb7c3cf1eb4", "label,mask,x", lambda number: f"{'ab'[number % 2]},{number % 9}.png,{number % 5}",
        {"features": {"scan": "image", "mask": "image"}, "inputs": ["scan", "mask", "x"]}, image="scan",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGE_LISTS)
def test_a_list_of_images_becomes_the_same_data_set(
    tmp_path: Path, make_settings: Callable[..., DataSettings], monkeypatch: pytest.MonkeyPatch, encoded, name: str
) -> None:
    listed = IMAGE_LISTS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(csv_file, "BATCH_BYTES", 1 << 11)
    for number in range(90):
        (tmp_path / f"{number}.png").write_bytes(encoded(number))
    lines = [f"{number // (1 + (listed.image == 'scan'))}.png,{listed.row(number)}" for number in range(90)]
    (tmp_path / "list.csv").write_text("\n".join([f"{listed.image},{listed.header}", *lines]))
    prepared = prepare(make_settings("csv:list.csv", **listed.settings), 2, task=listed.task)
    assert content(prepared) == listed.expected


@pytest.mark.parametrize("ids", [True, False])
def test_a_changed_cell_makes_another_data_set(
    tmp_path: Path, make_settings: Callable[..., DataSettings], encoded, *, ids: bool
) -> None:
    """Also where keys and sizes stay: rows with ids, and columns of a list of images."""
    lines = [f"{number}.png,{number % 7},{'ab'[number % 2]}" for number in range(40)]
    for number in range(40):
        (tmp_path / f"{number}.png").write_bytes(encoded(number))
    settings = make_settings(f"csv:{tmp_path / 'list.csv'}", **({"id": "name"} if ids else {"inputs": ["image"]}))
    found = []
    for cell in ("5", "6", "5"):
        changed = [*lines[:5], lines[5].replace(",5,", f",{cell},"), *lines[6:]]
        (tmp_path / "list.csv").write_text("\n".join(["name,x,label" if ids else "image,x,label", *changed]))
        found.append(prepare(settings, 1))
    assert found[0].uri == found[2].uri != found[1].uri
    assert [each.reused for each in found] == [False, False, True]


def test_all_rows_of_a_batch_may_be_skipped(
    tmp_path: Path, make_settings: Callable[..., DataSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_file, "BATCH_BYTES", 20)
    rows = [f"{number / 3},{number % 5},{number * 2}" for number in range(30)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["one,two,label", *rows[:20], *["1,2,"] * 8, *rows[20:]]))
    prepared = prepare(make_settings(f"csv:{table}", skip_corrupt=0.5), 1, task="regression")
    assert prepared.manifest.skipped_count == 8
    assert sum(split.examples for split in prepared.manifest.splits.values()) == 30
    table.write_text("\n".join(["one,two,label", *["1,2,"] * 8]))
    with pytest.raises(UserError, match="8 of 8 rows cannot be used"):
        prepare(make_settings(f"csv:{table}", skip_corrupt=0.5), 1, task="regression")
