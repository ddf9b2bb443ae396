"""A data set is identified by the content of its source; names, sizes and times only tell whether to read it again."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from slipway.components.prepare_data.listing.plan import Plan, Target
from slipway.components.prepare_data.listing.split import Summary
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.publishing import store
from slipway.components.prepare_data.publishing.remembered import Listings
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.writing.shard_tasks import ShardTasks
from slipway.core import events

MakeFolder = Callable[..., Path]
MakeSettings = Callable[..., DataSettings]
KINDS = ("folder", "tar", "tar.gz", "zip", "csv")
READ = "The images have other modification times than before. Reading all 40 (0.0 MB) took "
HOUR = 3600 * 10**9


@pytest.fixture
def folder(make_folder: MakeFolder) -> Path:
    return make_folder({"a": 20, "b": 20})


@pytest.fixture
def messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Returns the messages for the user since the last call."""
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv(events.EVENTS_VARIABLE, str(path))

    def read() -> list[str]:
        found = [json.loads(line) for line in path.read_text().splitlines()]
        path.unlink()
        return [event["text"] for event in found if event["event"] == "message"]

    return read


def source_of(folder: Path, kind: str, *, shuffled: bool = False) -> str:
    """Return the source with the images of `folder`, written anew; archives and lists may have another order."""
    if kind == "folder":
        return f"images:{folder}"
    files = sorted(folder.rglob("*.png"))
    if shuffled:
        random.Random(1).shuffle(files)
    path = folder.with_name(f"source.{kind}")
    names = [file.relative_to(folder).as_posix() for file in files]
    if kind == "csv":
        path = folder / "source.csv"
        path.write_text("image,label\n" + "".join(f"{name},{name[0]}\n" for name in names))
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as packed:
            for file, name in zip(files, names, strict=True):
                packed.write(file, name)
    else:
        with tarfile.open(path, "w:gz" if kind == "tar.gz" else "w") as archive:
            for file, name in zip(files, names, strict=True):
                archive.add(file, name)
    return f"csv:{path}" if kind == "csv" else f"images:{path}"


def touch(folder: Path, nanoseconds: int = HOUR) -> None:
    """Change the modification time of every image."""
    for path in folder.rglob("*.png"):
        os.utime(path, ns=(0, path.stat().st_mtime_ns + nanoseconds))


def change(path: Path) -> None:
    """Replace an image by another one with as many bytes."""
    other = next(other for other in sorted(path.parent.iterdir()) if other != path)
    content = other.read_bytes()
    assert len(content) == path.stat().st_size
    path.write_bytes(content)


def refuse_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardTasks, "read", lambda *arguments: pytest.fail("the images are read"))


@pytest.mark.parametrize("kind", KINDS)
def test_touched_files_are_read_once_and_the_data_set_is_reused(
    folder: Path,
    make_settings: MakeSettings,
    messages: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    first = prepare(make_settings(source_of(folder, kind)), 1)
    messages()
    touch(folder)
    settings = make_settings(source_of(folder, kind, shuffled=True))
    second = prepare(settings, 1)
    assert (second.reused, second.folder, second.manifest) == (True, first.folder, first.manifest)
    (said,) = messages()
    assert said.startswith(READ)
    assert said.endswith(" s: they are the same, and the prepared data set is reused.")
    refuse_to_read(monkeypatch)
    assert prepare(settings, 1).reused


def test_a_fresh_copy_elsewhere_is_the_same_data_set(folder: Path, make_settings: MakeSettings, tmp_path: Path) -> None:
    first = prepare(make_settings(folder), 1)
    copy = tmp_path / "elsewhere" / folder.name
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)
    assert (copy / "a" / "image 3.png").stat().st_mtime_ns != (folder / "a" / "image 3.png").stat().st_mtime_ns
    second = prepare(make_settings(copy), 1)
    assert (second.reused, second.folder) == (True, first.folder)


@pytest.mark.parametrize("kind", KINDS)
def test_other_content_of_the_same_size_is_another_data_set(
    folder: Path, make_settings: MakeSettings, messages: Callable[[], list[str]], kind: str
) -> None:
    first = prepare(make_settings(source_of(folder, kind), duplicates="keep"), 1)
    messages()
    change(folder / "a" / "image 3.png")
    touch(folder)
    second = prepare(make_settings(source_of(folder, kind), duplicates="keep"), 1)
    assert not second.reused
    assert second.manifest.fingerprint != first.manifest.fingerprint
    assert messages()[0].endswith(" s: their content has changed.")


def test_a_restored_time_hides_a_change(folder: Path, make_settings: MakeSettings) -> None:
    """The documented limit: names, sizes and times that are remembered stand for the content."""
    first = prepare(make_settings(folder, duplicates="keep"), 1)
    path = folder / "a" / "image 3.png"
    before = path.stat().st_mtime_ns
    change(path)
    os.utime(path, ns=(0, before))
    assert prepare(make_settings(folder, duplicates="keep"), 1).folder == first.folder


def test_an_additional_image_of_a_list_is_part_of_the_content(
    folder: Path, make_settings: MakeSettings, encoded: Callable[..., bytes]
) -> None:
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.png"))]
    (folder / "depth.png").write_bytes(encoded(1))
    (folder / "list.csv").write_text("image,label,depth\n" + "".join(f"{name},{name[0]},depth.png\n" for name in names))
    settings = make_settings(f"csv:{folder / 'list.csv'}", features={"depth": "image"})
    first = prepare(settings, 1)
    os.utime(folder / "depth.png", ns=(0, 0))
    assert prepare(settings, 1).folder == first.folder
    (folder / "depth.png").write_bytes(encoded(2))
    assert prepare(settings, 1).folder != first.folder


