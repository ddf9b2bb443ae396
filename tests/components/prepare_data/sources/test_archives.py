"""An archive of any kind yields the same data set as the folder that it contains."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from slipway.components.prepare_data.encoding import image as image_module
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import archive
from slipway.components.prepare_data.sources.images import groups_of
from slipway.components.prepare_data.sources.source import Ignored
from slipway.core.errors import UserError

KINDS = ("tar", "tar.gz", "tgz", "zip", "stored.zip")


def pack(root: Path, kind: str, inside: str = "") -> Path:
    """Create an archive of the folder `root`, with its entries in the folder `inside`."""
    path = root.with_name(f"{root.name}.{kind}")
    files = sorted(root.rglob("*"), reverse=True)
    if kind.endswith("zip"):
        method = zipfile.ZIP_STORED if kind == "stored.zip" else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(path, "w", method) as archive:
            for file in files:
                archive.write(file, os.path.join(inside, file.relative_to(root)))  # noqa: PTH118
    else:
        with tarfile.open(path, "w" if kind == "tar" else "w:gz") as archive:
            for file in files:
                archive.add(file, os.path.join(inside, file.relative_to(root)), recursive=False)  # noqa: PTH118
    return path


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.tfrecord-*")}


@pytest.fixture
def folder(make_folder: Callable[..., Path], encoded: Callable[..., bytes]) -> Path:
    root = make_folder({"train/cat": 30, "train/dög house": 20, "test/cat": 4, "test/dög house": 5})
    (root / "train" / "cat" / f"{'long name ' * 15}.png").write_bytes(encoded(77))
    (root / "LICENSE").write_text("free")
    (root / "train" / "cat" / "._image 0.png").write_text("hidden")
    return root


def test_a_member_of_a_zip_may_have_a_comment(folder: Path, tmp_path: Path) -> None:
    path = pack(folder, "zip")
    commented = tmp_path / "commented.zip"
    with zipfile.ZipFile(path) as packed, zipfile.ZipFile(commented, "w") as other:
        for member in packed.infolist():
            content = packed.read(member)
            member.comment = b"taken by the mill"
            other.writestr(member, content)
    with path.open("rb") as plain, commented.open("rb") as with_comments:
        expected = [(member.name, member.size) for member in archive._zip_members(plain)]
        assert [(member.name, member.size) for member in archive._zip_members(with_comments)] == expected
    assert len(expected) > 50


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inside", ["", "./", "around it/and more"])
def test_an_archive_gives_the_set_that_its_folder_gives(
    folder: Path, make_settings: Callable[..., DataSettings], kind: str, inside: str
) -> None:
    expected = prepare(make_settings(folder), 2)
    settings = make_settings(pack(folder, kind, inside), name="image_folder")
    prepared = prepare(settings, 2)
    assert prepared.manifest.splits.keys() == expected.manifest.splits.keys()
    if inside != "around it/and more":  # with longer keys
        assert shards(prepared.folder) == shards(expected.folder)
    assert {name: split.classes for name, split in prepared.manifest.splits.items()} == {
        name: {"cat": split.classes["cat"], "dög house": split.classes["dög house"]}
        for name, split in expected.manifest.splits.items()
    }
    again = prepare(settings, 2)
    assert (again.reused, again.folder) == (True, prepared.folder)


def test_an_archive_that_was_prepared_is_not_listed_again(
    folder: Path, make_settings: Callable[..., DataSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pack(folder, "tar.gz")
    prepare(make_settings(path), 1)
    monkeypatch.setattr(
        "slipway.components.prepare_data.prepare.list_source", lambda *arguments: pytest.fail("it is listed")
    )
    assert prepare(make_settings(path), 1).reused
    monkeypatch.undo()
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert prepare(make_settings(path), 1).reused  # its members have not changed
    assert not prepare(make_settings(path, seed=1), 1).reused


def test_an_archive_is_named_without_its_ending(folder: Path, make_settings: Callable[..., DataSettings]) -> None:
    assert prepare(make_settings(pack(folder, "tar.gz")), 1).manifest.name == "image_folder"


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_that_is_cut_short_is_refused(
    folder: Path, make_settings: Callable[..., DataSettings], kind: str
) -> None:
    path = pack(folder, kind)
    whole = path.read_bytes()
    for end in (0, 100, len(whole) // 2, len(whole) - 1000, len(whole) - 5):
        path.write_bytes(whole[:end])
        with pytest.raises(UserError) as error:
            prepare(make_settings(path), 1)
        assert str(path) in error.value.message or "images cannot be used" in error.value.message
    assert not Path(make_settings(path).store).exists()


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("name", ["../outside/a.png", "/etc/a.png", "cat/../../a.png", ".."])
def test_entries_that_climb_out_are_refused(
    folder: Path, make_settings: Callable[..., DataSettings], kind: str, name: str
) -> None:
    path = pack(folder, kind)
    image = folder / "test/cat/image 0.png"
    if kind == "zip":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(name, image.read_bytes())
    else:
        with tarfile.open(path, "a") as archive, image.open("rb") as file:
            entry = tarfile.TarInfo(name)
            entry.size = image.stat().st_size
            archive.addfile(entry, file)
    with pytest.raises(UserError, match="points outside the archive"):
        prepare(make_settings(path), 1)


def test_links_and_damaged_members_are_named(
    folder: Path, make_settings: Callable[..., DataSettings], tmp_path: Path
) -> None:
    path = pack(folder, "tar")
    with tarfile.open(path, "a") as archive:
        for name, kind in (("train/cat/hard.png", tarfile.LNKTYPE), ("train/cat/soft.png", tarfile.SYMTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "train/cat/image 0.png"
            archive.addfile(entry)
    with pytest.raises(UserError, match=r"hard\.png \(it is a link inside the archive\)") as error:
        prepare(make_settings(path), 1)
    assert "soft.png" in error.value.message

    path = pack(folder, "zip")
    with zipfile.ZipFile(path) as archive:
        offset = archive.getinfo("train/cat/image 7.png").header_offset
    content = bytearray(path.read_bytes())
    content[offset + 30 + len("train/cat/image 7.png") + 10] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"image 7\.png \(it is damaged in the archive\)"):
        prepare(make_settings(path), 1)


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_a_sparse_member_is_named_and_takes_no_space(
    folder: Path, make_settings: Callable[..., DataSettings], kind: str
) -> None:
    """The file claims to have 1 GB, in an archive of a few kilobytes."""
    path, size = pack(folder, "tar"), 10**9
    entry = tarfile.TarInfo("train/cat/sparse.png")
    entry.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    # The sparse map of an old GNU header: one empty piece at the end.
    header[386:410] = b"%011o\0%011o\0" % (size, 0)
    header[483:495] = b"%011o\0" % size
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(header)[0]
    content = bytes(header) + path.read_bytes()
    path = path.with_suffix(f".{kind}")
    path.write_bytes(gzip.compress(content) if kind == "tar.gz" else content)
    with tarfile.open(path) as opened:
        assert (opened.firstmember.issparse(), opened.firstmember.size) == (True, size)
    source = archive.ArchiveSource(str(path), "images:it")
    assert len(list(source.entries(path, Ignored(), folder))) == 61
    if (folder / archive.SPOOL).exists():
        assert (folder / archive.SPOOL).stat().st_size < 10_000
    (skipped,) = prepare(make_settings(path, skip_corrupt=0.1), 1).manifest.skipped
    assert skipped.key == "train/cat/sparse.png"
    assert skipped.reason.startswith("it is a sparse file inside the archive")


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_is_too_large_is_named_and_not_kept(
    folder: Path, make_settings: Callable[..., DataSettings], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "train" / "cat" / "large.png").write_bytes(bytes(5000))
    for module in (archive, image_module):
        monkeypatch.setattr(module, "MAX_IMAGE_BYTES", 4000)
    source = archive.ArchiveSource(str(pack(folder, kind)), "images:it")
    listed = list(source.entries(source.path, Ignored(), folder))
    assert len(listed) == 61
    if (folder / archive.SPOOL).exists():
        assert (folder / archive.SPOOL).stat().st_size < sum(size for _, _, _, size, *_ in listed)
    with pytest.raises(UserError, match=r"1 of 61 .*/large\.png \(it has 5,000 bytes, more than 4,000\)"):
        prepare(make_settings(source.path), 1)


@pytest.mark.slow
def test_a_zip_of_more_than_the_old_format_holds(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings], tmp_path: Path
) -> None:
    """The number of members is in the zip64 record."""
    image = (make_folder({"a": 1}) / "a" / "image 0.png").read_bytes()
    path = tmp_path / "large.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(70_000):
            archive.writestr(f"{'ab'[number % 2]}/{number}.png", image if number < 20 else b"")
    settings = make_settings(path, skip_corrupt=0.9999, duplicates="keep")
    prepared = prepare(settings, 1)
    assert sum(split.examples for split in prepared.manifest.splits.values()) == 20
    assert prepared.manifest.skipped_count == 69_980


@pytest.mark.parametrize(
    ("folders", "groups"),
    [
        (["cat", "dog"], [(None, "cat"), (None, "dog")]),
        (["top/cat", "top/dog"], [(None, "cat"), (None, "dog")]),
        (["top/cat"], [(None, "cat")]),
        (["a/b/train/cat", "a/b/val/cat"], [("train", "cat"), ("validation", "cat")]),
        (["train/cat"], [("train", "cat")]),
    ],
)
def test_the_layout_is_found(folders: list[str], groups: list[tuple[str | None, str]]) -> None:
    assert list(groups_of(folders, "it", "images:it").values()) == groups


@pytest.mark.parametrize(
    "folders", [["a/b", "c"], [""], ["train/cat", "extra/cat"], ["test/cat"], ["a/b", "a/b/c"], []]
)
def test_another_layout_is_refused(folders: list[str]) -> None:
    with pytest.raises(UserError):
        groups_of(folders, "it", "images:it")


def test_a_missing_archive_is_named(make_settings: Callable[..., DataSettings], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        prepare(make_settings(tmp_path / "none.tar.gz"), 1)


def tar_with(path: Path, header: bytes, kind: bytes = tarfile.XHDTYPE, count: int = 1) -> Path:
    """Write a tar file of two images, with `count` extended headers before the first."""
    image = io.BytesIO()
    Image.new("L", (4, 4)).save(image, "PNG")
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for _ in range(count):
            entry = tarfile.TarInfo("header")
            entry.type, entry.size = kind, len(header)
            archive.addfile(entry, io.BytesIO(header))
        for number in range(2):
            entry = tarfile.TarInfo(f"{'ab'[number]}/{number}.png")
            entry.size = len(image.getvalue())
            archive.addfile(entry, io.BytesIO(image.getvalue()))
    return path


def record(keyword: str, value: object) -> bytes:
    """Return a record of a pax header."""
    text = f" {keyword}={value}\n"
    length = next(size for size in range(len(text), len(text) + 30) if len(str(size)) + len(text) == size)
    return f"{length}{text}".encode()


@pytest.mark.parametrize("header", [record("size", 2**62), record("size", -1024), record("size", 2**70)])
def test_an_impossible_size_in_a_tar_is_a_damaged_archive(tmp_path: Path, header: bytes) -> None:
    path = tar_with(tmp_path / "it.tar", header)
    with pytest.raises(UserError, match=r"it\.tar cannot be read: (the size of a/0\.png is wrong|invalid)"):
        list(archive.ArchiveSource(str(path), "images:it").entries(path, Ignored(), tmp_path))


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_a_damaged_header_of_a_tar_does_not_end_the_list_of_its_members(tmp_path: Path, ending: str) -> None:
    path = tar_with(tmp_path / "it.tar", record("comment", "x"))
    content = bytearray(path.read_bytes())
    content[content.index(b"b/1.png")] ^= 1
    path.write_bytes(content)
    (tmp_path / "it.tar.gz").write_bytes(gzip.compress(content, 1))
    source = archive.ArchiveSource(str(tmp_path / f"it.{ending}"), "images:it")
    with pytest.raises(UserError, match="cannot be read: bad checksum"):
        list(source.entries(source.path, Ignored(), tmp_path))


@pytest.mark.parametrize("mtime", ["nan", "inf", "-inf", "1e300", "-1"])
def test_any_time_of_a_tar_member_is_accepted(tmp_path: Path, mtime: str) -> None:
    path = tar_with(tmp_path / "it.tar", record("mtime", mtime))
    found = list(archive.ArchiveSource(str(path), "images:it").entries(path, Ignored(), tmp_path))
    assert [key for key, *_ in found] == [b"a/0.png", b"b/1.png"]


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_many_headers_before_a_member_are_a_damaged_archive(tmp_path: Path, ending: str) -> None:
    path = tar_with(tmp_path / "it.tar", record("comment", "x"), count=20_000)
    if ending == "tar.gz":
        (tmp_path / "it.tar.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    source = archive.ArchiveSource(str(tmp_path / f"it.{ending}"), "images:it")
    with pytest.raises(UserError, match="cannot be read: it has too many headers in a row"):
        list(source.entries(source.path, Ignored(), tmp_path))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_large_header_of_a_tar_is_not_read(tmp_path: Path, kind: bytes) -> None:
    path = tar_with(tmp_path / "it.tar", bytes(40 << 20), kind)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="cannot be read: a header has 41,943,040 bytes"):
            list(archive.ArchiveSource(str(path), "images:it").entries(path, Ignored(), tmp_path))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def zip64(path: Path, extra: bytes, *, end: tuple[int, int] | None = None) -> Path:
    """Write a zip file of 20 images, one with `extra` and its offset there; `end`: offsets in the zip64 record."""
    image = io.BytesIO()
    Image.linear_gradient("L").resize((4, 4)).save(image, "PNG")
    with zipfile.ZipFile(path, "w") as packed:
        for number in range(20):
            entry = zipfile.ZipInfo(f"{'ab'[number % 2]}/{number}.png")
            entry.extra = extra if number == 7 else b""
            packed.writestr(entry, image.getvalue())
    content = bytearray(path.read_bytes())
    if extra:
        start = content.index(b"b/7.png", content.index(b"PK\x01\x02"))
        content[start - 4 : start] = b"\xff" * 4
    if end:
        record64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 20, 20, 0, end[1])
        locator = struct.pack("<4sLQL", b"PK\6\7", 0, end[0] if end[0] else content.index(b"PK\5\6"), 1)
        offset = content.index(b"PK\5\6")
        content[offset + 10 : offset + 12] = b"\xff\xff"
        content[offset:offset] = record64 + locator
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("offset", [2**40, 2**62, 2**63 + 5, 2**64 - 1])
def test_a_zip_member_at_an_impossible_offset_is_skipped(
    make_settings: Callable[..., DataSettings], tmp_path: Path, offset: int
) -> None:
    path = zip64(tmp_path / "it.zip", struct.pack("<HHQ", 1, 8, offset))
    prepared = prepare(make_settings(path, skip_corrupt=0.5, duplicates="keep"), 1)
    assert [(one.key, one.reason) for one in prepared.manifest.skipped] == [
        ("b/7.png", "its header in the archive is damaged")
    ]


@pytest.mark.parametrize("end", [(2**62, 0), (2**64 - 1, 0), (0, 2**62), (0, 2**64 - 1)])
def test_a_zip_with_its_list_at_an_impossible_offset_is_damaged(tmp_path: Path, end: tuple[int, int]) -> None:
    path = zip64(tmp_path / "it.zip", b"", end=end)
    with pytest.raises(UserError, match="cannot be read: its central directory is damaged"):
        list(archive.ArchiveSource(str(path), "images:it").entries(path, Ignored(), tmp_path))


def test_a_zip_member_without_its_large_offset_is_damaged(tmp_path: Path) -> None:
    path = zip64(tmp_path / "it.zip", struct.pack("<HH", 1, 0))
    with pytest.raises(UserError, match="cannot be read: its central directory is damaged"):
        list(archive.ArchiveSource(str(path), "images:it").entries(path, Ignored(), tmp_path))
