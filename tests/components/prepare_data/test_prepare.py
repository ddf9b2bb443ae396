"""Complete data sets: the files written, how other readers see them, and reuse."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slipway.components.prepare_data import remote
from slipway.components.prepare_data.encoding.records import read_records
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.publishing import statistics, store
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.writing import shards
from slipway.core import manifest
from slipway.core.errors import UserError
from tests.components.prepare_data.conftest import example_parts


def records(prepared: Prepared, split: str) -> list[tuple[bytes, bytes, int]]:
    """Return the (image, key, label) of a split, shard by shard."""
    found = []
    for shard in prepared.manifest.splits[split].shards:
        with (prepared.folder / shard.file).open("rb") as file:
            messages = list(read_records(file))
        assert len(messages) == shard.examples
        found += [example_parts(message) for message in messages]
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def tfds_examples(folder: Path, split: str, *, decoded: bool = True) -> list[dict[str, Any]]:
    import tensorflow_datasets

    builder = tensorflow_datasets.builder_from_directory(str(folder))
    decoders = None if decoded else {"image": tensorflow_datasets.decode.SkipDecoding()}
    return list(tensorflow_datasets.as_numpy(builder.as_dataset(split=split, decoders=decoders)))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    store = tmp_path_factory.mktemp("digits")
    return prepare(DataSettings(source="digits", store=str(store)), replicas=3)


def test_digits_are_scikit_learns(digits: Prepared) -> None:
    from sklearn.datasets import load_digits

    found = load_digits()
    seen = {}
    for split in ("train", "validation", "test"):
        for image, key, label in records(digits, split):
            number = int(key.removeprefix(b"digits/"))
            with Image.open(io.BytesIO(image)) as opened:
                assert opened.mode == "L"
                seen[number] = np.asarray(opened), label
    assert len(seen) == 1797
    for number, (pixels, label) in seen.items():
        np.testing.assert_array_equal(pixels, found.images[number].astype(int) * 255 // 16)
        assert digits.manifest.classes[label] == str(found.target[number])


def test_the_manifest_of_the_digits_is_right(digits: Prepared) -> None:
    about = manifest.read(digits.folder)
    for split in about.splits.values():
        manifest.verify(digits.folder, split.shards)
    assert (about.name, about.source, about.image_shape, about.resize) == ("digits", "digits", (8, 8, 1), False)
    assert about.classes == [str(digit) for digit in range(10)]
    assert {name: len(split.shards) for name, split in about.splits.items()} == dict.fromkeys(about.splits, 3)
    sizes = [shard.examples for shard in about.splits["train"].shards]
    assert max(sizes) - min(sizes) <= 1
    for split, share in (("train", 0.8), ("validation", 0.1), ("test", 0.1)):
        found = about.splits[split]
        assert found.examples == sum(found.classes.values()) == sum(shard.examples for shard in found.shards)
        assert abs(found.examples - share * 1797) <= 5
        assert len(records(digits, split)) == found.examples
    assert digits.folder.name == about.fingerprint[:16]


@pytest.mark.slow
def test_tensorflow_datasets_reads_images_labels_and_keys(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings]
) -> None:
    root = make_folder({"train/cat": 30, "train/dög house": 20, "test/cat": 4, "test/dög house": 5})
    prepared = prepare(make_settings(root), replicas=2)
    assert {name: split.examples for name, split in prepared.manifest.splits.items()} == {
        "train": 45,
        "validation": 5,
        "test": 9,
    }
    seen = set()
    for split in prepared.manifest.splits:
        raw = tfds_examples(prepared.folder, split, decoded=False)
        decoded = tfds_examples(prepared.folder, split)
        assert len(raw) == prepared.manifest.splits[split].examples
        for one, other in zip(raw, decoded, strict=True):
            key = one["key"].decode()
            source = (root / key).read_bytes()
            assert one["image"] == source
            with Image.open(io.BytesIO(source)) as image:
                np.testing.assert_array_equal(other["image"][:, :, 0], np.asarray(image))
            assert prepared.manifest.classes[one["label"]] == key.split("/")[1]
            assert key.startswith("test/") == (split == "test")
            seen.add(key)
    assert seen == {str(path.relative_to(root)) for path in root.rglob("*.png")}


def test_tensorflow_datasets_names_the_classes(digits: Prepared) -> None:
    import tensorflow_datasets

    builder = tensorflow_datasets.builder_from_directory(str(digits.folder))
    assert builder.info.features["label"].names == digits.manifest.classes
    assert builder.info.splits["train"].num_examples == digits.manifest.splits["train"].examples
    assert builder.info.features["image"].shape == (8, 8, 1)


def test_our_metadata_is_what_tensorflow_datasets_writes(digits: Prepared, tmp_path: Path) -> None:
    import tensorflow_datasets

    builder = tensorflow_datasets.builder_from_directory(str(digits.folder))
    for file in digits.folder.glob("*.tfrecord-*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensorflow_datasets.folder_dataset.write_metadata(
        data_dir=tmp_path,
        features=builder.info.features,
        split_infos=list(builder.info.splits.values()),
        version="1.0.0",
        check_data=False,
    )
    for name in ("features.json", "dataset_info.json"):
        assert json.loads((digits.folder / name).read_text()) == json.loads((tmp_path / name).read_text())
    assert (digits.folder / "label.labels.txt").read_text() == (tmp_path / "label.labels.txt").read_text()


def test_png_and_jpeg_of_several_sizes_are_mixed(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings], encoded: Callable[..., bytes]
) -> None:
    root = make_folder({"a": 6, "b": 6})
    (root / "a" / "photo.jpeg").write_bytes(encoded(1, (9, 7), "RGB", "JPEG"))
    (root / "b" / "a jpeg.PNG").write_bytes(encoded(2, (4, 4), "RGB", "JPEG"))
    prepared = prepare(make_settings(root, image_size=[8, 8]), replicas=1)
    about = prepared.manifest
    assert (about.encodings, about.channels, about.image_size, about.resize) == (["jpeg", "png"], 3, (8, 8), True)
    shapes = {example["image"].shape for split in about.splits for example in tfds_examples(prepared.folder, split)}
    assert shapes == {(6, 5, 3), (9, 7, 3), (4, 4, 3)}


def test_an_image_size_that_all_have_needs_no_resizing(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings]
) -> None:
    prepared = prepare(make_settings(make_folder({"a": 3, "b": 3}), image_size=[6, 5], channels=3), replicas=1)
    assert (prepared.manifest.resize, prepared.manifest.channels) == (False, 3)


def test_the_resize_mode_is_recorded_and_part_of_the_fingerprint(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings]
) -> None:
    """The default is not, so that data sets of earlier versions are reused."""
    root = make_folder({"a": 3, "b": 3})
    plain, cropped = (prepare(make_settings(root, **about), 1).manifest for about in ({}, {"resize_mode": "crop"}))
    assert (plain.resize_mode, cropped.resize_mode) == ("stretch", "crop")
    assert "resize_mode" not in plain.settings
    assert cropped.settings["resize_mode"] == "crop"
    assert plain.fingerprint != cropped.fingerprint


@pytest.mark.usefixtures("processes")
def test_the_bytes_depend_on_nothing_but_source_settings_and_seed(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings], tmp_path: Path
) -> None:
    root = make_folder({"b": 40, "a": 50})
    again = tmp_path / "elsewhere" / "image_folder"
    for path in sorted(root.rglob("*.png"), reverse=True):
        copy = again / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    sets = [
        prepare(make_settings(source, workers=workers, store=str(tmp_path / str(workers))), replicas=4)
        for source, workers in ((root, 1), (root, 3), (again, 2))
    ]
    first = contents(sets[0].folder)
    assert len(first) == 3 * (4 + 1) + 5
    assert contents(sets[1].folder) == first
    other = contents(sets[2].folder)
    for name in ("manifest.json", "statistics.html"):  # they contain the source
        other[name] = other[name].replace(str(again).encode(), str(root).encode())
    assert other == first


def test_the_seed_gives_other_splits(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings]
) -> None:
    root = make_folder({"a": 50, "b": 50})
    keys = [{key for _, key, _ in records(prepare(make_settings(root, seed=seed), 1), "test")} for seed in (0, 1)]
    assert keys[0] != keys[1]


def test_what_is_there_is_reused(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder({"a": 20, "b": 20})
    first = prepare(make_settings(root), 1)
    stamps = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    monkeypatch.setattr(shards.Inspector, "inspect", None)  # no image is read again
    second = prepare(make_settings(root, workers=1), 1)
    assert (first.reused, second.reused, second.folder) == (False, True, first.folder)
    assert second.manifest == first.manifest
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == stamps
    assert sorted(path.name for path in first.folder.parent.iterdir()) == [".listings", first.folder.name]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"split": {"train": 0.6, "validation": 0.2, "test": 0.2}},
        {"channels": 3},
        {"check": "header"},
        {"duplicates": "drop"},
        {"name": "other"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_settings_are_another_set(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings], change: dict[str, Any]
) -> None:
    root = make_folder({"a": 10, "b": 10})
    first = prepare(make_settings(root), 1)
    second = prepare(make_settings(root, **change), 1)
    assert second.manifest.fingerprint != first.manifest.fingerprint
    assert not second.reused


def test_a_changed_file_is_another_set(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings]
) -> None:
    root = make_folder({"a": 10, "b": 10})
    first = prepare(make_settings(root), 1)
    (root / "a" / "image 3.png").unlink()
    third = prepare(make_settings(root), 1)
    assert sum(split.examples for split in third.manifest.splits.values()) == 19
    assert third.manifest.fingerprint != first.manifest.fingerprint


def test_more_replicas_make_another_set_only_when_they_need_more_shards(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings]
) -> None:
    root = make_folder({"a": 20, "b": 20})
    assert not prepare(make_settings(root), 1).reused
    four = prepare(make_settings(root), 4)
    assert not four.reused
    assert [len(split.shards) for split in four.manifest.splits.values()] == [4, 4, 4]
    sizes = [shard.examples for shard in four.manifest.splits["train"].shards]
    assert sizes == [8, 8, 8, 8]


def test_a_split_with_few_examples_has_a_shard_for_each(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings]
) -> None:
    prepared = prepare(make_settings(make_folder({"a": 20})), 5)
    assert [shard.examples for shard in prepared.manifest.splits["test"].shards] == [1, 1]
    assert len(prepared.manifest.splits["train"].shards) == 5


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_damaged_set_is_not_reused(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings], damage: str
) -> None:
    root = make_folder({"a": 10, "b": 10})
    prepared = prepare(make_settings(root), 1)
    shard = prepared.folder / prepared.manifest.splits["validation"].shards[0].file
    shard.unlink() if damage == "missing" else shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(UserError, match=re.escape(str(shard))) as error:
        prepare(make_settings(root), 1)
    assert f"rm -r {prepared.folder}" in str(error.value)


def test_stray_and_hidden_files_are_passed_over_and_said_so(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings]
) -> None:
    root = make_folder({"train/a": 9, "test/a": 3})
    (root / "LICENSE").write_text("free")
    (root / ".cache").mkdir()
    (root / "train" / ".DS_Store").write_text("")
    (root / "train" / "a" / "._image 0.png").write_text("")
    (root / "train" / "a" / "notes & <numbers>.txt").write_text("")
    prepared = prepare(make_settings(root), 1)
    assert sum(split.examples for split in prepared.manifest.splits.values()) == 12
    page = (prepared.folder / "statistics.html").read_text()
    assert "1 file was ignored as not an image" in page
    assert "notes &amp; &lt;numbers&gt;.txt" in page


def test_links_are_followed(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings], tmp_path: Path
) -> None:
    elsewhere = make_folder({"a": 4}, name="elsewhere")
    root = make_folder({"a": 4})
    (root / "a" / "linked.png").symlink_to(elsewhere / "a" / "image 0.png")
    (root / "b").symlink_to(elsewhere / "a", target_is_directory=True)
    prepared = prepare(make_settings(root, duplicates="keep"), 1)
    assert {label: sum(split.classes[label] for split in prepared.manifest.splits.values()) for label in "ab"} == {
        "a": 5,
        "b": 4,
    }


def test_names_of_any_bytes_come_through(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings], encoded: Callable[..., bytes]
) -> None:
    root = make_folder({"a": 4})
    odd = [b"new\nline.png", b"caf\xe9.png", "日本 語.png".encode(), b"-rf.png"]
    for number, name in enumerate(odd):
        (root / "a" / os.fsdecode(name)).write_bytes(encoded(90 + number))
    prepared = prepare(make_settings(root), 1)
    keys = {key for split in prepared.manifest.splits for _, key, _ in records(prepared, split)}
    assert {b"a/" + name for name in odd} <= keys


@pytest.mark.parametrize(
    ("folder", "name"), [("My Photos 2", "my_photos_2"), ("2024", "data_2024"), ("日本", "data"), ("x__y-", "x_y")]
)
def test_a_set_is_named_after_its_folder(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings], folder: str, name: str
) -> None:
    prepared = prepare(make_settings(make_folder({"a": 3, "b": 3}, name=folder)), 1)
    assert prepared.manifest.name == prepared.folder.parent.name == name
    assert (prepared.folder / f"{name}-train.tfrecord-00000-of-00001").exists()


def test_the_statistics_page_shows_what_is_in_the_set(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings], encoded: Callable[..., bytes]
) -> None:
    root = make_folder({"cats & dogs": 10, "birds": 30})
    (root / "birds" / "large.png").write_bytes(encoded(5, (200, 100), "RGB"))
    prepared = prepare(make_settings(root, image_size=[6, 5]), 1)
    page = (prepared.folder / "statistics.html").read_text()
    assert "cats &amp; dogs" in page
    assert "200x100" in page
    assert page.count('<img src="data:image/') >= 15
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert len(page) < 300_000


@pytest.mark.parametrize(
    ("sides", "bins"),
    [
        ({300: 4, 333: 5, 510: 2}, [("300–319", 4), ("320–339", 5), ("340–359", 0), ("500–519", 2)]),
        ({20: 1, 700: 7}, [("16–31", 1), ("32–63", 0), ("64–127", 0), ("512–1,023", 7)]),
        ({30: 1, 32: 3}, [("30", 1), ("31", 0), ("32", 3), ("32", 3)]),
    ],
)
def test_bins_of_sizes_are_round_numbers_of_pixels(sides: dict[int, int], bins: list[tuple[str, int]]) -> None:
    found = list(statistics.side_bins(sides))
    assert [*found[:3], found[-1]] == bins
    assert sum(count for _, count in found) == sum(sides.values())


def test_many_sizes_are_a_histogram(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings], encoded: Callable[..., bytes]
) -> None:
    root = make_folder({"a": 0, "b": 0})
    for number in range(40):
        (root / "ab"[number % 2] / f"{number}.png").write_bytes(encoded(number, (100 + number, 200), "RGB"))
    prepared = prepare(make_settings(root, image_size=[6, 5]), 2)
    page = (prepared.folder / "statistics.html").read_text()
    counts = re.findall(r"<tr><td>(\d+–\d+)</td><td>(\d+)</td>", page)
    assert counts == [(f"{start}–{start + 4}", "5") for start in range(100, 140, 5)]


@pytest.fixture
def bucket_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folders in place of /gcs and of the machine's own temporary files."""
    mount, local = tmp_path / "gcs", tmp_path / "local"
    mount.mkdir()
    local.mkdir()
    monkeypatch.setattr(remote, "CLOUD_MOUNT", str(mount))
    monkeypatch.setattr(remote, "is_mounted", lambda path: True)
    monkeypatch.setattr(store, "local_path", lambda path: mount / path.removeprefix("gs://"))
    monkeypatch.setattr(store.tempfile, "tempdir", str(local))
    return mount, local


