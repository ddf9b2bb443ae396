"""The source tfrecord: examples are stored unchanged; damaged records are counted and named."""

from __future__ import annotations

import gzip
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.messages import example, features_of, values
from slipway.components.prepare_data.encoding.records import read_records, scan
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError
from slipway.core.tfrecord import CHECKSUM, LENGTH, masked_crc32c

MakeSettings = Callable[..., DataSettings]
FEATURES = "photo: image\nphoto/class: {classes: [cat, dog]}\nphoto/box: bounding_box\nkey: text\nage: integer\n"
PLAIN = {"image": "image", "label": {"classes": 2}}


def framed(message: bytes) -> bytes:
    length = LENGTH.pack(len(message))
    return length + CHECKSUM.pack(masked_crc32c(length)) + message + CHECKSUM.pack(masked_crc32c(message))


def feature(value: Any) -> bytes:
    return Kind.of(value).encode(value)


def record(image: bytes, label: Any, **additional: Any) -> bytes:
    features = {"image": image, "label": label, **additional}
    return framed(example((name.encode(), feature(value)) for name, value in features.items()))


def stored(prepared: Prepared) -> dict[str, list[dict[str, list[Any]]]]:
    """Return each split's examples with all their features."""
    result: dict[str, list[dict[str, list[Any]]]] = {}
    for split, about in prepared.manifest.splits.items():
        for shard in about.shards:
            with (prepared.folder / shard.file).open("rb") as file:
                for message in read_records(file):
                    found = {name.decode(): values(value) for name, value in features_of(message).items()}
                    result.setdefault(split, []).append(found)
    return result


@pytest.fixture
def write(tmp_path: Path, encoded: Callable[..., bytes]) -> Callable[..., Path]:
    """Writes files with the given numbers of plain records; returns their folder."""

    def make(files: Mapping[str, int]) -> Path:
        folder = tmp_path / "flowers"
        folder.mkdir(exist_ok=True)
        for offset, (name, count) in enumerate(files.items()):
            (folder / name).parent.mkdir(exist_ok=True)
            images = [encoded(offset * 1000 + number) for number in range(count)]
            (folder / name).write_bytes(b"".join(record(image, number % 2) for number, image in enumerate(images)))
        return folder

    return make


def test_features_of_any_names_come_through(
    tmp_path: Path, make_settings: MakeSettings, encoded: Callable[..., bytes]
) -> None:
    (tmp_path / "features.yaml").write_text(FEATURES)
    images = {f"k {number}": encoded(number) for number in range(40)}
    records = []
    for number, (key, image) in enumerate(images.items()):
        features = {"photo": image, "photo/class": number % 2, "key": key, "age": number, "unknown": "x"}
        boxes = (b"photo/box", Kind("bounding_box").encode([0, 0, 0.5, number / 40]))
        records.append(framed(example([boxes, *((name.encode(), feature(v)) for name, v in features.items())])))
    (tmp_path / "a.tfrecord").write_bytes(b"".join(records[:17]))
    (tmp_path / "b.tfrecord").write_bytes(b"".join(records[17:]))
    settings = make_settings(
        f"tfrecord:{tmp_path}/?.tfrecord", features=str(tmp_path / "features.yaml"), group_by="column:age"
    )
    prepared = prepare(settings, 2)
    about = prepared.manifest
    assert about.classes == ["cat", "dog"]
    assert about.features == {"photo/box": "bounding_box", "age": "integer"}
    found = {one["key"][0].decode(): one for split in stored(prepared).values() for one in split}
    assert {key: one["image"][0] for key, one in found.items()} == images
    for number, key in enumerate(images):
        assert found[key]["label"] == [number % 2]
        assert found[key]["age"] == [number]
        assert found[key]["photo/box"] == pytest.approx([0, 0, 0.5, number / 40])
        assert found[key].keys() == {"image", "label", "key", "age", "photo/box"}
    import tensorflow_datasets

    builder = tensorflow_datasets.builder_from_directory(str(prepared.folder))
    for one in tensorflow_datasets.as_numpy(builder.as_dataset(split="train")):
        assert one["age"] == int(one["key"].decode().split()[1])
        assert one["photo/box"].shape == (4,)
        assert one["image"].shape == (6, 5, 1)
    assert prepare(settings, 2).reused


@pytest.mark.usefixtures("processes")
def test_splits_stand_in_the_names_of_files_or_folders(write: Callable[..., Path], make_settings: MakeSettings) -> None:
    for number, names in enumerate(
        [("x-train.tfrecord-00000-of-00002", "x-train.tfrecord-00001-of-00002", "x-val.tfrecord"),
         ("train/1.tfrecord", "train/2.tfrecord", "validation/1.tfrecord")]
    ):  # fmt: skip
        root = write(dict(zip(names, (20, 21, 9), strict=True)))
        pattern = f"tfrecord:{root}/x-*" if number == 0 else f"tfrecord:{root}/*/*.tfrecord"
        prepared = prepare(make_settings(pattern, features=PLAIN, name="flowers"), 1)
        sizes = {name: split.examples for name, split in prepared.manifest.splits.items()}
        assert sizes["validation"] == 9
        assert sizes["train"] + sizes["test"] == 41
        assert 2 <= sizes["test"] <= 6
        assert prepared.manifest.classes == ["0", "1"]
        keys = {one["key"][0].decode() for one in stored(prepared)["validation"]}
        assert keys == {f"{names[2]}/{number}" for number in range(9)}


