"""The source csv: a list of images, and its errors."""

from __future__ import annotations

import cProfile
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipway.components.prepare_data.encoding.records import read_records
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.publishing import statistics
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sorting import ExampleKeys
from slipway.components.prepare_data.sources import open_source
from slipway.components.prepare_data.sources.source import Ignored
from slipway.core.errors import UserError
from slipway.core.tables.csv_file import CsvFile
from tests.components.prepare_data.conftest import example_parts

MakeSettings = Callable[..., DataSettings]


@pytest.fixture
def images(tmp_path: Path, encoded: Callable[..., bytes]) -> Path:
    """40 images in a folder, one of them outside of it."""
    folder = tmp_path / "list"
    (folder / "sub, folder").mkdir(parents=True)
    for number in range(39):
        (folder / "sub, folder" / f"ö {number}.png").write_bytes(encoded(number))
    (tmp_path / "outside.png").write_bytes(encoded(39))
    return folder


def path_of(number: int) -> str:
    return '"../outside.png"' if number == 39 else f'"sub, folder/ö {number}.png"'


def found(prepared: Prepared) -> dict[str, tuple[str, str]]:
    """Return the split and class of each key."""
    result = {}
    for split, about in prepared.manifest.splits.items():
        for shard in about.shards:
            with (prepared.folder / shard.file).open("rb") as file:
                for message in read_records(file):
                    _, key, label = example_parts(message)
                    result[key.decode()] = split, prepared.manifest.classes[label]
    return result


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("names", ["image,label", "path,class", "file , label"])
def test_a_list_without_splits(images: Path, make_settings: MakeSettings, names: str, encoding: str) -> None:
    lines = [f"{path_of(number)},{'ab'[number % 2]} " for number in range(39)]
    (images / "all.csv").write_text("\r\n".join([names, *lines, "", f"{images}/../outside.png,b"]), encoding)
    prepared = prepare(make_settings(f"csv:{images / 'all.csv'}"), 2)
    assert prepared.manifest.name == "all"
    keys = found(prepared)
    assert {key: label for key, (_, label) in keys.items()} == {
        **{f"sub, folder/ö {number}.png": "ab"[number % 2] for number in range(39)},
        str(images.parent / "outside.png"): "b",
    }
    assert prepare(make_settings(f"csv:{images / 'all.csv'}"), 2).reused


def test_splits_and_groups_are_columns(images: Path, make_settings: MakeSettings) -> None:
    lines = [f"{number // 2},{path_of(number)},cat,{'test' if number < 6 else 'Train'}" for number in range(40)]
    (images / "all.csv").write_text("\n".join(["patient,image,label,split", *lines]))
    settings = make_settings(f"csv:{images / 'all.csv'}", group_by="column:patient")
    keys = found(prepare(settings, 1))
    where = {number: keys[path_of(number).strip('"')][0] for number in range(40)}
    assert all(where[number] == where[number + 1] for number in range(0, 40, 2))
    assert {number for number in where if where[number] == "test"} == set(range(6))
    assert 2 <= sum(split == "validation" for split in where.values()) <= 6
    (images / "all.csv").write_text("\n".join(["patient,image,label,split", *(f"1{line[1:]}" for line in lines)]))
    with pytest.raises(UserError, match="in 2 splits of the source") as error:
        prepare(settings, 1)
    assert error.value.setting == "data.group_by"


def test_a_column_called_path_is_of_images_only_if_they_are_files(tmp_path: Path, make_settings: MakeSettings) -> None:
    lines = [
        "path,file,x,label",
        *(f"{'north' if n % 3 else 'south'},{n % 7},{n / 7},{'ab'[n % 2]}" for n in range(60)),
    ]
    (tmp_path / "trails.csv").write_text("\n".join(lines))
    manifest = prepare(make_settings(f"csv:{tmp_path / 'trails.csv'}"), 1).manifest
    assert not manifest.has_image
    assert {name: each.kind for name, each in manifest.inputs.items()} == {
        "path": "category", "file": "number", "x": "number"
    }  # fmt: skip
    with pytest.raises(UserError, match="north is listed twice"):
        prepare(make_settings(f"csv:{tmp_path / 'trails.csv'}", image="path"), 1)


