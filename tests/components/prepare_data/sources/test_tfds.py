"""The source tfds: images, labels, classes, other features and splits are unchanged."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import check_source, tfds_prepare, tfds_set
from slipway.core.errors import UserError

MakeSettings = Callable[..., DataSettings]
CLASSES = ["tulip", "daisy", "rose"]  # not sorted; one of them has no examples
SIZES = {"train": 40, "test": 9, "extra": 12}


@pytest.fixture(scope="module")
def tfds():  # type: ignore[no-untyped-def]
    import tensorflow_datasets

    return tensorflow_datasets


@pytest.fixture(scope="module")
def data_dir(tfds: Any, tmp_path_factory: pytest.TempPathFactory, encoded: Callable[..., bytes]) -> Path:
    """A data set with objects, prepared by TFDS in several shards."""
    features = tfds.features

    class MockFlowers(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
        """Photographs that are random pixels."""

        VERSION = tfds.core.Version("1.2.0")

        def _info(self) -> Any:
            objects = {"bbox": features.BBoxFeature(), "label": features.ClassLabel(names=["leaf", "stem"])}
            described = {
                "photo": features.Image(shape=(None, None, 3)),
                "kind": features.ClassLabel(names=CLASSES),
                "image": features.Text(),
                "objects": features.Sequence(objects),
                "width": np.int64,
            }
            return self.dataset_info_from_configs(features=features.FeaturesDict(described))

        def _split_generators(self, manager: Any) -> Any:
            return {split: self._generate_examples(split) for split in SIZES}

        def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
            for number in range(SIZES[split]):
                path = Path(self.data_dir).parent / f"{split}{number}.{'jpg' if number % 2 else 'png'}"
                path.write_bytes(
                    encoded(
                        list(SIZES).index(split) * 1000 + number,
                        (8, 9 + number),
                        "RGB",
                        "JPEG" if number % 2 else "PNG",
                    )
                )
                box = {"bbox": features.BBox(0.0, 0.0, 0.5, 1.0), "label": number % 2}
                yield (
                    number,
                    {
                        "photo": path,
                        "kind": number % 2,
                        "image": f"{split} {number}",
                        "objects": [box] * (number % 3),
                        "width": 9 + number,
                    },
                )

    folder = tmp_path_factory.mktemp("tfds")
    builder = MockFlowers(data_dir=str(folder))
    config = tfds.download.DownloadConfig(num_shards=3)
    builder.download_and_prepare(download_config=config)
    return folder


def raw(tfds: Any, builder: Any, split: str, image: str) -> Iterator[dict[str, Any]]:
    decoders = {image: tfds.decode.SkipDecoding()}
    yield from tfds.as_numpy(builder.as_dataset(split=split, decoders=decoders))


TAKEN = {"train": "train", "test": "test", "extra": "train"}


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_a_set_passes_through_unchanged(tfds: Any, data_dir: Path, make_settings: MakeSettings) -> None:
    settings = make_settings(
        "tfds:mock_flowers:1.2.0", tfds={"data_dir": str(data_dir), "splits": TAKEN}, image_size=[8, 8]
    )
    prepared = prepare(settings, 2)
    about = prepared.manifest
    assert about.name == "mock_flowers"
    assert about.classes == CLASSES
    assert about.features == {
        "objects": "{bbox: bounding_box, label: class}[]",
        "source_image": "text",
        "width": "integer",
    }
    theirs = tfds.builder("mock_flowers", data_dir=str(data_dir))
    ours = tfds.builder_from_directory(str(prepared.folder))
    assert ours.info.features["label"].names == CLASSES
    assert ours.info.features["objects"]["label"].names == ["leaf", "stem"]
    assert {name: split.num_examples for name, split in ours.info.splits.items()}["test"] == SIZES["test"]
    assert sum(split.num_examples for split in ours.info.splits.values()) == sum(SIZES.values())
    found = {one["source_image"]: (split, one) for split in about.splits for one in raw(tfds, ours, split, "image")}
    for split in SIZES:
        for one in raw(tfds, theirs, split, "photo"):
            own_split, other = found.pop(one["image"])
            assert (own_split == "test") == (split == "test")
            assert other["image"] == one["photo"]
            assert other["label"] == one["kind"]
            assert other["width"] == one["width"]
            np.testing.assert_array_equal(other["objects"]["bbox"], one["objects"]["bbox"])
            np.testing.assert_array_equal(other["objects"]["label"], one["objects"]["label"])
    assert not found


@pytest.mark.slow
def test_what_we_wrote_is_a_source_too(
    tfds: Any, make_folder: Callable[..., Path], make_settings: MakeSettings, tmp_path: Path
) -> None:
    first = prepare(make_settings(make_folder({"b": 30, "a": 20})), 2)
    second = prepare(make_settings(f"tfrecord:{first.folder}", name="again"), 1)
    for split, about in first.manifest.splits.items():
        assert second.manifest.splits[split].classes == about.classes
        expected = {one["key"]: (one["image"], one["label"]) for one in raw_of(tfds, first.folder, split)}
        assert {one["key"]: (one["image"], one["label"]) for one in raw_of(tfds, second.folder, split)} == expected


def raw_of(tfds: Any, folder: Path, split: str) -> Iterator[dict[str, Any]]:
    return raw(tfds, tfds.builder_from_directory(str(folder)), split, "image")


def refused(settings: DataSettings) -> UserError:
    with pytest.raises(UserError) as error:
        prepare(settings, 1)
    assert len(str(error.value).splitlines()) <= 24
    return error.value


def test_mistakes_are_named(data_dir: Path, make_settings: MakeSettings) -> None:
    own = {"data_dir": str(data_dir)}
    error = refused(make_settings("tfds:mock_flowers", tfds=own))
    assert "other than train, validation and test: extra" in error.message
    assert error.fix == "--set 'data.tfds.splits={train: train, test: test}'"
    error = refused(make_settings("tfds:mock_flowers", tfds={**own, "splits": {"tests": "test"}}))
    assert (error.setting, error.nearest) == ("data.tfds.splits.tests", "test")
    assert "is not a valid name" in refused(make_settings("tfds:mock flowers", tfds=own)).message


def test_a_shard_that_is_missing_or_short_is_named(data_dir: Path, make_settings: MakeSettings, tmp_path: Path) -> None:
    source = data_dir / "mock_flowers" / "1.2.0"
    copy = tmp_path / "sets" / "mock_flowers" / "1.2.0"
    copy.mkdir(parents=True)
    for path in source.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    settings = make_settings(
        "tfds:mock_flowers", tfds={"data_dir": str(tmp_path / "sets"), "splits": TAKEN}, image_size=[8, 8]
    )
    shard = sorted(copy.glob("*-train.tfrecord*"))[0]
    whole = shard.read_bytes()
    for cut in (whole[:-1], b""):
        shard.write_bytes(cut)
        error = refused(settings.model_copy(update={"skip_corrupt": 0.9}))
        assert f"{shard.name} is cut off or damaged after " in error.message
        assert "--set data.truncated=keep" in str(error.fix)
    error = refused(settings.model_copy(update={"truncated": "keep"}))
    assert " of 61 images cannot be used" in error.message
    assert "train/00000/0 (it is missing from its file)" in error.message
    shard.unlink()
    assert f"{shard.name} is missing" in refused(settings).message
    info = json.loads((copy / "dataset_info.json").read_text())
    (copy / "dataset_info.json").write_text(json.dumps({**info, "fileFormat": "array_record"}))
    assert "stored as array_record" in refused(settings).message


def test_the_folder_that_is_meant_is_found(tmp_path: Path) -> None:
    for name in ("1.0.0", "small/2.0.0", "large/2.0.0", "large/2.1.0"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "dataset_info.json").write_text("{}")
    (tmp_path / "3.0.0.incomplete").mkdir()
    (tmp_path / "4.0.0").mkdir()
    found = tfds_set.prepared_folder
    assert found(tmp_path, None, "1.0.0") == tmp_path / "1.0.0"
    assert found(tmp_path, "small", None) == tmp_path / "small" / "2.0.0"
    assert found(tmp_path, "large", "2.1.0") == tmp_path / "large" / "2.1.0"
    assert found(tmp_path, None, None) is None
    assert found(tmp_path, "large", None) is None
    assert found(tmp_path, None, "4.0.0") is None
    assert found(tmp_path / "none", None, None) is None


@pytest.mark.slow
def test_a_set_that_is_not_there_is_asked_of_tensorflow_datasets(
    tfds: Any, make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings("tfds:mnst", tfds={"data_dir": str(tmp_path)})
    assert check_source(settings) == f"tfds:mnst, which TensorFlow Datasets first prepares in {tmp_path}"
    error = refused(settings)
    assert "has no data set mnst" in error.message
    assert (error.setting, error.nearest) == ("data.source", "tfds:mnist")


def test_a_set_that_cannot_be_downloaded_is_named_soon_with_the_manual_way(
    tfds: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import requests

    monkeypatch.setattr(requests.adapters, "HTTPAdapter", requests.adapters.HTTPAdapter)  # restored at the end
    monkeypatch.setenv("SLIPWAY_EVENTS", str(tmp_path / "events.jsonl"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):  # nothing listens on this port, even without a network
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    tfds_prepare.connect_promptly()
    with pytest.raises(UserError, match=r"Could not download mnist from .*: Connection refused") as error:
        tfds_prepare.prepare("mnist", str(tmp_path), try_gcs=False)
    assert "slipway data get mnist" in (error.value.fix or "")
    assert "--set data.source=images:mnist" in (error.value.fix or "")
    told = [json.loads(line)["text"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert told[0].startswith("downloading https://")
    assert told.count("the server does not respond; retrying") == 1


def test_a_download_shows_its_progress(
    monkeypatch: pytest.MonkeyPatch, make_settings: MakeSettings, tmp_path: Path
) -> None:
    child = tmp_path / "python"
    child.write_text(
        "#!/bin/sh\nprintf 'Dl Size...:  12%%|#   | 26/218 [00:04<00:31,  6.1 MiB/s]\\r' >&2\n"
        "printf '\\033[A\\nDl Completed...: 0 url [00:00, ? url/s]\\r\\nretrying\\n' >&2\necho /sets/x/1.0.0\n"
    )
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    monkeypatch.setenv("SLIPWAY_EVENTS", str(tmp_path / "events.jsonl"))
    assert tfds_set.prepare_with_tfds("x", "/sets", make_settings("tfds:x")) == "/sets/x/1.0.0"
    (event,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert (event["done"], event["total"], event["unit"]) == (26, 218, "MiB")


def test_a_set_is_saved_as_a_folder_of_its_images(
    tfds: Any, data_dir: Path, make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings("tfds:mock_flowers", tfds={"data_dir": str(data_dir), "splits": TAKEN})
    folder = tmp_path / "saved" / "flowers"
    assert tfds_set.save_images(settings, folder) == 61
    builder = tfds.builder("mock_flowers", data_dir=str(data_dir))
    images = {
        (TAKEN[split], CLASSES[one["kind"]], one["photo"])
        for split in SIZES
        for one in raw(tfds, builder, split, "photo")
    }
    assert {(*path.parent.relative_to(folder).parts, path.read_bytes()) for path in folder.rglob("*.*")} == images
    assert list(folder.parent.iterdir()) == [folder]
    prepared = prepare(make_settings(folder, image_size=[8, 8]), 1)
    assert prepared.manifest.splits["test"].classes == {"daisy": 4, "tulip": 5}
    with pytest.raises(UserError, match="exists already"):
        tfds_set.save_images(settings, folder)


def test_the_public_bucket_is_asked_where_that_is_set(tfds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Builder:
        data_dir = "gs://bucket/sets/x/1.0.0"

        def download_and_prepare(self, download_config: Any, file_format: str) -> None:
            asked.append((download_config.try_download_gcs, file_format))

    monkeypatch.setattr(tfds, "builder", lambda name, data_dir: Builder())
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", tfds)
    for try_gcs in (True, False):
        assert tfds_prepare.prepare("x", "gs://bucket/sets", try_gcs=try_gcs) == Builder.data_dir
    assert asked == [(True, "tfrecord"), (False, "tfrecord")]
