"""User errors: each one is reported with its fix and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import re
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.publishing import store as store_module
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.workers import Tick
from slipway.components.prepare_data.writing.shard_tasks import ShardTasks
from slipway.components.prepare_data.writing.shards import ShardResult, ShardTask
from slipway.core.errors import UserError

MakeFolder = Callable[..., Path]
MakeSettings = Callable[..., DataSettings]


def refused(settings: DataSettings, replicas: int = 1) -> UserError:
    """Return the error; check that nothing is left in the store."""
    with pytest.raises(UserError) as error:
        prepare(settings, replicas)
    assert not Path(settings.store).exists() or not list(Path(settings.store).iterdir())
    assert len(str(error.value).splitlines()) <= 24
    return error.value


@pytest.mark.parametrize(
    ("source", "nearest"),
    [("digit", "digits"), ("image:/data", "images:/data"), ("digits:x", "digits"), ("images", "images:FOLDER")],
)
def test_an_unknown_source_names_the_nearest(make_settings: MakeSettings, source: str, nearest: str) -> None:
    error = refused(make_settings(source))
    assert (error.setting, error.value, error.nearest) == ("data.source", source, nearest)
    assert "images:FOLDER" in (error.allowed or "")


def test_a_bare_path_is_told_how_it_is_written(make_settings: MakeSettings) -> None:
    assert "images:./image_folder" in (refused(make_settings("./image_folder")).fix or "")


def test_a_folder_that_is_missing_names_the_nearest(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    root = make_folder({"a": 3})
    error = refused(make_settings(root.with_name("image_folde")))
    assert error.message == f"There is no folder {root.with_name('image_folde')}."
    assert error.nearest == f"images:{root}"


def test_a_file_is_no_folder(make_settings: MakeSettings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refused(make_settings(tmp_path / "file")).message


def test_an_empty_folder_has_no_classes(make_settings: MakeSettings, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    error = refused(make_settings(tmp_path / "empty"))
    assert "no class folders" in error.message
    assert "class/IMAGE" in (error.allowed or "")


@pytest.mark.parametrize("file", [None, "notes.txt", ".hidden.png"])
def test_a_class_folder_without_images_is_named(
    make_folder: MakeFolder, make_settings: MakeSettings, file: str | None
) -> None:
    root = make_folder({"a": 5, "b": 0})
    if file:
        (root / "b" / file).write_text("")
    assert f"no images in the class folder {root / 'b'}" in refused(make_settings(root)).message


def test_a_class_with_one_image_is_named(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    error = refused(make_settings(make_folder({"cat": 20, "lynx": 1})))
    assert "The class 'lynx' has 1 image" in error.message


def test_a_class_that_is_only_in_test_is_named(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    error = refused(make_settings(make_folder({"train/cat": 9, "test/cat": 3, "test/lynx": 3})))
    assert "'lynx' has no image for the split train" in error.message


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["train/a", "extra/a"], "mixes split folders (train) with other folders (extra)"),
        (["train/a", "val/a", "validation/a"], "several folders for one split: val, validation"),
        (["test/a"], "no folder for the split train"),
        (["a/deeper"], "contains a folder, deeper"),
        (["train/a", "test"], "The split test of"),
    ],
)
def test_other_layouts_are_refused(
    make_folder: MakeFolder, make_settings: MakeSettings, folders: list[str], message: str
) -> None:
    error = refused(make_settings(make_folder(dict.fromkeys(folders, 3))))
    assert message in error.message
    assert "or split/class/" in (error.allowed or "")


def test_images_of_several_sizes_are_both_named(
    make_folder: MakeFolder, make_settings: MakeSettings, encoded: Callable[..., bytes]
) -> None:
    root = make_folder({"a": 30, "b": 30})
    (root / "b" / "odd.png").write_bytes(encoded(5, (9, 4)))
    for replicas in (1, 4):  # in one shard, and in different ones
        error = refused(make_settings(root), replicas)
        assert re.search(r"b/odd\.png has 9x4 pixels", error.message)
        assert re.search(r"[ab]/image \d+\.png has 6x5 pixels", error.message)
        assert (error.setting, error.value) == ("data.image_size", None)


@pytest.mark.usefixtures("processes")
def test_all_problems_are_found_in_one_pass_and_one_command_line_accepts_them(
    make_folder: MakeFolder, make_settings: MakeSettings, encoded: Callable[..., bytes]
) -> None:
    root = make_folder({"train/a": 30, "test/a": 29, "train/b": 20, "test/b": 18})
    (root / "test" / "a" / "copy.png").write_bytes(encoded(7))
    (root / "train" / "b" / "odd.png").write_bytes(encoded(5, (9, 4)))
    (root / "test" / "b" / "cut.png").write_bytes(encoded(1)[:-15])
    error = refused(make_settings(root))
    title, sizes, unusable, copies = error.message.split("\n")
    assert title == "The source has 3 problems:"
    assert "The images have several sizes: " in sizes
    assert "train/b/odd.png has 9x4 pixels" in sizes
    assert unusable == "  1 of 100 images cannot be used: test/b/cut.png (it is cut short)."
    assert copies == "  1 image is also in another split: train/a/image 7.png (train) = test/a/copy.png (test)."
    options = "--set 'data.image_size=[6, 5]' --set data.skip_corrupt=0.01 --set data.duplicates=drop; or "
    assert (error.fix or "").startswith(options)
    accepting = make_settings(root, image_size=(6, 5), skip_corrupt=0.01, duplicates="drop")
    assert prepare(accepting, 1).manifest.skipped_count == 2


def png_header(width: int, height: int) -> bytes:
    """Return a PNG file with this size in its header and almost no data."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    content = b"IDAT" + zlib.compress(b"\0")
    chunks = (
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in (header, content, b"IEND")
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def damaged(root: Path, encoded: Callable[..., bytes]) -> dict[str, str]:
    """Make some images of a folder unusable; return their keys with the expected reasons."""
    image = encoded(1)
    (root / "a" / "image 0.png").write_bytes(image[:-15])
    (root / "a" / "image 1.png").write_bytes(b"")
    (root / "b" / "image 2.png").write_bytes(b"no image")
    (root / "b" / "loop.png").symlink_to("loop.png")
    (root / "b" / "missing.png").symlink_to("nowhere.png")
    (root / "b" / "disk.png").symlink_to("/proc/self/mem")  # reading it fails as on a bad disk, even for root
    (root / "b" / "bomb.png").write_bytes(png_header(10_000, 10_000))
    (root / "b" / "photo.gif").write_bytes(b"GIF89a")
    return {
        "a/image 0.png": "it is cut short",
        "a/image 1.png": "it is empty",
        "b/image 2.png": "it is not an image of a supported format",
        "b/loop.png": "it cannot be read: Too many levels of symbolic links",
        "b/photo.gif": "its GIF header is damaged or cut short",
        "b/missing.png": "it cannot be read: No such file or directory",
        "b/disk.png": "it cannot be read: Input/output error",
        "b/bomb.png": "it has 10000x10000 pixels, more than 89,478,485",
    }


def test_images_that_cannot_be_used_are_named(
    make_folder: MakeFolder, make_settings: MakeSettings, encoded: Callable[..., bytes]
) -> None:
    root = make_folder({"a": 49, "b": 46})
    reasons = damaged(root, encoded)
    for allowed in (0.0, 0.0799):
        error = refused(make_settings(root, skip_corrupt=allowed))
        assert error.message.startswith("8 of 100 images cannot be used: ")
        assert error.message.endswith("; and 3 more.")
        assert sum(f"{key} ({reason})" in error.message for key, reason in reasons.items()) == 5
        assert (error.setting, error.value) == ("data.skip_corrupt", allowed)
        assert "--set data.skip_corrupt=0.08; or fix" in (error.fix or "")


@pytest.mark.parametrize("check", ["header", "decode"])
def test_images_within_the_allowed_share_are_skipped_without_a_trace(
    make_folder: MakeFolder, make_settings: MakeSettings, encoded: Callable[..., bytes], check: str
) -> None:
    root = make_folder({"a": 49, "b": 46})
    reasons = damaged(root, encoded)
    first = prepare(make_settings(root, skip_corrupt=0.08, check=check), 3)
    assert first.manifest.skipped_count == 8
    assert {item.key: item.reason for item in first.manifest.skipped} == reasons
    page = (first.folder / "statistics.html").read_text()
    assert all(key in page and reason in page for key, reason in reasons.items())
    for key in reasons:
        (root / key).unlink()
    second = prepare(make_settings(root, skip_corrupt=0.08, check=check), 3)
    assert shards(second) == shards(first)
    assert not second.reused
    assert second.manifest.skipped_count == 0


def test_one_corrupt_image_does_not_write_a_shard_twice(
    make_folder: MakeFolder, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder({"a": 49, "b": 46})
    (root / "a" / "image 3.png").write_bytes(b"")
    ends: list[tuple[str, list[str]]] = []
    run = ShardTasks._run

    def recorded(self: ShardTasks, tasks: list[ShardTask], tick: Tick) -> Iterator[tuple[int, ShardResult]]:
        ends.append(("write" if tasks[0].path else "validate", [task.result.name for task in tasks]))
        return run(self, tasks, tick)

    monkeypatch.setattr(ShardTasks, "_run", recorded)
    prepare(make_settings(root, skip_corrupt=0.08), 3)
    assert [kind for kind, _ in ends] == ["validate", "write"]
    assert len(ends[1][1]) == 9
    ends.clear()
    (root / "a" / "image 3.png").unlink()
    prepare(make_settings(root), 3)
    assert [kind for kind, _ in ends] == ["write"]  # validated while written


def shards(prepared: Prepared) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in prepared.folder.glob("*.tfrecord-*")}


def test_a_class_that_is_left_without_images_is_named(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    root = make_folder({"a": 49, "lynx": 4})
    for number in range(3):
        (root / "lynx" / f"image {number}.png").write_bytes(b"")
    assert "'lynx' has 1 image" in refused(make_settings(root, skip_corrupt=0.1)).message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    root = make_folder({"a": 9})
    (root / "a" / "image 3.png").chmod(0)
    assert "a/image 3.png (it cannot be read: Permission denied)" in refused(make_settings(root)).message


def test_a_source_that_changes_meanwhile_is_refused(
    make_folder: MakeFolder, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder({"a": 9})
    whole = store_module.require_room

    def grow(*arguments: object) -> None:
        with (root / "a" / "image 3.png").open("ab") as file:
            file.write(b"more")
        whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("slipway.components.prepare_data.prepare.require_room", grow)
    assert "image 3.png changed while" in refused(make_settings(root)).message


def test_a_store_that_is_a_file_is_refused(
    make_folder: MakeFolder, make_settings: MakeSettings, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written") as error:
        prepare(make_settings(make_folder({"a": 9}), store=str(tmp_path / "file")), 1)
    assert error.value.setting == "data.store"


def test_a_mount_that_only_root_may_write_to_names_the_user_of_the_containers() -> None:
    store = store_module.Store("gs://bucket/datasets", "digits")
    with (
        pytest.raises(UserError, match="cannot be written to /gcs/bucket") as error,
        store_module.store_errors_named(store, 0),
    ):
        raise PermissionError(errno.EACCES, "Permission denied", "/gcs/bucket/datasets")
    assert "without vertex.build.run_as" in str(error.value.fix)


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    make_folder: MakeFolder, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda path: Usage)
    error = refused(make_settings(make_folder({"a": 9})))
    assert "Not enough disk space for the data set" in error.message
    assert "0.0 MB are free" in error.message


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here, which takes root: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
def test_a_disk_that_fills_up_while_shards_are_written_is_named(
    make_folder: MakeFolder, make_settings: MakeSettings, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder({"a": 40, "b": 40}, size=(100, 100))  # 800 kB
    store = small_disk / "store"
    assert "needs about 0.8 MB, 0.4 MB are free" in refused(make_settings(root, store=str(store))).message
    # As if there had been enough space at the check.
    monkeypatch.setattr("slipway.components.prepare_data.prepare.require_room", lambda *arguments: None)
    error = refused(make_settings(root, store=str(store)), replicas=6)
    assert f"Not enough disk space for the data set in {store}" in error.message
    assert "needs about 0.8 MB" in error.message
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("csv:{}/pipe", "pipe is neither a file nor a folder"),
        ("images:{}/pipe.tar", "pipe.tar is neither a file nor a folder"),
        ("images:{}/pipe.zip", "pipe.zip is neither a file nor a folder"),
        ("tfrecord:{}/pipe", "pipe is neither a file nor a folder"),
        ("csv:/dev/null", "/dev/null is neither a file nor a folder"),
        ("csv:/dev/zero", "/dev/zero is neither a file nor a folder"),
        ("csv:/proc", "/proc cannot be read: Is a directory"),
        ("csv:/proc/self/mem", "/proc/self/mem cannot be read: Input/output error"),
        ("tfrecord:/proc/self/mem", "/proc/self/mem cannot be read: Input/output error"),
        ("csv:/" + "x" * 5000, "cannot be read: File name too long"),
        ("images:/" + "x" * 5000, "cannot be read: File name too long"),
        ("csv:a\0b", r"The source 'csv:a\\x00b' has a zero byte"),
        ("images:{}/\udcff", r"udcff' has a zero byte or bytes that are not UTF-8"),
    ],
)
def test_a_source_that_is_no_regular_file(
    tmp_path: Path, make_settings: MakeSettings, source: str, message: str
) -> None:
    for name in ("pipe", "pipe.tar", "pipe.zip"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=message) as error:
        prepare(make_settings(source.format(tmp_path), features={"x": "number", "label": "integer"}), 1)
    str(error.value).encode()


def test_a_class_folder_whose_name_is_not_utf_8(make_folder: Callable[..., Path], make_settings: MakeSettings) -> None:
    root = make_folder({"a": 3, "b": 3})
    (root / "b").rename(root / "\udcff")
    with pytest.raises(UserError, match=r"The class folder '\\udcff' in .* has unprintable characters") as error:
        prepare(make_settings(root), 1)
    str(error.value).encode()
    (root / "\udcff").rename(root / "b")
    os.mkfifo(root / "b" / "pipe.png")
    assert sum(split.examples for split in prepare(make_settings(root), 1).manifest.splits.values()) == 6