HEADER = "image,label"
ROWS = [f"{path_of(number)},{'ab'[number % 2]}" for number in range(40)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "Line 1 of .* has no column label or class"),
        (["image;label"], "lists no images"),
        (["image,labels", *ROWS], "Line 1 of .* has no column label or class"),
        (["image,path,label"], "Line 1 of .* has several columns for the image: image, path"),
        (["image,label,splits", *ROWS], "Line 1 of .* an unknown column 'splits'"),
        ([HEADER], "lists no images"),
        ([HEADER, *ROWS, "a.png"], "Line 42 of .* has 1 columns; line 1 has 2"),
        ([HEADER, *ROWS, ",a"], "Line 42 of .* has no image"),
        (
            [HEADER, *ROWS, "none.png,a", ".,b"],
            r"2 of the .* none\.png \(line 42: No such file.*; \. \(line 43: it is not a file",
        ),
        ([HEADER, *ROWS, "x/../../outside.png,a"], r"outside\.png is listed twice in .*: on lines 41 and 42"),
        ([HEADER, *ROWS, '"a.png,b'], "Line 42 of .* is not CSV: unexpected end"),
        ([HEADER, *ROWS, "a\0.png,b"], "Line 42 of .* contains a zero byte"),
        (["image,label,split", f"{path_of(1)},a,tset"], "Line 2 of .* has an unknown split: 'tset'"),
        (["image,label,split", f"{path_of(1)},a,"], "Line 2 of .* has no split"),
        (["image,label,split", f"{path_of(1)},a,test"], "no image in the split train"),
    ],
)
def test_mistakes_are_named_with_their_lines(
    images: Path, make_settings: MakeSettings, lines: list[str], message: str
) -> None:
    (images / "all.csv").write_text("\n".join(lines))
    settings = make_settings(f"csv:{images / 'all.csv'}")
    with pytest.raises(UserError, match=message) as error:
        prepare(settings, 1)
    assert error.value.setting == "data.source"
    assert len(str(error.value).splitlines()) <= 24
    assert not Path(settings.store).exists()


def test_additional_columns_are_features(images: Path, make_settings: MakeSettings) -> None:
    lines = [
        f"{path_of(n)},{'ab'[n % 2]},note {n},{n},{n / 8},0 0 0.5 {n / 40},k{n},{path_of(39 - n)}" for n in range(40)
    ]
    (images / "all.csv").write_text("\n".join(["image,label,note,age,weight,box,key,splits", *lines]))
    features = {"age": "integer", "weight": "number", "box": "bounding_box", "splits": "image"}
    settings = make_settings(f"csv:{images / 'all.csv'}", features=features)
    prepared = prepare(settings, 2)
    assert prepared.manifest.features == {**features, "note": "text", "source_key": "text"}
    import tensorflow_datasets

    builder = tensorflow_datasets.builder_from_directory(str(prepared.folder))
    decoders = {"splits": tensorflow_datasets.decode.SkipDecoding()}
    seen = set()
    for split in prepared.manifest.splits:
        for one in tensorflow_datasets.as_numpy(builder.as_dataset(split=split, decoders=decoders)):
            number = int(one["age"])
            seen.add(number)
            assert one["key"].decode() == path_of(number).strip('"')
            assert (one["note"].decode(), one["weight"]) == (f"note {number}", number / 8)
            assert one["box"] == pytest.approx([0, 0, 0.5, number / 40])
            assert one["source_key"].decode() == f"k{number}"
            assert one["splits"] == (images / path_of(39 - number).strip('"')).read_bytes()
    assert seen == set(range(40))
    page = (prepared.folder / "statistics.html").read_text()
    assert ">Additional features</h2>" in page
    assert all(
        f'<th scope="row" class="break">{name}</th><td class="text break">{kind}</td>' in page
        for name, kind in prepared.manifest.features.items()
    )
    assert re.search(r'<td class="text break">note \d+</td>', page)
    assert page.count('<img class="thumbnail" src="data:image/png') == 4
    assert prepare(settings, 2).reused
    (images / "all.csv").write_text((images / "all.csv").read_text().replace("note 7", "another note"))
    assert not prepare(settings, 2).reused


