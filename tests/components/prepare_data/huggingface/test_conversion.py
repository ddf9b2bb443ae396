"""Tables and images of the hub, as the sources of tables and images read them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from slipway.components.prepare_data.huggingface.conversion import FILES, IMAGES, TABLE, Converter, link_images
from slipway.core.errors import UserError


def png(shade: int) -> bytes:
    data = io.BytesIO()
    Image.new("L", (2, 2), shade).save(data, "PNG")
    return data.getvalue()


class Folder:
    """A folder with downloaded files, and what they are converted to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = path / "snapshot"
        self.files.mkdir()
        (path / FILES).symlink_to(self.files)

    def add(self, name: str, content: bytes | str | pyarrow.Table) -> None:
        file = self.files / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pyarrow.Table):
            pyarrow.parquet.write_table(content, file)
        else:
            file.write_bytes(content.encode() if isinstance(content, str) else content)

    def convert(self, tables: dict[str, list[str]], features: Any = None) -> tuple[Converter, list[dict[str, Any]]]:
        converter = Converter(self.path, features or {}, lambda message, fix=None: UserError(message, fix=fix))
        converter.write(tables)
        return converter, pyarrow.parquet.read_table(self.path / TABLE).to_pylist()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_numbers_of_classes_become_their_names(folder: Folder) -> None:
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    folder.add("a", pyarrow.table({"x": [1, 2, 3], "label": [1, 0, -1]}).replace_schema_metadata(metadata))
    (folder.files / "a").rename(folder.files / "a.parquet")
    converter, rows = folder.convert({"train": ["a.parquet"]})
    assert [row["label"] for row in rows] == ["dog", "cat", None]
    assert "split" not in rows[0], "Slipway splits a data set that has only the split train"
    assert [*converter.label_columns] == ["label"]


def test_lists_of_classes_become_lists_of_names(folder: Folder) -> None:
    folder.add("a.parquet", pyarrow.table({"tags": [[0, 1], [], [1]], "label": ["x", "y", "z"]}))
    readme = {"tags": {"sequence": {"class_label": {"names": {"0": "red", "1": "blue"}}}}}
    _, rows = folder.convert({"train": ["a.parquet"]}, readme)
    assert [row["tags"] for row in rows] == [["red", "blue"], [], ["blue"]]


def test_images_in_a_column_become_files(folder: Folder) -> None:
    column = [{"bytes": png(shade), "path": None} for shade in (0, 9)] + [{"bytes": None, "path": "lost.png"}]
    folder.add("a.parquet", pyarrow.table({"img": column, "label": [0, 1, 1]}))
    folder.add("b.parquet", pyarrow.table({"img": [{"bytes": png(5), "path": None}], "label": [0]}))
    converter, rows = folder.convert({"train": ["a.parquet", "b.parquet"], "test": ["b.parquet"]})
    assert [row["img"] for row in rows] == [
        *(f"images/train/{number:08d}.png" for number in range(4)),
        "images/test/00000000.png",
    ]
    assert (folder.path / rows[1]["img"]).read_bytes() == png(9)
    assert (folder.path / rows[2]["img"]).read_bytes() == b"", "a missing image counts as unusable"
    assert [*converter.image_columns] == ["img"]


def test_columns_without_a_text_are_dropped_and_named(folder: Folder) -> None:
    table = pyarrow.table({
        "x": [1.5], "sound": [{"array": [0.1], "rate": 8}], "raw": [b"\0\1"], "split": ["odd"], "label": ["a"]
    })  # fmt: skip
    folder.add("a.parquet", table)
    converter, rows = folder.convert({"test": ["a.parquet"]})
    assert rows == [{"x": 1.5, "label": "a", "split": "test"}]
    assert [*converter.dropped] == ["sound", "raw", "split"]


def test_csv_and_json_lines_are_read(folder: Folder) -> None:
    folder.add("a.csv", "zip,label\n007,a\n012,b\n")
    folder.add("b.tsv", "zip\tlabel\n1\tc\n")
    _, rows = folder.convert({"train": ["a.csv"], "test": ["b.tsv"]})
    assert [row["zip"] for row in rows] == ["007", "012", "1"], "cells stay texts"
    folder.add("c.jsonl", '{"x": 1, "label": "a"}\n{"x": 2, "label": "b"}\n')
    _, rows = folder.convert({"train": ["c.jsonl"]})
    assert [row["x"] for row in rows] == [1, 2]


def test_a_list_names_the_images_of_its_folder(folder: Folder) -> None:
    folder.add("train/metadata.csv", "file_name,label\nsub/1.png,cat\n")
    folder.add("train/sub/1.png", png(1))
    converter, rows = folder.convert({"train": ["train/metadata.csv"]})
    assert rows[0]["file_name"] == f"{FILES}/train/sub/1.png"
    assert (folder.path / rows[0]["file_name"]).read_bytes() == png(1)
    assert [*converter.image_columns] == ["file_name"]


@pytest.mark.parametrize("name", ["/etc/passwd.png", "../../../a.png", "../../../../files/a.png"])
def test_a_list_names_no_other_files(folder: Folder, name: str) -> None:
    folder.add("train/metadata.csv", f"file_name,label\n{name},cat\n")
    with pytest.raises(UserError, match="is not a file of the data set"):
        folder.convert({"train": ["train/metadata.csv"]})


def test_texts_are_not_read_as_paths_of_images(folder: Folder) -> None:
    folder.add("a.csv", "image,path,label\n/etc/a.png,b.png,cat\n")
    converter, rows = folder.convert({"train": ["a.csv"]})
    assert rows == [{"label": "cat"}]
    assert [*converter.dropped] == ["image", "path"]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (pyarrow.table({"y": [1]}), "the file b.parquet of the data set cannot be read with those before it"),
        (pyarrow.table({"x": ["text"]}), "cannot be read with those before it"),
        (b"PAR1 and more", "cannot be read"),
    ],
)
def test_files_that_differ_are_refused(folder: Folder, second: Any, message: str) -> None:
    folder.add("a.parquet", pyarrow.table({"x": [1]}))
    folder.add("b.parquet", second)
    with pytest.raises(UserError, match=f"(?i){message}") as caught:
        folder.convert({"train": ["a.parquet", "b.parquet"]})
    assert "data.huggingface.splits" in (caught.value.fix or "")


def test_images_in_folders_become_links(folder: Folder) -> None:
    paths = ["a/train/cat/1.png", "b/train/cat/1.png", "train/dog/2.png"]
    for number, path in enumerate([*paths, "dev/cat/3.png"]):
        folder.add(path, png(number))
    link_images(folder.path, {"train": paths, "validation": ["dev/cat/3.png"]})
    linked = {path.relative_to(folder.path / IMAGES).as_posix(): path for path in (folder.path / IMAGES).rglob("*.png")}
    assert sorted(linked) == ["train/cat/1.png", "train/cat/b-train-1.png", "train/dog/2.png", "validation/cat/3.png"]
    assert linked["train/cat/b-train-1.png"].read_bytes() == png(1)
