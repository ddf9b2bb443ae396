"""data.check=sample: the images that are decoded in full, and how the sample is reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipway.components.prepare_data.encoding.image import Inspector
from slipway.components.prepare_data.encoding.messages import bytes_feature
from slipway.components.prepare_data.examples import Undecodable, Unusable
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.publishing import store
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.validation.sampling import ALL, decoded_below, is_decoded, sentence
from slipway.components.prepare_data.writing import set_writer
from slipway.components.prepare_data.writing.shards import store_additional
from slipway.core.errors import UserError
from slipway.core.manifest import Checked

MakeFolder = Callable[..., Path]
MakeSettings = Callable[..., DataSettings]
SAMPLE = {"check_sample": 30}
# 60 images; if the sample is at least as large, all are decoded.
IMAGES = {"a": 30, "b": 30}


def keys_of(root: Path, *, decoded: bool) -> list[str]:
    """Return the keys inside or outside the sample."""
    keys = sorted(str(path.relative_to(root)) for path in root.rglob("*.png"))
    below = decoded_below(DataSettings.model_validate({"source": "digits", **SAMPLE}), len(keys))
    return [key for key in keys if is_decoded(key.encode(), below) == decoded]


def damage(path: Path) -> None:
    """Damage the pixels, but neither the header nor the end of the file."""
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)


def shards(prepared: Prepared) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in prepared.folder.glob("*.tfrecord-*")}


def contents(prepared: Prepared) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in prepared.folder.iterdir()}


@pytest.fixture
def root(make_folder: MakeFolder) -> Path:
    return make_folder(IMAGES)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Returns the messages since the last call."""
    path = tmp_path / "events"
    monkeypatch.setenv("SLIPWAY_EVENTS", str(path))

    def read() -> list[str]:
        events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return [event["text"] for event in events if event["event"] == "message"]

    return read


@pytest.mark.parametrize("wanted", [1_000, 5_000])
def test_the_sample_has_about_the_wanted_size_and_grows_by_more_images_only(wanted: int) -> None:
    keys = [b"class/%06d.png" % number for number in range(20_000)]
    below, more = ALL * wanted // len(keys), ALL * 2 * wanted // len(keys)
    chosen = {key for key in keys if is_decoded(key, below)}
    assert abs(len(chosen) - wanted) < 5 * wanted**0.5
    assert chosen < {key for key in keys if is_decoded(key, more)}
    assert not any(is_decoded(key, 0) for key in keys)
    assert all(is_decoded(key, ALL) for key in keys)


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_a_sample_is_decoded_and_said_so(
    root: Path, make_settings: MakeSettings, told: Callable[[], list[str]], tmp_path: Path
) -> None:
    inside, outside = keys_of(root, decoded=True), keys_of(root, decoded=False)
    damage(root / outside[0])
    found = [
        prepare(make_settings(root, **SAMPLE, workers=workers, store=str(tmp_path / str(workers))), 3)
        for workers in (1, 3)
    ]
    assert contents(found[0]) == contents(found[1])
    assert found[0].manifest.checked == Checked(
        check="sample", images=60, decoded=len(inside), undecodable=0, damaged=0
    )
    assert found[0].manifest.skipped_count == 0
    one, other = told()
    assert one == other
    assert f"A sample of {len(inside)} of 60 images was decoded in full, all of them successfully." in one
    assert "--set data.check=decode" in one
    assert one in (found[0].folder / "statistics.html").read_text()
    assert prepare(make_settings(root, **SAMPLE, store=str(tmp_path / "1")), 3).reused
    with pytest.raises(UserError, match=outside[0]):
        prepare(make_settings(root, check="decode", **SAMPLE), 3)


@pytest.mark.slow
def test_what_is_bad_in_the_sample_says_that_more_may_be(
    root: Path, make_settings: MakeSettings, told: Callable[[], list[str]]
) -> None:
    inside, outside = keys_of(root, decoded=True), keys_of(root, decoded=False)
    for key in (inside[0], inside[3], outside[1]):
        damage(root / key)
    (root / inside[1]).write_bytes(b"")  # detected without decoding
    (root / outside[2]).write_bytes(b"")
    settings = make_settings(root, **SAMPLE, skip_corrupt=0.1)
    with pytest.raises(UserError, match="4 of 60 images cannot be used"):
        prepare(settings.model_copy(update={"skip_corrupt": 0.05}), 1)
    prepared = prepare(settings, 1)
    about = prepared.manifest
    assert {item.key for item in about.skipped} == {inside[0], inside[1], inside[3], outside[2]}
    assert about.checked == Checked(check="sample", images=60, decoded=len(inside) - 1, undecodable=2, damaged=0)
    refused, line = told()
    assert refused == line
    assert f"2 of them ({200 / (len(inside) - 1):.3g} %) cannot be decoded although their headers are valid" in line
    for key in (inside[0], inside[1], inside[3], outside[2]):
        (root / key).unlink()
    clean = prepare(make_settings(root, check="header"), 1)
    assert shards(clean) == shards(prepared)