def test_a_set_in_a_bucket_is_copied_there_with_its_manifest_last(
    make_folder: Callable[..., Path],
    make_settings: Callable[..., DataSettings],
    bucket_folders: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mounted bucket supports neither renaming folders nor locking files, so whole files are copied into it."""
    mount, local = bucket_folders
    copied: list[str] = []
    folders = set()
    copy = store.shutil.copyfile

    def record(source: Path, target: Path) -> None:
        copied.append(source.name)
        own = local / source.relative_to(local).parts[0]
        folders.add((own.name, own.stat().st_mode & 0o777))
        copy(source, target)

    monkeypatch.setattr(store.shutil, "copyfile", record)
    settings = make_settings(make_folder({"a": 10, "b": 10}), store="gs://bucket/datasets/")
    prepared = prepare(settings, 2)
    assert prepared.uri == f"gs://bucket/datasets/image_folder/{prepared.manifest.fingerprint[:16]}"
    assert prepared.folder == mount / prepared.uri.removeprefix("gs://")
    assert copied[-1] == manifest.FILE_NAME
    assert sorted(copied) == sorted(contents(prepared.folder))
    assert folders == {(f"slipway-{os.getuid()}", 0o700)}, "a folder of this user's own"
    assert prepare(settings, 2).reused
    assert list(local.iterdir()) == []
    # The incomplete copy of a killed run is replaced.
    (prepared.folder / manifest.FILE_NAME).unlink()
    assert not prepare(settings, 2).reused
    assert manifest.read(prepared.folder) == prepared.manifest


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_another_users_folder_of_that_name_is_not_written_to(
    make_folder: Callable[..., Path],
    make_settings: Callable[..., DataSettings],
    bucket_folders: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    uid = os.getuid() + 1
    own = bucket_folders[1] / f"slipway-{uid}"
    own.mkdir() if kind == "folder" else own.symlink_to(bucket_folders[0])
    monkeypatch.setattr(store.os, "getuid", lambda: uid)
    with pytest.raises(UserError, match=f"{own}, where .* is not yours") as caught:
        prepare(make_settings(make_folder({"a": 10, "b": 10}), store="gs://bucket/datasets/"), 2)
    assert "TMPDIR" in str(caught.value.fix)


def test_the_disk_of_the_step_must_hold_a_set_that_is_copied_into_a_bucket(
    make_folder: Callable[..., Path],
    make_settings: Callable[..., DataSettings],
    bucket_folders: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the bucket's: its mount reports a petabyte."""
    mount, local = bucket_folders
    free = SimpleNamespace(free=1000), SimpleNamespace(free=10**15)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: free[Path(path).is_relative_to(mount)])
    with pytest.raises(UserError) as error:
        prepare(make_settings(make_folder({"a": 10, "b": 10}), store="gs://bucket/datasets"), 2)
    assert f"Not enough disk space for the data set in {local}" in error.value.message
    assert "0.0 MB are free" in error.value.message
    assert error.value.setting == "vertex.steps.prepare_data.disk"
    assert "--set vertex.steps.prepare_data.disk=200G" in str(error.value.fix)
    assert "data.beam" in str(error.value.fix)
    assert list(local.iterdir()) == []
    assert list(mount.iterdir()) == []


