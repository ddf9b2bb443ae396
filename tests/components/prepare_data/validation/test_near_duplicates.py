"""data.near_duplicates: images that look the same are reported, or kept in one split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from slipway.components.prepare_data.examples import SPLITS
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.validation import perceptual_hash
from slipway.components.prepare_data.validation.near_duplicates import find_groups
from slipway.components.prepare_data.validation.thumbnails import Thumbnails, thumbnail
from slipway.core.errors import UserError
from tests.components.prepare_data.validation.test_duplicates import split_images
from tests.photographs import ORIENTATIONS, jpeg, saved, stored, unlike

MakeSettings = Callable[..., DataSettings]
# Copies of the photograph `number` in the folder of `root`, which `photographs` writes: name, and how it is saved.
COPIES: dict[str, Callable[[Image.Image], bytes]] = {
    "again.jpg": lambda image: saved(image, "JPEG", quality=60),
    "half.jpg": lambda image: saved(image.resize((image.width // 2, image.height // 2)), "JPEG", quality=80),
    "lossless.png": lambda image: saved(image, "PNG"),
    "alpha.png": lambda image: saved(image.convert("RGBA"), "PNG"),
    "other.webp": lambda image: saved(image, "WEBP", quality=80),
    "rotated.jpg": lambda image: jpeg(stored(image, 6), 6),
    "gray.jpg": lambda image: saved(image.convert("L"), "JPEG", quality=90),
    "brighter.jpg": lambda image: saved(image.point(lambda level: min(int(level * 1.1), 255)), "JPEG", quality=90),
}


def photograph(seed: int, height: int = 150, width: int = 200) -> Image.Image:
    return unlike(height, width, seed)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of 60 photographs in two classes, and the copies of one of them, a/7.jpg."""
    folder = tmp_path / "photographs"
    for label in "ab":
        (folder / label).mkdir(parents=True)
        for number in range(30):
            (folder / label / f"{number}.jpg").write_bytes(jpeg(photograph(number + 100 * (label == "b")), 1))
    for name, save in COPIES.items():
        (folder / "a" / name).write_bytes(save(photograph(7)))
    return folder


@pytest.fixture
def settings(root: Path, make_settings: MakeSettings) -> Callable[..., DataSettings]:
    return lambda **options: make_settings(root, **{"image_size": [64, 64], "workers": 1, **options})


def splits_of_copies(prepared: Prepared) -> set[str]:
    """The splits that have one of the photographs that look the same."""
    alike = {f"a/{name}" for name in ("7.jpg", *COPIES)}
    return {split for split, images in split_images(prepared).items() if alike & images.keys()}


def test_they_are_named_with_their_splits(settings: Callable[..., DataSettings]) -> None:
    prepared = prepare(settings(), 1)
    of_key = {key: split for split, images in split_images(prepared).items() for key in images}
    kept = min((key for key in of_key if key in {f"a/{name}" for name in ("7.jpg", *COPIES)}),
               key=lambda key: (-SPLITS.index(of_key[key]), key))  # fmt: skip
    others = {f"a/{name}" for name in ("7.jpg", *COPIES) if of_key[f"a/{name}"] != of_key[kept]}
    assert len(splits_of_copies(prepared)) > 1
    (note,) = (note for note in prepared.manifest.notes if "looks the same" in note or "look the same" in note)
    assert note.startswith(f"{len(others)} images look the same as one in another split: ")
    assert f"{min(others)} ({of_key[min(others)]}) ~ {kept} ({of_key[kept]})" in note
    page = (prepared.folder / "statistics.html").read_text()
    listed = page.partition("Near-duplicates in other splits</h2>")[2].partition("</section>")[0]
    assert {key for key in of_key if f"<code>{key}</code>" in listed} == {*others, kept}


@pytest.mark.parametrize("options", [{}, {"resize": {"size": 64}}, {"skip_corrupt": 0.1}, {"group_by": r"(\w+)\.\w+$"}])
def test_they_are_kept_in_one_split(settings: Callable[..., DataSettings], options: dict[str, object]) -> None:
    prepared = prepare(settings(near_duplicates="group", **options), 1)
    assert len(splits_of_copies(prepared)) == 1
    found = split_images(prepared)
    assert sum(map(len, found.values())) == 60 + len(COPIES)
    assert min(len(images) for images in found.values()) >= 4
    assert not any("looks the same" in note or "look the same" in note for note in prepared.manifest.notes)
    assert prepare(settings(near_duplicates="group", **options), 1).reused