@pytest.mark.slow
def test_a_resumed_run_reports_the_same(
    root: Path,
    make_settings: MakeSettings,
    told: Callable[[], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (root / "b" / "copy.png").write_bytes((root / "a" / "image 3.png").read_bytes())
    damage(root / keys_of(root, decoded=True)[0])
    about = {**SAMPLE, "skip_corrupt": 0.1, "duplicates": "drop"}
    undisturbed = prepare(make_settings(root, **about, store=str(tmp_path / "undisturbed")), 2)
    said = told()
    assert len(said) == 1
    assert undisturbed.manifest.checked and undisturbed.manifest.checked.undecodable == 1
    write = set_writer.SetWriter._write_shards
    for last in (1, 2):
        rounds: list[object] = []
        with monkeypatch.context() as patch:

            def interrupted(self: Any, rounds: list[object] = rounds, last: int = last) -> Any:
                rounds.append(self)
                if len(rounds) == last:  # all images are validated (1), copies are found (2)
                    # The state that a killed run leaves.
                    patch.setattr(store.shutil, "rmtree", lambda *arguments, **options: None)
                    raise KeyboardInterrupt
                return write(self)

            patch.setattr(set_writer.SetWriter, "_write_shards", interrupted)
            settings = make_settings(root, **about, store=str(tmp_path / str(last)))
            with pytest.raises(KeyboardInterrupt):
                prepare(settings, 2)
        assert told() == said
        assert list(Path(settings.store).glob("*/.*.work/skipped.json"))
        assert contents(prepare(settings, 2)) == contents(undisturbed)
        assert told() == said


@pytest.mark.slow
def test_as_many_as_the_sample_are_all_decoded(
    root: Path, make_settings: MakeSettings, told: Callable[[], list[str]]
) -> None:
    prepared = prepare(make_settings(root, check_sample=60), 1)
    assert prepared.manifest.checked == Checked(check="decode", images=60, decoded=60, undecodable=0, damaged=0)
    assert "Every image was decoded in full." in (prepared.folder / "statistics.html").read_text()
    assert told() == []
    # All settings that decode every image lead to the same data set; a sample leads to another one with the same data.
    assert prepare(make_settings(root, check="decode"), 1).reused
    assert prepare(make_settings(root), 1).reused
    others = [prepare(make_settings(root, **change), 1) for change in ({"check_sample": 59}, {"check_sample": 58})]
    others.append(prepare(make_settings(root, check="header", check_sample=7), 1))
    assert prepare(make_settings(root, check="header"), 1).reused
    assert len({found.manifest.fingerprint for found in [prepared, *others]}) == 4
    assert all(shards(found) == shards(prepared) for found in others)
    assert others[2].manifest.checked == Checked(check="header", images=60, decoded=0, undecodable=0, damaged=0)
    assert "no image was decoded in full" in (others[2].folder / "statistics.html").read_text()


@pytest.mark.parametrize("reason", [Unusable, Undecodable])
def test_an_additional_image_is_found_bad_as_the_first_is(
    reason: type[Unusable], encoded: Callable[..., bytes]
) -> None:
    image = encoded(0)
    middle = len(image) // 2
    image = image[:middle] + bytes([image[middle] ^ 1]) + image[middle + 1 :] if reason is Undecodable else b"text"
    with pytest.raises(Unusable, match="its mask: ") as error:
        store_additional([(b"mask", bytes_feature([image]))], [b"mask"], Inspector(whole=True))
    assert error.type is reason


@pytest.mark.slow
def test_beam_decodes_the_same_sample(root: Path, make_settings: MakeSettings, tmp_path: Path) -> None:
    damage(root / keys_of(root, decoded=True)[0])
    damage(root / keys_of(root, decoded=False)[0])
    beam = {"runner": "DirectRunner", "from_gigabytes": 0}
    one, other = (
        prepare(make_settings(root, **SAMPLE, **about, skip_corrupt=0.1, store=str(tmp_path / str(len(about)))), 2)
        for about in ({}, {"beam": beam})
    )
    assert one.manifest == other.manifest.model_copy(update={"written_by": one.manifest.written_by})
    assert one.manifest.checked and one.manifest.checked.undecodable == one.manifest.skipped_count == 1
    assert shards(one) == shards(other)


def test_shares_are_readable() -> None:
    assert "7 of them (100 %)" in sentence(Checked(check="sample", images=1_000, decoded=7, undecodable=7, damaged=0))
    few = sentence(Checked(check="sample", images=5_000_000, decoded=1_000_420, undecodable=12, damaged=0))
    assert "1,000,420 of 5,000,000 images" in few and "12 of them (0.0012 %)" in few
