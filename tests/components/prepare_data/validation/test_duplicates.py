"""data.duplicates: images with identical bytes in two splits are rejected or dropped from one."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.components.prepare_data.encoding.records import RecordEncoder, read_records
from slipway.components.prepare_data.examples import SPLITS
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.validation import duplicates
from slipway.components.prepare_data.validation.duplicates import HashedShard, find_copies, image_hash
from slipway.core import manifest
from slipway.core.errors import UserError
from tests.components.prepare_data.conftest import example_parts

MakeFolder = Callable[..., Path]
MakeSettings = Callable[..., DataSettings]


def split_images(prepared: Prepared) -> dict[str, dict[str, bytes]]:
    """Return the images of each split by key."""
    found: dict[str, dict[str, bytes]] = {}
    for split, about in prepared.manifest.splits.items():
        found[split] = {}
        for shard in about.shards:
            with (prepared.folder / shard.file).open("rb") as file:
                parts = [example_parts(message) for message in read_records(file)]
            assert len(parts) == shard.examples > 0
            found[split] |= {key.decode(): image for image, key, _ in parts}
        assert len(found[split]) == about.examples
    return found


def shared(images: dict[str, dict[str, bytes]]) -> set[bytes]:
    """Return the images that are in more than one split."""
    train, validation, test = (set(images[split].values()) for split in SPLITS)
    return train & validation | train & test | validation & test


@pytest.fixture
def own_splits(make_folder: MakeFolder) -> Path:
    """A source with splits: one image in all three, one in train and validation, one twice in train only."""
    root = make_folder({f"{split}/{label}": 12 for split in SPLITS for label in "ab"})
    test, validation, train = (root / split / "a" for split in reversed(SPLITS))
    for copy in (train / "x.png", train / "y.png", validation / "x.png"):
        copy.write_bytes((test / "image 0.png").read_bytes())
    (root / "train" / "b" / "z.png").write_bytes((validation / "image 1.png").read_bytes())
    (train / "twice.png").write_bytes((train / "image 5.png").read_bytes())
    return root


def test_copies_are_refused_by_name(own_splits: Path, make_settings: MakeSettings) -> None:
    with pytest.raises(UserError) as error:
        prepare(make_settings(own_splits), 2)
    assert error.value.message == (
        "4 images are also in another split: "
        "train/a/x.png (train) = test/a/image 0.png (test); train/a/y.png (train) = test/a/image 0.png (test); "
        "train/b/z.png (train) = validation/a/image 1.png (validation); "
        "validation/a/x.png (validation) = test/a/image 0.png (test)."
    )
    assert (error.value.setting, error.value.value) == ("data.duplicates", "refuse")
    assert "--set data.duplicates=drop; or" in (error.value.fix or "")
    assert not Path(make_settings(own_splits).store).exists()


def test_copies_are_kept_where_that_is_wanted(own_splits: Path, make_settings: MakeSettings) -> None:
    images = split_images(prepare(make_settings(own_splits, duplicates="keep"), 2))
    assert sum(map(len, images.values())) == 3 * 24 + 5
    assert len(shared(images)) == 2


@pytest.mark.parametrize("replicas", [1, 5])
def test_the_test_splits_copy_stays(own_splits: Path, make_settings: MakeSettings, replicas: int) -> None:
    prepared = prepare(make_settings(own_splits, duplicates="drop"), replicas)
    images = split_images(prepared)
    assert not shared(images)
    dropped = {"train/a/x.png", "train/a/y.png", "train/b/z.png", "validation/a/x.png"}
    files = {str(path.relative_to(own_splits)) for path in own_splits.rglob("*.png")}
    assert set().union(*images.values()) == files - dropped  # "twice" stays: both are in train
    about = prepared.manifest
    assert about.skipped_count == 4
    assert {item.key: item.reason for item in about.skipped} == {
        **dict.fromkeys(
            ("train/a/x.png", "train/a/y.png", "validation/a/x.png"),
            "it is the same image as test/a/image 0.png in the split test",
        ),
        "train/b/z.png": "it is the same image as validation/a/image 1.png in the split validation",
    }
    assert "4 images skipped" in (prepared.folder / "statistics.html").read_text()
    for split in about.splits.values():
        manifest.verify(prepared.folder, split.shards)
    assert prepare(make_settings(own_splits, duplicates="drop"), replicas).reused


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_what_is_dropped_does_not_depend_on_the_workers(
    make_folder: MakeFolder, make_settings: MakeSettings, tmp_path: Path
) -> None:
    """The source has no splits; half of its images are copies, and one is damaged."""
    root = make_folder({"a": 60, "b": 60})
    for number in range(60):
        (root / "b" / f"image {number}.png").write_bytes((root / "a" / f"image {number}.png").read_bytes())
    (root / "a" / "image 7.png").write_bytes(b"")
    choices = {"duplicates": "drop", "skip_corrupt": 0.1}
    sets = [prepare(make_settings(root, workers=n, store=str(tmp_path / str(n)), **choices), 3) for n in (1, 3)]
    contents = [{path.name: path.read_bytes() for path in prepared.folder.iterdir()} for prepared in sets]
    assert contents[0] == contents[1]
    images = split_images(sets[0])
    assert not shared(images)
    assert len(set().union(*(found.values() for found in images.values()))) == 60  # at least one copy of each image
    assert sum(map(len, images.values())) + sets[0].manifest.skipped_count == 120
    assert len(images["test"]) == 12  # nothing was dropped from it


def test_a_class_of_copies_only_is_named(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    root = make_folder({f"{split}/{label}": 5 for split in SPLITS for label in "ab"})
    for number in range(5):
        path = root / "train" / "b" / f"image {number}.png"
        path.write_bytes((root / "test" / "a" / f"image {number}.png").read_bytes())
    with pytest.raises(UserError, match="'b' has no image for the split train") as error:
        prepare(make_settings(root, duplicates="drop"), 1)
    assert "copies" in (error.value.fix or "")


shard_images = st.lists(st.integers(0, 12), max_size=12)


@pytest.mark.parametrize("checksums", [2**32, 1], ids=["checksums differ", "checksums are all the same"])
@given(splits=st.fixed_dictionaries({split: st.lists(shard_images, max_size=3) for split in SPLITS}))
def test_without_the_copies_no_image_is_in_two_splits(
    tmp_path_factory, checksums: int, splits: dict[str, list[list[int]]]
) -> None:
    """No image is lost, test loses nothing, and each image stays in the preferred one of its splits.

    This also holds if different images have the same checksum and length.
    """
    folder = tmp_path_factory.mktemp("hashes")
    where: dict[bytes, tuple[str, int]] = {}
    shards: list[HashedShard] = []
    encoder = RecordEncoder()
    for split, found in splits.items():
        for number, images in enumerate(found):
            records, hashed, offsets = b"", array("Q"), array("Q")
            for index, image in enumerate(images):
                key, content = f"{split} {number} {index}".encode(), image.to_bytes() * 20
                where[key] = (split, image)
                with mock.patch.object(duplicates, "_crc32c", lambda data: zlib.crc32(data) % checksums):
                    hashed.append(image_hash(content))
                offsets.append(len(records))
                records += encoder.encode(content, key, 0)
            shard, hashes = folder / f"{split} {number}", folder / f"{split} {number}.hashes"
            shard.write_bytes(records)
            hashes.write_bytes(hashed.tobytes() + offsets.tobytes())
            shards.append(HashedShard(split, shard, hashes))
    copies, _ = find_copies(shards, folder / "equal", str)
    assert len({copy.key for copy in copies}) == len(copies)
    keeper = {image: split for name in SPLITS for split, image in where.values() if split == name}  # the last wins
    assert {copy.key for copy in copies} == {key for key, (split, image) in where.items() if split != keeper[image]}
    for copy in copies:
        assert where[copy.kept] == (copy.keeper, where[copy.key][1])
        assert where[copy.key][0] == copy.split != copy.keeper


def test_images_with_several_labels_are_noted(make_folder: Callable[..., Path], make_settings: MakeSettings) -> None:
    root = make_folder({"train/a": 20, "train/b": 20, "test/a": 5, "test/b": 5})
    for source, target in [("train/a/image 3", "train/b/x"), ("train/a/image 3", "train/b/y"),
                           ("train/a/image 4", "train/a/same"), ("test/b/image 1", "train/a/z")]:  # fmt: skip
        (root / f"{target}.png").write_bytes((root / f"{source}.png").read_bytes())
    prepared = prepare(make_settings(root, duplicates="drop"), 2)
    (note,) = prepared.manifest.notes
    assert note == (
        "2 images have several labels: test/b/image 1.png (b) = train/a/z.png (a); train/a/image 3.png (a) = "
        "train/b/x.png (b). Correct the labels, or remove the copies."
    )
    assert prepare(make_settings(root, duplicates="drop"), 2).manifest.notes == [note]
    assert not prepare(make_settings(root, duplicates="keep"), 2).manifest.notes