@pytest.mark.parametrize(
    ("lines", "features", "setting", "message"),
    [
        (
            ["image,label,age", f"{path_of(1)},a,x"],
            {"age": "integer"},
            "data.source",
            "Line 2 .* 'x' is not a valid integer",
        ),
        (["image,label,mask", f"{path_of(1)},a,none.png"], {"mask": "image"}, "data.source", r"Line 2 .* none.png can"),
        (["image,label,age", f"{path_of(1)},a,1"], {"ages": "integer"}, "data.features.ages", "no column ages"),
        (["image,label,age", f"{path_of(1)},a,1"], {"age": "int"}, "data.features.age", "kind of feature 'int'"),
        (["image,label,age", f"{path_of(1)},a,1"], "age", "data.features", "must be a mapping"),
        (["image,label,age,age"], {}, "data.source", "two columns age"),
    ],
)
def test_features_that_are_not_as_described_are_named(
    images: Path, make_settings: MakeSettings, lines: list[str], features: Any, setting: str, message: str
) -> None:
    (images / "all.csv").write_text("\n".join(lines))
    settings = make_settings(f"csv:{images / 'all.csv'}", features=features)
    with pytest.raises(UserError, match=message) as error:
        prepare(settings, 1)
    assert error.value.setting == setting
    assert not Path(settings.store).exists()


def test_the_work_grows_linearly_with_the_number_of_columns(images: Path, make_settings: MakeSettings) -> None:
    """Counts calls instead of time: four times the columns need four times the calls."""
    calls = {}
    for columns in (100, 400):
        header = ",".join(["image", "label", *(f"c{column}/x" for column in range(columns))])
        lines = [f"{path_of(n)},a" + ",1" * columns for n in range(9)]
        (images / f"{columns}.csv").write_text("\n".join([header, *lines]))
        prepared = prepare(make_settings(f"csv:{images / f'{columns}.csv'}"), 1)
        profile = cProfile.Profile()
        features = profile.runcall(statistics.additional_features, prepared.folder, prepared.manifest)
        assert [feature.texts for feature in features] == [["1"] * len(features[0].texts)] * columns
        calls[columns] = sum(entry.callcount for entry in profile.getstats())
    assert calls[400] < 5 * calls[100]


def test_a_second_image_that_is_damaged_is_skipped(images: Path, make_settings: MakeSettings) -> None:
    (images / "bad.png").write_bytes(b"no image")
    lines = [f"{path_of(n)},a,{path_of(n) if n else 'bad.png'}" for n in range(40)]
    (images / "all.csv").write_text("\n".join(["image,label,mask", *lines]))
    settings = make_settings(f"csv:{images / 'all.csv'}", features={"mask": "image"}, skip_corrupt=0.03)
    (skipped,) = prepare(settings, 1).manifest.skipped
    assert (skipped.key, skipped.reason) == (
        path_of(0).strip('"'),
        "its mask: it is not an image of a supported format",
    )


def test_classes_of_any_name_come_through(images: Path, make_settings: MakeSettings) -> None:
    names = ["..", "a/b", "ö <b>", "-rf", "con"]
    lines = [f"{path_of(n)},{names[n % 5]}" for n in range(40)]
    (images / "all.csv").write_text("\n".join([HEADER, *lines]))
    prepared = prepare(make_settings(f"csv:{images / 'all.csv'}"), 1)
    assert {key: label for key, (_, label) in found(prepared).items()} == {
        path_of(n).strip('"'): names[n % 5] for n in range(40)
    }
    assert prepared.folder.parent.parent == images.parent / "store"
    assert "ö &lt;b&gt;" in (prepared.folder / "statistics.html").read_text()


