"""data.resize: images are stored at training size."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from slipway.components.prepare_data.encoding.image import Inspector
from slipway.components.prepare_data.encoding.records import read_records
from slipway.components.prepare_data.encoding.stored import _load, store
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings, ResizeSettings
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from tests.components.prepare_data.conftest import example_parts

MakeFolder = Callable[..., Path]
MakeSettings = Callable[..., DataSettings]
ORIENTATION = 0x0112
# (height, width) of the image, and of the stored image by mode, with size 32.
WIDE, STORED = (150, 200), {"shorter_side": (32, 43), "crop": (32, 32), "pad": (32, 32)}


def scene(height: int, width: int) -> Image.Image:
    """An image with smooth areas, colors and edges, none of them symmetrical."""
    y, x = np.mgrid[0:height, 0:width]
    red, green = 255 * x // width, 255 * y // height
    blue = np.where((x // 41 + y // 31) % 3 == 0, 160, 90)
    return Image.fromarray(np.stack([red, green, blue], axis=2).astype(np.uint8))


def saved(image: Image.Image, encoding: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, encoding, **options)
    return buffer.getvalue()


def kinds() -> dict[str, bytes]:
    """One image of each kind that the decoders distinguish."""
    image = scene(*WIDE)
    with_alpha, exif = image.copy(), Image.Exif()
    with_alpha.putalpha(Image.linear_gradient("L").resize(image.size))
    exif[ORIENTATION] = 6
    return {
        "jpeg": saved(image, "JPEG", quality=95),
        "turned jpeg": saved(image, "JPEG", quality=95, exif=exif, comment="of a camera"),
        "gray jpeg": saved(image.convert("L"), "JPEG", quality=95),
        "cmyk jpeg": saved(image.convert("CMYK"), "JPEG", quality=95),
        "png": saved(image, "PNG"),
        "png with alpha": saved(with_alpha, "PNG"),
        "png with a palette": saved(image.quantize(64), "PNG"),
        "png with transparent colors": saved(image.quantize(64), "PNG", transparency=bytes(64)),
        "gray png": saved(image.convert("L"), "PNG"),
        "gray png with alpha": saved(with_alpha.convert("LA"), "PNG"),
        "png of 16 bits": saved(Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 256 + 9), "PNG"),
    }


def stored(data: bytes, **settings: object) -> bytes:
    """Return the stored image; check that its properties are as announced."""
    inspector = Inspector(whole=True)
    image, info = store(data, inspector.inspect(data), ResizeSettings.model_validate(settings))
    assert inspector.inspect(image) == info._replace(orientation=1, cmyk=False, format="", resized=False)
    return image


@pytest.mark.parametrize("mode", STORED)
@pytest.mark.parametrize("name", kinds())
def test_an_image_keeps_its_encoding_and_colors_and_nothing_else(name: str, mode: str) -> None:
    data = kinds()[name]
    with Image.open(io.BytesIO(stored(data, size=32, mode=mode))) as image, Image.open(io.BytesIO(data)) as source:
        size = STORED[mode][::-1] if "turned" in name else STORED[mode]
        assert (image.format, (image.height, image.width)) == (source.format, size)
        assert image.mode == ("L" if source.mode in ("L", "LA", "I;16") else "RGB")
        assert not image.getexif()
        assert not image.info.keys() & {"comment", "icc_profile", "transparency"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["crop", "pad"])
def test_training_sees_the_pixels_that_it_would_resize_itself(mode: str) -> None:
    """Whatever the kind of image, up to what a JPEG loses."""
    import tensorflow as tf

    from slipway.trainer.data.images import decode_images

    for name, data in kinds().items():
        manifest = Manifest(
            name="x", fingerprint="", source="", settings={}, classes=[], image_size=(64, 64), channels=3, resize=True,
            resize_mode=mode, encodings=[], splits={},
        )  # fmt: skip
        images = tf.constant([stored(data, size=64, mode=mode), data])
        prepared, original = decode_images(images, manifest).numpy().astype(int)
        assert np.abs(prepared - original).mean() < (1 if "png" in name else 5), name
        assert original.std() > 30


@pytest.mark.parametrize("size", [75, 40, 30, 10])
@pytest.mark.parametrize("name", [name for name in kinds() if "jpeg" in name])
def test_a_jpeg_is_scaled_down_to_the_pixels_that_pillow_would_decode(name: str, size: int) -> None:
    data = kinds()[name]
    info = Inspector(whole=False).inspect(data)
    with Image.open(io.BytesIO(data)) as expected:
        expected.draft(None, (2 * size, 2 * size))
        found, damage = _load(data, info, (2 * size, 2 * size))
        assert found.size == expected.size
        assert np.array_equal(np.asarray(found), np.asarray(expected))
        assert not damage


def test_the_shorter_side_is_never_enlarged_and_small_images_keep_their_bytes() -> None:
    small, portrait = saved(scene(32, 90), "JPEG"), saved(scene(90, 33), "JPEG")
    assert stored(small, size=32) == small
    assert Image.open(io.BytesIO(stored(portrait, size=32))).size == (32, 87)
    assert Image.open(io.BytesIO(stored(small, size=64, mode="crop"))).size == (64, 64)
    assert Image.open(io.BytesIO(stored(saved(scene(1, 300), "PNG"), size=32, mode="pad"))).size == (32, 32)


def test_the_quality_is_that_of_the_settings() -> None:
    data = kinds()["jpeg"]
    sizes = [len(stored(data, size=64, quality=quality)) for quality in (50, 95, 100)]
    assert sizes == sorted(set(sizes))


# In a whole data set


@pytest.fixture
def photographs(make_folder: MakeFolder) -> Path:
    """60 images of various sizes, JPEG and PNG, larger and smaller than 32 pixels."""
    root = make_folder({"a": 0, "b": 0})
    for number in range(60):
        image = scene(40 + number % 7, 60 + number).rotate(number)
        encoding = ("JPEG", "PNG")[number % 3 == 0]
        (root / "ab"[number % 2] / f"{number}.{encoding.lower()}").write_bytes(saved(image, encoding))
    (root / "a" / "small.jpg").write_bytes(saved(scene(20, 30), "JPEG"))
    return root


def shards(prepared: Prepared) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in prepared.folder.glob("*.tfrecord-*")}


def images(prepared: Prepared) -> dict[str, bytes]:
    """Return the stored images by key."""
    found = {}
    for path in prepared.folder.glob("*.tfrecord-*"):
        with path.open("rb") as file:
            found |= {key.decode(): image for image, key, _ in map(example_parts, read_records(file))}
    return found


@pytest.mark.usefixtures("processes")
def test_a_data_set_is_resized_once_and_says_so(photographs: Path, make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = make_settings(photographs, resize={"size": 32, "mode": "crop"})
    prepared = prepare(settings, 2)
    about = prepared.manifest
    assert (about.image_size, about.resize, about.channels) == ((32, 32), False, 3)
    assert about.resize_mode == "crop"  # in the exported model, which receives images of any size
    assert about.settings["resize"] == {"size": 32, "mode": "crop", "quality": 95, "above": 0}
    assert about.checked and (about.checked.check, about.checked.decoded) == ("decode", 61)
    assert {Image.open(io.BytesIO(image)).size for image in images(prepared).values()} == {(32, 32)}
    assert "Image sizes, as stored" in (prepared.folder / "statistics.html").read_text()
    assert prepare(settings, 2).reused
    one_worker = make_settings(photographs, resize={"size": 32, "mode": "crop"}, workers=1, store=str(tmp_path / "one"))
    assert shards(prepare(one_worker, 2)) == shards(prepared)
    fingerprints = {about.fingerprint}
    for other in (
        {"size": 33, "mode": "crop"},
        {"size": 32, "mode": "pad"},
        {"size": 32, "mode": "crop", "quality": 90},
    ):
        fingerprints.add(prepare(make_settings(photographs, resize=other), 2).manifest.fingerprint)
    assert len(fingerprints) == 4


@pytest.mark.slow
def test_beam_stores_the_same_images(photographs: Path, make_settings: MakeSettings, tmp_path: Path) -> None:
    about = {"resize": {"size": 32}, "image_size": [24, 24], "resize_mode": "crop"}
    beam = {"runner": "DirectRunner", "from_gigabytes": 0}
    one = prepare(make_settings(photographs, **about), 2)
    other = prepare(make_settings(photographs, **about, beam=beam, store=str(tmp_path / "beam")), 2)
    assert shards(one) == shards(other)
    assert {min(Image.open(io.BytesIO(image)).size) for image in images(one).values()} == {20, 32}


def test_without_resize_the_bytes_are_the_sources(photographs: Path, make_settings: MakeSettings) -> None:
    prepared = prepare(make_settings(photographs, image_size=[24, 24]), 1)
    assert images(prepared) == {
        str(path.relative_to(photographs)): path.read_bytes() for path in photographs.glob("*/*")
    }
    assert "resize" not in prepared.manifest.settings


def test_additional_features_and_other_sources_are_resized_alike(
    photographs: Path, make_settings: MakeSettings, tmp_path: Path
) -> None:
    """Additional images keep their bytes."""
    lines = [f"{path},{path.parent.name},{path}" for path in sorted(photographs.glob("*/*"))]
    (tmp_path / "list.csv").write_text("\n".join(["image,label,mask", *lines]))
    about = {"size": 16, "mode": "pad"}
    listed = prepare(make_settings(f"csv:{tmp_path / 'list.csv'}", features={"mask": "image"}, resize=about), 1)
    folder = prepare(make_settings(photographs, resize=about), 1)
    assert sorted(images(listed).values()) == sorted(images(folder).values())
    content = b"".join(shards(listed).values())
    assert all(path.read_bytes() in content for path in photographs.glob("*/*"))
    digits = prepare(make_settings("digits", resize={"size": 4, "mode": "crop"}), 1)
    assert digits.manifest.image_shape == (4, 4, 1)


@pytest.mark.parametrize("check", ["header", "decode"])
def test_images_that_cannot_be_decoded_are_skipped_without_a_trace(
    photographs: Path, make_settings: MakeSettings, check: str
) -> None:
    """All images are decoded to be resized, so damage in the middle of a file is found with any data.check."""
    for name in ("a/24.png", "b/25.jpeg"):
        data = (photographs / name).read_bytes()
        middle = len(data) // 2
        (photographs / name).write_bytes(data[:middle] + b"\xff\xe0\xff\xff" + data[middle:])
    about = {"resize": {"size": 32, "mode": "crop"}, "check": check}
    with pytest.raises(UserError, match=r"2 of 61 images cannot be used: a/24\.png .*; b/25\.jpeg "):
        prepare(make_settings(photographs, **about), 2)
    first = prepare(make_settings(photographs, **about, skip_corrupt=0.05), 2)
    assert {item.key for item in first.manifest.skipped} == {"a/24.png", "b/25.jpeg"}
    for name in ("a/24.png", "b/25.jpeg"):
        (photographs / name).unlink()
    assert shards(prepare(make_settings(photographs, **about), 2)) == shards(first)


def test_duplicates_are_images_with_the_same_bytes_in_the_source(
    make_folder: MakeFolder, make_settings: MakeSettings
) -> None:
    """Not images that are the same only after they are resized."""
    root = make_folder({"train/a": 9, "train/b": 9, "test/a": 9, "test/b": 9}, size=(20, 20))
    for split, size in (("train", 40), ("test", 50)):
        (root / split / "a" / "white.png").write_bytes(saved(Image.new("L", (size, size), 255), "PNG"))
    about = {"resize": {"size": 8, "mode": "crop"}}
    found = images(prepare(make_settings(root, **about), 1))
    assert found["train/a/white.png"] == found["test/a/white.png"]
    (root / "train" / "b" / "copy.png").write_bytes((root / "test" / "b" / "image 2.png").read_bytes())
    with pytest.raises(
        UserError, match=r"1 image is also in another split: train/b/copy\.png \(train\) = test/b/image 2"
    ):
        prepare(make_settings(root, **about), 1)
    dropped = prepare(make_settings(root, **about, duplicates="drop"), 1)
    assert {item.key for item in dropped.manifest.skipped} == {"train/b/copy.png"}


def test_shards_are_planned_for_the_stored_size(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    root = make_folder({"a": 20, "b": 20}, size=(300, 300))  # 3.6 MB
    plain = prepare(make_settings(root, shard_megabytes=1), 1).manifest
    small = prepare(make_settings(root, shard_megabytes=1, resize={"size": 30, "mode": "crop"}), 1).manifest
    assert [len(about.splits["train"].shards) for about in (plain, small)] == [3, 1]


def test_several_stored_sizes_need_an_image_size(photographs: Path, make_settings: MakeSettings) -> None:
    with pytest.raises(UserError, match="The images have several sizes") as error:
        prepare(make_settings(photographs, resize={"size": 32}), 1)
    assert error.value.setting == "data.image_size"