@pytest.mark.usefixtures("processes")
def test_groups_do_not_depend_on_who_finds_them(settings: Callable[..., DataSettings]) -> None:
    one = prepare(settings(near_duplicates="group"), 1)
    other = prepare(settings(near_duplicates="group", workers=2, store=str(Path(settings().store) / "other")), 1)
    assert one.manifest.fingerprint == other.manifest.fingerprint


def test_the_report_makes_no_other_data_set(settings: Callable[..., DataSettings]) -> None:
    report, off = (prepare(settings(near_duplicates=value), 1) for value in ("report", "off"))
    assert off.reused and off.manifest.fingerprint == report.manifest.fingerprint
    assert prepare(settings(near_duplicates="group"), 1).manifest.fingerprint != off.manifest.fingerprint


def test_nothing_is_compared_where_that_is_wanted(settings: Callable[..., DataSettings]) -> None:
    with mock.patch("slipway.components.prepare_data.validation.thumbnails.thumbnail", side_effect=AssertionError):
        assert not any("the same" in note for note in prepare(settings(near_duplicates="off"), 1).manifest.notes)


def test_a_source_that_has_them_in_two_splits_is_refused(root: Path, make_settings: MakeSettings) -> None:
    for split in SPLITS:
        (root / split).mkdir()
        for label in "ab":
            (root / split / label).mkdir()
    for number, file in enumerate([*sorted(root.glob("a/*")), *sorted(root.glob("b/*"))]):
        file.rename(root / SPLITS[number % 3] / file.parent.name / file.name)
    for label in "ab":
        (root / label).rmdir()
    with pytest.raises(UserError, match=r"look the same are in 3 splits of the source: .*train") as error:
        prepare(make_settings(root, image_size=[64, 64], workers=1, near_duplicates="group"), 1)
    assert error.value.setting == "data.near_duplicates"
    assert "--set data.near_duplicates=report" in (error.value.fix or "")


def test_grouping_needs_decoded_images(make_settings: MakeSettings, root: Path) -> None:
    with pytest.raises(UserError, match=r"has no effect with data\.check=header"):
        make_settings(root, near_duplicates="group", check="header")


def test_small_images_are_not_compared(tmp_path: Path, make_settings: MakeSettings) -> None:
    for label in "ab":
        (tmp_path / "small" / label).mkdir(parents=True)
        for number in range(10):
            image = photograph(0, 63, 80)
            image.putpixel((number, "ab".index(label)), (0, 0, 0))
            (tmp_path / "small" / label / f"{number}.png").write_bytes(saved(image, "PNG"))
    assert not prepare(make_settings(tmp_path / "small", workers=1), 1).manifest.notes


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_the_thumbnail_is_that_of_the_upright_image(orientation: int) -> None:
    upright = photograph(1)
    found = thumbnail(stored(upright, orientation), orientation)
    difference = np.frombuffer(found, np.uint8).astype(int) - np.frombuffer(thumbnail(upright), np.uint8)
    assert abs(difference).max() <= 2


def written(folder: Path, images: dict[bytes, Image.Image]) -> list[Path]:
    """Files with the thumbnails of these images, ten each."""
    files = []
    for start in range(0, len(images), 10):
        thumbnails = Thumbnails()
        for key, image in list(images.items())[start : start + 10]:
            thumbnails.see(image)
            thumbnails.take(key)
        files.append(folder / f"{start}.thumbnails")
        files[-1].write_bytes(thumbnails.encoded())
    return files


def test_other_images_are_in_no_group(tmp_path: Path) -> None:
    images = {b"image %d" % number: photograph(number) for number in range(300)}
    blank = {b"blank %d" % number: Image.new("RGB", (100, 100), (number, 0, 0)) for number in range(5)}
    assert find_groups(written(tmp_path, images | blank)) == []
    assert find_groups([]) == []


def test_groups_are_connected(tmp_path: Path) -> None:
    """The first and the last of several images are in one group if each looks the same as the next."""
    wide = photograph(5, 150, 230)
    frames = {b"\0frame %d" % number: wide.crop((number, 0, number + 200, 150)) for number in range(20)}
    others = {b"other %d" % number: photograph(50 + number) for number in range(20)}
    alone = [frames[b"\0frame 0"], frames[b"\0frame 19"]]
    first, last = (np.frombuffer(thumbnail(image), np.uint8) for image in alone)
    assert np.corrcoef(first, last)[0, 1] < perceptual_hash.CORRELATION
    assert find_groups(written(tmp_path, frames | others)) == [sorted(frames)]


def test_an_unusable_image_leaves_no_thumbnail() -> None:
    thumbnails = Thumbnails()
    thumbnails.see(photograph(1))
    thumbnails.forget()
    thumbnails.take(b"another, which is not decoded")
    assert thumbnails.encoded() == bytes(8)