def test_images_and_labels_may_be_other_columns(images: Path, make_settings: MakeSettings) -> None:
    lines = [f"{path_of(n)},{'ab'[n % 2]},text {n}" for n in range(40)]
    (images / "all.csv").write_text("\n".join(["scan,finding,label", *lines]))
    prepared = prepare(make_settings(f"csv:{images / 'all.csv'}", image="scan", label="finding"), 1)
    assert prepared.manifest.classes == ["a", "b"]
    assert prepared.manifest.features == {"source_label": "text"}


def test_other_encodings_are_named_with_the_line(images: Path, make_settings: MakeSettings) -> None:
    (images / "all.csv").write_bytes("\n".join([HEADER, "a.png,caf\xe9"]).encode("latin-1"))
    with pytest.raises(UserError, match=r"Line 2 of .* is not valid UTF-8"):
        prepare(make_settings(f"csv:{images / 'all.csv'}"), 1)


def test_a_missing_list_and_a_missing_column_are_named(images: Path, make_settings: MakeSettings) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        prepare(make_settings(f"csv:{images / 'none.csv'}"), 1)
    (images / "all.csv").write_text("\n".join([HEADER, *ROWS]))
    with pytest.raises(UserError, match="has no column patient") as error:
        prepare(make_settings(f"csv:{images / 'all.csv'}", group_by="column:patient"), 1)
    assert error.value.setting == "data.group_by"
    with pytest.raises(UserError, match="has no columns"):
        prepare(make_settings("digits", group_by="column:patient"), 1)


def test_a_key_that_is_there_twice_is_found(tmp_path: Path) -> None:
    with ExampleKeys(tmp_path / "keys") as keys:
        for number in range(100):
            keys.add(b"%d" % (number * 37 % 100), number)
        assert keys.twice() is None
        keys.add(b"5", 100)
        assert keys.twice() == (b"5", 65, 100)
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    ("start", "what"), [(b"PAR1\x15", "a Parquet file"), (b"PK\3\4", "an Excel"), (b"\x1f\x8b", "a gzip")]
)
def test_a_table_of_another_format_is_named(
    tmp_path: Path, make_settings: MakeSettings, start: bytes, what: str
) -> None:
    (tmp_path / "patients.parquet").write_bytes(start + b"\xff\0")
    with pytest.raises(UserError, match=rf"patients\.parquet is {what}.*, not CSV"):
        prepare(make_settings(f"csv:{tmp_path / 'patients.parquet'}"), 1)


class Counted(str):
    """A name of a column that counts how often it is compared."""

    __slots__ = ()
    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    def strip(self, chars: str | None = None, /) -> Counted:  # type: ignore[override]
        return self


@pytest.mark.parametrize("named", [False, True])
def test_the_work_for_columns_grows_with_their_number(
    tmp_path: Path, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    open_file = CsvFile.__init__

    def counted(file: CsvFile, *arguments: Any, **more: Any) -> None:
        open_file(file, *arguments, **more)
        file.names = [*map(Counted, file.names)]

    monkeypatch.setattr(CsvFile, "__init__", counted)

    def counts(columns: int) -> tuple[int, int]:
        """Return the numbers of comparisons and of calls of functions."""
        names = [f"column {number}" for number in range(columns)]
        path = tmp_path / f"{columns}.csv"
        path.write_text("\n".join([",".join([*names, "label"]), *[",".join(["0.5"] * columns + ["1"])] * 3]))
        settings = make_settings(f"csv:{path}", inputs=names if named else None)
        Counted.comparisons = 0
        with cProfile.Profile() as profile:
            source = open_source(settings, "regression")
            (rows,) = source.rows(source.parts()[0], Ignored(), tmp_path) or ()
        assert len(rows.digests) == 3 and len(source.inputs) == columns
        return Counted.comparisons, sum(each.callcount for each in profile.getstats())

    counts(10)
    few, many = counts(100), counts(1000)
    assert many[0] <= 100 * 1000  # a search of a list would compare 1,000 x 500 times
    assert many[1] < 12 * few[1]
