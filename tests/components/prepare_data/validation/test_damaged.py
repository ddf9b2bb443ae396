"""data.damaged: images that decode with warnings are reported, or refused like other unusable images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.validation.sampling import sentence
from slipway.components.prepare_data.writing import set_writer, validation
from slipway.core.errors import UserError
from slipway.core.manifest import Checked

MakeSettings = Callable[..., DataSettings]
DAMAGED = [f"a/{number:02d}.jpg" for number in range(3, 10)]
WARNING = "Corrupt JPEG data: premature end of data segment"


@pytest.fixture
def root(tmp_path: Path, encoded: Callable[..., bytes]) -> Path:
    """60 JPEG files, of which seven of class a end in the middle of their pixels, with an end marker."""
    root = tmp_path / "photographs"
    for index, label in enumerate("ab"):
        (root / label).mkdir(parents=True)
        for number in range(30):
            data = encoded(index * 1000 + number, (24, 24), "RGB", "JPEG")
            if f"{label}/{number:02d}.jpg" in DAMAGED:
                data = data[:-60] + b"\xff\xd9"
            (root / label / f"{number:02d}.jpg").write_bytes(data)
    return root


def shards(prepared: Prepared) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in prepared.folder.glob("*.tfrecord-*")}


@pytest.mark.parametrize("settings", [{}, {"skip_corrupt": 0.2}, {"resize": {"size": 12}}], ids=str)
def test_damaged_images_are_used_and_reported(
    root: Path, make_settings: MakeSettings, settings: dict[str, Any]
) -> None:
    prepared = prepare(make_settings(root, **settings), 3)
    about = prepared.manifest
    assert about.checked == Checked(check="decode", images=60, decoded=60, undecodable=0, damaged=7)
    assert about.skipped_count == 0 and sum(split.examples for split in about.splits.values()) == 60
    assert [(image.key, image.reason) for image in about.damaged] == [(key, WARNING) for key in DAMAGED]
    *resized, note = about.notes
    assert resized == ["Some of the 60 images are stored differently than in the source: 60 resized."] * (
        "resize" in settings
    )
    assert note.startswith(f"7 of 60 decoded images are damaged: {DAMAGED[0]} ({WARNING}); ")
    assert "and 2 more. " in note and "--set data.damaged=refuse" in note
    page = (prepared.folder / "statistics.html").read_text()
    assert "7 of them (11.7 %) are damaged" in page and "7 damaged images used" in page
    assert all(key in page for key in DAMAGED)


def test_damaged_images_are_refused_like_other_unusable_ones(root: Path, make_settings: MakeSettings) -> None:
    (root / "b" / "07.jpg").write_bytes(b"")
    settings = make_settings(root, damaged="refuse", skip_corrupt=0.1)
    with pytest.raises(
        UserError, match=rf"8 of 60 images cannot be used: {DAMAGED[0]} \(it is damaged: {WARNING}\);"
    ) as error:
        prepare(settings, 2)
    assert error.value.setting == "data.skip_corrupt"
    assert (error.value.fix or "").endswith("--set data.damaged=warn, to use 7 of them, which are damaged")
    prepared = prepare(settings.model_copy(update={"skip_corrupt": 0.14}), 2)
    about = prepared.manifest
    assert [image.key for image in about.skipped] == [*DAMAGED, "b/07.jpg"] and about.skipped_count == 8
    assert about.checked == Checked(check="decode", images=60, decoded=59, undecodable=0, damaged=7)
    assert not about.damaged and not about.notes
    for key in (*DAMAGED, "b/07.jpg"):
        (root / key).unlink()
    assert shards(prepare(make_settings(root), 2)) == shards(prepared)


@pytest.mark.parametrize("mode", ["crop", "shorter_side"])
def test_images_that_are_resized_are_refused_as_well(root: Path, make_settings: MakeSettings, mode: str) -> None:
    """Whatever data.check says, since all are decoded."""
    settings = make_settings(root, damaged="refuse", check="header", resize={"size": 12, "mode": mode})
    with pytest.raises(UserError, match="7 of 60 images cannot be used"):
        prepare(settings, 2)


def test_only_decoded_images_can_be_found_damaged(root: Path, make_settings: MakeSettings) -> None:
    with pytest.raises(UserError, match=r"data\.damaged=refuse has no effect with data\.check=header") as error:
        make_settings(root, damaged="refuse", check="header")
    assert error.value.fix == "--set data.check=decode"
    assert prepare(make_settings(root, check="header"), 1).manifest.checked == Checked(
        check="header", images=60, decoded=0, undecodable=0, damaged=0
    )


def test_the_setting_makes_another_data_set(make_settings: MakeSettings) -> None:
    one, other, same = (
        prepare(make_settings("digits", damaged=damaged), 1).manifest.fingerprint
        for damaged in ("warn", "refuse", "warn")
    )
    assert one == same != other


def test_a_resumed_run_reports_the_same(
    root: Path, make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(root, skip_corrupt=0.1)
    undisturbed = prepare(settings.model_copy(update={"store": str(tmp_path / "other")}), 2)

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(set_writer.SetWriter, "_write_shards", interrupted)
        patch.setattr(set_writer.shutil, "rmtree", lambda *arguments, **options: None)  # as a killed run leaves it
        with pytest.raises(KeyboardInterrupt):
            prepare(settings, 2)
    with monkeypatch.context() as patch:
        patch.setattr(validation.Validation, "skip_unusable", interrupted)  # validated already
        resumed = prepare(settings, 2)
    assert resumed.manifest == undisturbed.manifest and len(resumed.manifest.damaged) == 7


def test_damaged_additional_images_count(root: Path, make_settings: MakeSettings, tmp_path: Path) -> None:
    rows = [
        f"b/{number:02d}.jpg,{'ab'[number % 2]},{DAMAGED[0] if number == 4 else 'b/00.jpg'}" for number in range(30)
    ]
    (root / "all.csv").write_text("\n".join(["image,label,mask", *rows]))
    source, features = f"csv:{root / 'all.csv'}", {"mask": "image"}
    (image,) = prepare(make_settings(source, features=features), 1).manifest.damaged
    assert image.reason == f"its mask: {WARNING}"
    with pytest.raises(UserError, match=rf"1 of 30 images cannot be used: .* \(it is damaged: its mask: {WARNING}\)"):
        prepare(make_settings(source, features=features, damaged="refuse"), 1)


def test_an_image_of_four_colors_is_made_gray(
    root: Path, make_settings: MakeSettings, encoded: Callable[..., bytes]
) -> None:
    (root / "a" / "00.jpg").write_bytes(encoded(1, (24, 24), "CMYK", "JPEG"))
    assert prepare(make_settings(root), 1).manifest.channels == 3
    about = prepare(make_settings(root, channels=1), 1).manifest
    assert (about.channels, about.skipped_count) == (1, 0)
    assert about.notes[0].endswith("in the source: 1 from CMYK to RGB.")


def test_the_number_of_damaged_images_is_in_the_sentence_of_a_sample() -> None:
    text = sentence(Checked(check="sample", images=1_000, decoded=50, undecodable=0, damaged=5))
    assert "all of them successfully. 5 of them (10 %) are damaged" in text