def test_preparing_imports_nothing_heavy(tmp_path: Path) -> None:
    """Writing a data set imports neither TensorFlow nor scikit-learn nor kfp."""
    script = (
        "import sys\n"
        "from slipway.components.prepare_data.prepare import prepare\n"
        "from slipway.components.prepare_data.settings import DataSettings\n"
        f"prepare(DataSettings(source='digits', store={str(tmp_path)!r}), 1)\n"
        "heavy = {'tensorflow', 'tensorflow_datasets', 'sklearn', 'pyarrow', 'kfp', 'matplotlib'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[3])


@pytest.mark.parametrize(("encoding", "imported"), [("jpg", True), ("png", False)])
@pytest.mark.usefixtures("processes")
def test_workers_find_the_decoder_of_their_images_imported(
    encoding: str, imported: bool, tmp_path: Path, encoded: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of each JPEG would otherwise begin with 0.1 s of imports in every worker."""
    for label in ("a", "b"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(6):
            image = encoded(ord(label) + number * 100, encoding={"jpg": "JPEG", "png": "PNG"}[encoding])
            (tmp_path / "images" / label / f"{number}.{encoding}").write_bytes(image)
    monkeypatch.delitem(sys.modules, "simplejpeg", raising=False)
    prepare(DataSettings(source=f"images:{tmp_path}/images", store=str(tmp_path / "store")), replicas=1)
    assert ("simplejpeg" in sys.modules) is imported
