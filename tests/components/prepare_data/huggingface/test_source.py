"""Data sets of the hub as they are prepared: tasks, columns, revisions, and what is kept on this machine."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest, TaskName
from tests.fakes.huggingface.client import use
from tests.fakes.huggingface.hub import FakeHub

CARD = """---
dataset_info:
  features:
  - {name: coarse, dtype: {class_label: {names: {'0': low, '1': high}}}}
  - {name: fine, dtype: {class_label: {names: {'0': a, '1': b, '2': c}}}}
---
"""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with FakeHub() as started:
        use(started, monkeypatch, tmp_path)
        monkeypatch.chdir(tmp_path)
        yield started


def parquet(**columns: Any) -> bytes:
    data = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), data)
    return data.getvalue()


def prepared(source: str, task: TaskName = "classification", **settings: Any) -> Manifest:
    values = {"source": source, "workers": 1, "duplicates": "keep", **settings}
    return prepare(DataSettings.model_validate(values), 1, task=task).manifest


def test_a_table_of_numbers_of_classes(hub: FakeHub) -> None:
    hub.add("org/rows", {"README.md": CARD.encode(), "train.parquet": parquet(
        x=[float(number) for number in range(30)], coarse=[0, 1] * 15, fine=[0, 1, 2] * 10, junk=[{"a": 1}] * 30
    )})  # fmt: skip
    with pytest.raises(UserError, match="no column label or class"):
        prepared("hf:org/rows")
    assert prepared("hf:org/rows", label="fine", inputs=["x"]).classes == ["a", "b", "c"]
    manifest = prepared("hf:org/rows", label="coarse")
    assert manifest.classes == ["high", "low"]
    assert {name: described.kind for name, described in manifest.inputs.items()} == {"x": "number", "fine": "category"}
    assert sum(split.examples for split in manifest.splits.values()) == 30


def test_targets_and_lists_of_labels(hub: FakeHub) -> None:
    rows = range(40)
    hub.add("org/prices", {"data.csv": ("size,label\n" + "".join(f"{n},{n * 1.5}\n" for n in rows)).encode()})
    assert prepared("hf:org/prices", "regression").target is not None
    tags = [["red"] if number % 2 else ["red", "blue"] for number in rows]
    hub.add("org/tags", {"data.parquet": parquet(x=[*map(float, rows)], label=tags)})
    assert prepared("hf:org/tags", "multilabel").classes == ["blue", "red"]


def test_a_commit_without_other_data_is_another_data_set(hub: FakeHub) -> None:
    first = hub.add("org/rows", {"train.csv": b"x,label\n" + b"1,a\n2,b\n" * 10}).sha
    before = prepared("hf:org/rows")
    second = hub.add("org/rows", {"README.md": b"words"}).sha
    after = prepared("hf:org/rows@main")
    assert (before.revision, after.revision) == (first, second)
    assert before.fingerprint != after.fingerprint
    assert prepared(f"hf:org/rows@{first}").fingerprint == before.fingerprint


def test_a_converted_commit_is_read_without_the_hub(hub: FakeHub) -> None:
    commit = hub.add("org/rows", {"train.csv": b"x,label\n" + b"1,a\n2,b\n" * 10}).sha
    prepared(f"hf:org/rows@{commit}")
    calls = len(hub.faults.history)
    assert prepared(f"hf:org/rows@{commit}", seed=1).revision == commit
    assert len(hub.faults.history) == calls


def test_what_a_killed_conversion_left_is_removed(hub: FakeHub, tmp_path: Path) -> None:
    commit = hub.add("org/rows", {"train.csv": b"x,label\n" + b"1,a\n2,b\n" * 10}).sha
    left = tmp_path / "assets" / "slipway" / "org--rows" / "data" / ".unfinished-x"
    left.mkdir(parents=True)
    prepared(f"hf:org/rows@{commit}")
    assert not left.exists()


def test_images_in_several_columns_are_inputs(hub: FakeHub) -> None:
    def shade(value: int) -> dict[str, Any]:
        data = io.BytesIO()
        Image.new("L", (4, 4), value).save(data, "PNG")
        return {"bytes": data.getvalue(), "path": None}

    images = [[shade(number + start) for number in range(20)] for start in (0, 100)]
    hub.add("org/pairs", {"train.parquet": parquet(front=images[0], back=images[1], label=["a", "b"] * 10)})
    manifest = prepared("hf:org/pairs", image="front", features={"back": "image"}, inputs=["image", "back"])
    assert manifest.has_image
    assert manifest.inputs["back"].kind == "image"


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"image": "photo"}, "data.image"),
        ({"features": {"photo": "image"}, "inputs": ["photo"]}, "data.features.photo"),
    ],
)
def test_a_column_of_texts_is_no_image(hub: FakeHub, settings: dict[str, Any], setting: str) -> None:
    hub.add("org/texts", {"train.csv": b"photo,label\n/etc/a.png,cat\n" * 9})
    with pytest.raises(UserError, match="The column photo of hf:org/texts has no images") as caught:
        prepared("hf:org/texts", **settings)
    assert (caught.value.setting, caught.value.fix) == (setting, f"remove {setting}")


def test_folders_of_images_have_no_columns(hub: FakeHub) -> None:
    hub.add("org/folders", {f"{label}/{number}.png": b"\x89PNG\r\n\x1a\n" for label in "ab" for number in range(3)})
    with pytest.raises(UserError, match="no features except image and label") as caught:
        prepared("hf:org/folders", label="kind")
    assert caught.value.setting == "data.label"
    with pytest.raises(UserError, match="no labels for the task regression"):
        prepared("hf:org/folders", "regression")