@pytest.mark.parametrize("group_by", [None, "column:x"])
def test_rows_without_keys_are_recognized_in_another_order_and_other_files(
    make_settings: MakeSettings, tmp_path: Path, group_by: str | None
) -> None:
    def prepared(rows: Sequence[int], border: int) -> Prepared:
        messages = []
        for number in rows:
            entries = [example([(b"x", feature(float(number // 2 % 30)))]), example([(b"label", feature(number % 2))])]
            messages.append(framed(b"".join(entries[:: 1 if border == 10 else -1])))  # serialized maps have no order
        (tmp_path / "1.tfrecord").write_bytes(b"".join(messages[:border]))
        (tmp_path / "2.tfrecord").write_bytes(b"".join(messages[border:]))
        about = {"features": {"x": "number", "label": {"classes": 2}}, "inputs": ["x"], "group_by": group_by}
        return prepare(make_settings(f"tfrecord:{tmp_path}", name="rows", **about), 1)

    first, again = prepared(range(80), 10), prepared(range(80)[::-1], 50)
    assert len({one["key"][0] for split in stored(first).values() for one in split}) == 80
    values = [{one["x"][0] for one in split} for split in stored(first).values()]
    assert (sum(map(len, values)) == len(set().union(*values))) == (group_by is not None)
    assert again.manifest.fingerprint == first.manifest.fingerprint


def damaged(path: Path) -> dict[str, str]:
    """Damage three of a file's records; return their keys with the expected reasons."""
    data = bytearray(path.read_bytes())
    with path.open("rb") as file:
        offsets = [found.offset for found in scan(file)]
    data[offsets[3] + 40] ^= 1  # a record's content
    data[offsets[8]] ^= 4  # a record's length
    length = LENGTH.pack(1 << 62)
    data[offsets[20] : offsets[20] + 12] = length + CHECKSUM.pack(masked_crc32c(length))
    path.write_bytes(data)
    lost, other = offsets[9] - offsets[8], offsets[21] - offsets[20]
    return {
        "a.tfrecord/3": "its checksum is wrong",
        "a.tfrecord/8": f"{lost} bytes from byte {offsets[8]:,} on are damaged; the records in them are lost",
        "a.tfrecord/20": f"{other} bytes from byte {offsets[20]:,} on are damaged; the records in them are lost",
    }


def test_damage_is_counted_and_named(write: Callable[..., Path], make_settings: MakeSettings) -> None:
    root = write({"a.tfrecord": 50, "b.tfrecord": 50})
    reasons = damaged(root / "a.tfrecord")
    source = f"tfrecord:{root}"
    with pytest.raises(UserError) as error:
        prepare(make_settings(source, features=PLAIN, skip_corrupt=0.029), 1)
    assert error.value.message.startswith("3 of 100 images cannot be used: ")
    assert all(f"{key} ({reason})" in error.value.message for key, reason in reasons.items())
    assert not Path(make_settings(source).store).exists()
    prepared = prepare(make_settings(source, features=PLAIN, skip_corrupt=0.03), 1)
    assert prepared.manifest.skipped_count == 3
    assert {item.key: item.reason for item in prepared.manifest.skipped} == reasons
    assert sum(split.examples for split in prepared.manifest.splits.values()) == 97
    page = (prepared.folder / "statistics.html").read_text()
    assert all(key in page and reason in page for key, reason in reasons.items())


@pytest.mark.parametrize("cut", [3, 1000, "header"])
def test_a_file_that_is_cut_off_is_refused_unless_the_user_keeps_it(
    write: Callable[..., Path], make_settings: MakeSettings, cut: int | str
) -> None:
    root = write({"a.tfrecord": 50, "b.tfrecord": 50})
    path = root / "a.tfrecord"
    with path.open("rb") as file:
        offsets = [found.offset for found in scan(file)]
    os.truncate(path, offsets[30] + 7 if cut == "header" else path.stat().st_size - int(cut))
    whole = sum(offset < path.stat().st_size for offset in offsets) - 1
    content = path.read_bytes()
    settings = make_settings(f"tfrecord:{root}", features=PLAIN, skip_corrupt=0.9)
    with pytest.raises(UserError, match=f"a.tfrecord is cut off or damaged after {whole} records") as error:
        prepare(settings, 1)
    assert "--set data.truncated=keep" in str(error.value.fix)
    manifest = prepare(settings.model_copy(update={"truncated": "keep"}), 1).manifest
    assert sum(split.examples for split in manifest.splits.values()) == whole + 50
    assert [(one.key, one.reason) for one in manifest.skipped] == [(f"a.tfrecord/{whole}", "the file ends inside it")]
    assert path.read_bytes() == content
    with pytest.raises(UserError, match="cut off"):  # the data set that was kept is not reused
        prepare(settings, 1)


@pytest.mark.parametrize("allowed", [0.0, 0.08])
def test_damage_when_listed_and_when_read_is_counted_together(
    write: Callable[..., Path], make_settings: MakeSettings, allowed: float
) -> None:
    root = write({"a.tfrecord": 50})
    extra = [record(b"no image", 0), record(b"x", 5), record(b"x", 0.5), record(b"x", "cat"), framed(b"\xff\xff")]
    with (root / "a.tfrecord").open("ab") as file:
        file.writelines(extra)
    settings = make_settings(f"tfrecord:{root}", features=PLAIN, skip_corrupt=allowed)
    with pytest.raises(UserError, match="5 of 55 images cannot be used") as error:
        prepare(settings, 1)
    for reason in (
        "a.tfrecord/50 (it is not an image of a supported format)",
        "a.tfrecord/51 (its label is 5, not in 0 to 1)",
        "a.tfrecord/52 (its label 0.5 is not an integer)",
        "a.tfrecord/53 (its label b'cat' is not an integer)",
        "a.tfrecord/54 (it is",
    ):
        assert reason in error.value.message
    prepared = prepare(make_settings(f"tfrecord:{root}", features=PLAIN, skip_corrupt=0.1), 1)
    assert prepared.manifest.skipped_count == len(prepared.manifest.skipped) == 5


def test_labels_of_text_and_other_integers(
    tmp_path: Path, make_settings: MakeSettings, encoded: Callable[..., bytes]
) -> None:
    for kind, labels in (("text", ["dög", "cat"]), ("integer", [10, 9]), ("integer", [10.0, 9.0])):
        content = b"".join(record(encoded(number), labels[number % 2]) for number in range(20))
        (tmp_path / "a.tfrecord").write_bytes(content)
        settings = make_settings(
            f"tfrecord:{tmp_path}/a.tfrecord", features={"image": "image", "label": kind}, label="label", name=kind
        )
        prepared = prepare(settings, 1)
        assert prepared.manifest.classes == (["cat", "dög"] if kind == "text" else ["9", "10"])


def refused(settings: DataSettings) -> UserError:
    with pytest.raises(UserError) as error:
        prepare(settings, 1)
    assert not Path(settings.store).exists()
    assert len(str(error.value).splitlines()) <= 24
    return error.value


def test_mistakes_are_named(write: Callable[..., Path], make_settings: MakeSettings) -> None:
    root = write({"train.tfrecord": 20, "test.tfrecord": 0})
    source = f"tfrecord:{root}/*.tfrecord"
    assert "The split test is empty" in refused(make_settings(source, features=PLAIN)).message
    (root / "test.tfrecord").rename(root / "other.tfrecord")
    assert "Some files name a split, others do not" in refused(make_settings(source, features=PLAIN)).message
    (root / "other.tfrecord").unlink()
    error = refused(make_settings(source))
    assert (error.setting, f"no features file {root / 'features.json'}" in error.message) == ("data.features", True)
    error = refused(make_settings(source, features={"image": "imge", "label": {"classes": 2}}))
    assert (error.setting, error.nearest) == ("data.features.image", "image")
    error = refused(make_settings(source, features={"a": "image", "b": "image", "label": {"classes": 2}}))
    assert (error.setting, error.allowed, error.fix) == ("data.image", "a or b", "--set data.image=a")
    error = refused(make_settings(source, features=PLAIN, label="lable"))
    assert (error.setting, error.nearest) == ("data.label", "label")
    error = refused(make_settings(source, features={**PLAIN, "age": "integer"}, group_by="column:ages"))
    assert (error.setting, error.nearest) == ("data.group_by", "column:age")
    error = refused(make_settings(f"tfrecord:{root}/none*"))
    assert error.nearest == f"tfrecord:{root}/train.tfrecord"
    (root / "train.tfrecord").write_bytes(gzip.compress((root / "train.tfrecord").read_bytes()))
    error = refused(make_settings(source, features=PLAIN))
    assert "compressed as a whole" in error.message and error.fix
    subprocess.run(error.fix, shell=True, check=True)
    assert prepare(make_settings(source, features=PLAIN), 1).manifest.splits["train"].examples


def test_a_key_that_is_there_twice_is_refused(
    tmp_path: Path, make_settings: MakeSettings, encoded: Callable[..., bytes]
) -> None:
    for name in ("a", "b"):
        content = b"".join(record(encoded(number), 0, key=f"{name}{number}") for number in range(9))
        (tmp_path / f"{name}.tfrecord").write_bytes(content + record(encoded(9), 0, key="same"))
    settings = make_settings(f"tfrecord:{tmp_path}/*.tfrecord", features={**PLAIN, "key": "text"})
    assert "The key same is not unique: examples 9 and 19 have it" in refused(settings).message