def test_equal_fingerprints_are_equal_content(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    """Random changes, most of which keep all names and sizes, and their reversal."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    folder = make_folder({"a": 6, "b": 6})
    contents: dict[str, str] = {}
    for _ in range(24):
        files = sorted(folder.rglob("*.png"))
        one, other = generator.sample(files, 2)
        match generator.randrange(4):
            case 0:  # swap two files
                held = one.read_bytes()
                one.write_bytes(other.read_bytes())
                other.write_bytes(held)
            case 1:
                one.write_bytes(other.read_bytes())
            case 2:
                touch(folder, generator.randrange(HOUR))
            case _:  # rename a file, or move it to the other class
                one.rename(folder / generator.choice("ab") / f"image {generator.randrange(8)}.png")
        if min(len(list((folder / label).iterdir())) for label in "ab") < 3:
            break
        content = repr([(path, path.read_bytes()) for path in sorted(folder.rglob("*.png"))])
        kept = make_settings(folder, duplicates="keep", check="header", workers=1)
        fingerprint = prepare(kept, 1).manifest.fingerprint
        assert contents.setdefault(content, fingerprint) == fingerprint
    assert len(set(contents.values())) == len(contents)


def test_resized_images_are_recognized_by_the_images_of_the_source(
    make_folder: MakeFolder, make_settings: MakeSettings
) -> None:
    folder = make_folder({"a": 8, "b": 8}, size=(12, 10))
    settings = make_settings(folder, resize={"size": 4}, image_size=[4, 4])
    first = prepare(settings, 1)
    touch(folder)
    assert prepare(settings, 1).folder == first.folder
    change(folder / "a" / "image 3.png")
    changed = settings.model_copy(update={"duplicates": "keep"})
    assert not prepare(changed, 1).reused


def test_a_repaired_image_that_was_skipped_is_included(folder: Path, make_settings: MakeSettings) -> None:
    """It has the size that it had when it was damaged."""
    path = folder / "a" / "image 3.png"
    good = path.read_bytes()
    path.write_bytes(good[:-5] + b"\0" * 5)
    settings = make_settings(folder, skip_corrupt=0.1)
    assert prepare(settings, 1).manifest.skipped_count == 1
    path.write_bytes(good)
    touch(folder)
    assert prepare(settings, 1).manifest.skipped_count == 0


@pytest.mark.parametrize("damage", ["lost", "empty", "cut", "other"])
def test_a_damaged_cache_only_costs_time(folder: Path, make_settings: MakeSettings, damage: str) -> None:
    first = prepare(make_settings(folder), 1)
    written = (first.folder / "manifest.json").stat().st_ino
    (remembered,) = (first.folder.parent / ".listings").iterdir()
    if damage == "lost":
        remembered.unlink()
    else:
        content = remembered.read_bytes()
        remembered.write_bytes({"empty": b"", "cut": content[:-9], "other": b'{"0": "1"}'}[damage])
    second = prepare(make_settings(folder), 1)
    assert (second.folder, second.reused) == (first.folder, True)
    assert (first.folder / "manifest.json").stat().st_ino == written, "the published data set is kept"
    assert not list(first.folder.parent.glob(".*.work"))


def test_a_resumed_run_may_lose_the_data_set_and_the_cache(folder: Path, make_settings: MakeSettings) -> None:
    first = prepare(make_settings(folder), 1)
    shutil.rmtree(first.folder.parent)
    touch(folder)
    assert prepare(make_settings(folder), 1, earlier=first.uri).uri == first.uri


def target(number: int) -> Target:
    """Return a target of one shape; its listing depends on `number`."""
    summary = Summary(amounts=[], digest=f"times {number}", shape="shape")
    return Target(Plan([], {}, {}, 0, 0), {"format": 1}, summary)


def remember(folder: Path, number: int) -> None:
    for turn in range(20):
        Listings(folder).remember_fingerprint(target(100 * number + turn), f"fingerprint {number}")
        assert Listings(folder).fingerprints(target(0)), "it can be read at any time"


def test_processes_that_remember_at_once_do_not_damage_the_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=remember, args=(tmp_path, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    found = Listings(tmp_path).fingerprints(target(0))
    assert set(found.values()) <= {f"fingerprint {number}" for number in range(4)}
    assert found
    assert [path.name for path in tmp_path.iterdir()] == [f"{target(0).shape}.json"]


def prepare_in_a_process(settings: DataSettings) -> None:
    prepare(settings, 1)


@pytest.mark.usefixtures("processes")
def test_two_copies_that_are_prepared_at_once_become_one_data_set(
    folder: Path, make_settings: MakeSettings, tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere" / folder.name
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)
    context = multiprocessing.get_context("fork")
    sources = [make_settings(root, workers=1) for root in (folder, copy)]
    processes = [context.Process(target=prepare_in_a_process, args=(settings,)) for settings in sources]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    found: list[Prepared] = [prepare(settings, 1) for settings in sources]
    assert [prepared.reused for prepared in found] == [True, True]
    assert found[0].folder == found[1].folder
    assert sorted(path.name for path in found[0].folder.parent.iterdir()) == [".listings", found[0].folder.name]


def test_a_lock_whose_file_its_holder_removes_is_opened_again_and_none_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, waiting, path = psutil.Process().num_fds(), threading.Event(), tmp_path / "set.lock"
    monkeypatch.setattr(events, "message", lambda _text: waiting.set())

    def lock_and_release() -> None:
        with store._locked(path):
            assert path.exists()

    waiter = threading.Thread(target=lock_and_release)
    with store._locked(path):
        waiter.start()
        assert waiting.wait(60)
    waiter.join()
    assert psutil.Process().num_fds() <= before
    assert not path.exists()
