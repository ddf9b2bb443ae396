"""Decoding into memory: equal pixels, whichever decoder, and training that starts before everything is decoded."""

from __future__ import annotations

import functools
import io
import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from slipway.core import manifest as manifests
from slipway.core.manifest import Manifest
from slipway.trainer.data.assignment import ShardAssignment

Pixels = NDArray[np.uint8]

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.fixture
def jpegs(data_sets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardAssignment:
    """60 JPEG images in three shards, which are decoded in groups of 8."""
    from slipway.trainer.data import decoding

    monkeypatch.setattr(decoding, "_GROUP_EXAMPLES", 8)
    manifest = data_sets.write(tmp_path / "jpegs", train=[25, 20, 15], validation=[9], kind="jpeg")
    return ShardAssignment(tmp_path / "jpegs", manifest, 0, 1)


def jpeg(pixels: Pixels, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **options)
    return file.getvalue()


def by_tensorflow(file: bytes, size: tuple[int, int, int]) -> list[Pixels]:
    """Return what training without libjpeg-turbo, and a request of an upright image to the exported model, decode."""
    import tensorflow as tf

    from slipway.trainer.data import images

    manifest = Manifest(
        name="x", fingerprint="", source="", settings={}, classes=[], image_size=size[:2], channels=size[2],
        resize=False, encodings=["jpeg"], splits={},
    )  # fmt: skip
    decoders = (images.decode_prepared, functools.partial(images.decode_images, upright=True))
    return [decode(tf.constant([file]), manifest).numpy()[0] for decode in decoders]


def files() -> list[tuple[bytes, int, int]]:
    """Return JPEG files with height and width: noise and smooth images, of all subsamplings, sizes and qualities."""
    generator = np.random.default_rng(11)
    found = []
    for height, width in [(32, 32), (33, 47), (17, 1), (1, 18), (2, 3), (64, 81)]:
        noise = generator.integers(0, 256, (height, width, 3), np.uint8)
        few = generator.integers(0, 256, (2 + height // 8, 2 + width // 8, 3), np.uint8)
        smooth = np.asarray(Image.fromarray(few).resize((width, height), Image.Resampling.BICUBIC))
        for pixels, quality in itertools.product((noise, smooth), (10, 75, 95)):
            made = [
                simplejpeg.encode_jpeg(pixels, quality, "RGB", kind) for kind in ("444", "422", "420", "440", "411")
            ]
            made += [jpeg(pixels[:, :, 0], quality=quality), jpeg(pixels, quality=quality, optimize=True)]
            if min(height, width) > 8:  # Pillow's buffer is too small for the smallest
                exif = Image.Exif()
                exif[0x0112] = 6  # to be turned, which no decoder does
                made += [jpeg(pixels, quality=quality, progressive=True), jpeg(pixels, quality=quality, exif=exif)]
                made.append(jpeg(pixels, quality=quality, restart_marker_blocks=2))
            found += [(bytes(file), height, width) for file in made]
    return found


def test_libjpeg_turbo_decodes_to_the_pixels_of_tensorflow() -> None:
    from slipway.trainer.data.images import decode_jpeg

    checked = files()
    assert len(checked) > 300
    for number, (file, height, width) in enumerate(checked):
        channels = (1, 3)[number % 2]
        pixels = np.zeros((height, width, channels), np.uint8)
        assert decode_jpeg(file, pixels), number
        for expected in by_tensorflow(file, pixels.shape):
            np.testing.assert_array_equal(pixels, expected, str(number))


def test_what_tensorflow_refuses_or_decodes_differently_is_left_to_it() -> None:
    import tensorflow as tf

    from slipway.trainer.data.images import decode_jpeg

    noise = np.random.default_rng(5).integers(0, 256, (24, 24, 3), np.uint8)
    good = jpeg(noise)
    inks = io.BytesIO()
    Image.fromarray(noise).convert("CMYK").save(inks, "JPEG")
    png = io.BytesIO()
    Image.fromarray(noise).save(png, "PNG")
    lossless, middle = bytearray(good), len(good) // 2
    lossless[good.index(b"\xff\xc0") + 1] = 0xC3
    broken = {
        "cut": good[:-60],
        "without its end": good[:-2],
        "a hole": good[:middle] + good[middle + 40 :],
        "no image": b"GIF" + good[3:],
        "empty": b"",
        "lossless": bytes(lossless),
        "ends before its frame": good[: good.index(b"\xff\xc0")],
    }
    pixels = np.zeros((24, 24, 3), np.uint8)
    assert decode_jpeg(good, pixels)
    others = {"CMYK": inks.getvalue(), "PNG": png.getvalue(), "another size": jpeg(noise[:20, :20])}
    for name, file in {**broken, **others}.items():
        assert not decode_jpeg(file, pixels), name
    for name in ("cut", "without its end", "no image", "empty", "lossless", "ends before its frame"):
        with pytest.raises(tf.errors.InvalidArgumentError):
            by_tensorflow(broken[name], (24, 24, 3))


@pytest.mark.parametrize("mode", ["stretch", "crop"])
def test_large_photographs_are_decoded_to_a_part_of_their_size_that_shows_no_difference(mode: Any) -> None:
    """Scikit-learn's photographs, enlarged; the exported model resizes all pixels."""
    from sklearn.datasets import load_sample_images

    from slipway.trainer.data import images

    pytest.importorskip("cykooz_resizer")
    for photograph in load_sample_images().images:
        file = io.BytesIO()
        Image.fromarray(photograph).resize((1503, 1001), Image.Resampling.LANCZOS).save(file, "JPEG", quality=92)
        whole, resized = np.empty((96, 128, 3), np.uint8), np.empty((96, 128, 3), np.uint8)
        images._resize_by_simd(simplejpeg.decode_jpeg(file.getvalue(), "RGB", fastdct=True), whole, mode)
        assert images.decode_jpeg(file.getvalue(), resized, mode)
        difference = abs(whole.astype(int) - resized)
        assert 0 < difference.mean() < 1
        assert difference.max() <= 16
        assert not images.decode_jpeg(file.getvalue()[:-600], resized, mode), "a cut file is damaged at any size"


def test_at_least_twice_the_size_is_decoded() -> None:
    from slipway.trainer.data.images import _scale

    sizes = [(223, 9000), (447, 448), (448, 448), (896, 2000), (1792, 1792), (30_000, 30_000)]
    assert [_scale(size, (224, 224)) for size in sizes] == [1, 1, 1, 2, 4, 8]
    assert _scale((448, 896), (224, 448)) == 1


def test_a_thumbnail_before_the_frame_is_no_frame() -> None:
    """A comment that contains a lossless frame's marker, as a thumbnail in the application data may."""
    from slipway.trainer.data.images import decode_jpeg

    pixels = np.random.default_rng(6).integers(0, 256, (24, 24, 3), np.uint8)
    found = np.zeros_like(pixels)
    file = jpeg(pixels, comment=b"\xff\xc3" * 200)
    assert decode_jpeg(file, found)
    np.testing.assert_array_equal(found, by_tensorflow(file, pixels.shape)[0])


@pytest.mark.parametrize("count", [1, 13, 17, 48])
def test_images_of_the_shards_are_decoded_in_a_loop_of_few_operations(count: int) -> None:
    """Tracing an operation for each image of a group would take longer than decoding a small data set."""
    import tensorflow as tf

    from slipway.trainer.data import images

    made = np.random.default_rng(7).integers(0, 256, (count, 8, 6, 3), np.uint8)
    manifest = Manifest(
        name="x", fingerprint="", source="", settings={}, classes=[], image_size=(8, 6), channels=3, resize=False,
        encodings=["png"], splits={},
    )  # fmt: skip
    files = []
    for pixels in made:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        files.append(file.getvalue())
    decode = images.traced(lambda encoded: images.decode_prepared(encoded, manifest))
    graph = decode.get_concrete_function(tf.TensorSpec([count], tf.string)).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    assert 1 <= sum(node.op == "DecodeJpeg" for node in nodes) <= 16
    np.testing.assert_array_equal(decode(tf.constant(files)).numpy(), made)


def test_steps_run_while_the_rest_is_decoded(jpegs: ShardAssignment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first steps wait for their examples only, later ones for more; the result is what TensorFlow decodes."""
    from slipway.trainer.data import decoding, inputs

    may_continue, decode = threading.Event(), decoding.Decoding._decode
    seen: list[int] = []

    def held(self: Any, chosen: Any) -> None:
        if len(seen) >= 24:
            assert may_continue.wait(30)
        decode(self, chosen)
        seen.extend(chosen.tolist())

    monkeypatch.setattr(decoding.Decoding, "_decode", held)
    monkeypatch.setattr(decoding, "available_cores", lambda: 1)
    training = inputs.training(jpegs, batch=6, steps_per_epoch=10, seed=2)
    assert isinstance(training, inputs.MemoryTraining)
    pixels, labels = training.arrays(whole=False)
    first = training.order(0, 4)
    assert set(first.ravel()) <= set(seen)
    assert len(seen) == 24
    early, early_labels = pixels[first].copy(), labels[first].copy()
    late = threading.Thread(target=lambda: training.order(4, 1))
    late.start()
    late.join(0.1)
    assert late.is_alive()
    may_continue.set()
    late.join(30)
    np.testing.assert_array_equal(early, training.inputs[first])
    np.testing.assert_array_equal(early_labels, training.labels[first])
    assert sorted(training.order(10, 10).ravel()) == list(range(60))
    monkeypatch.undo()
    alone = list(inputs.evaluation(jpegs, "train", 60, budget=0).batches())
    np.testing.assert_array_equal(alone[0][0], training.inputs)
    np.testing.assert_array_equal(alone[0][1], training.labels)


@pytest.mark.parametrize("worth_seconds", [0.0, 1.0])
def test_tensorflow_decodes_much_while_another_thread_holds_the_lock(
    worth_seconds: float, jpegs: ShardAssignment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slipway.trainer.data import decoding

    called: list[int] = []

    def slow(file: bytes, pixels: Pixels, mode: str) -> bool:
        called.append(len(file))
        time.sleep(0.01)  # what waiting for the lock looks like
        pixels[:] = 0
        return False

    monkeypatch.setattr(decoding, "_TENSORFLOW_SECONDS", 60.0)
    monkeypatch.setattr(decoding, "_WORTH_SECONDS", worth_seconds)
    expected = decoding.Decoding(jpegs, "train")
    expected.wait()
    monkeypatch.setattr(decoding, "decode_jpeg", slow)
    monkeypatch.setattr(decoding, "available_cores", lambda: 2)
    found = decoding.Decoding(jpegs, "train")
    found.wait()
    if worth_seconds:
        assert len(called) == 60, "these few images take less time than a graph"
    else:
        assert 1 <= len(called) <= 4, "one image of each thread's first group, then none"
    np.testing.assert_array_equal(found.inputs, expected.inputs)
    np.testing.assert_array_equal(found.labels, expected.labels)


def test_an_image_that_cannot_be_decoded_fails_the_step_that_needs_it(
    data_sets: Any, jpegs: ShardAssignment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TensorFlow's message, from which the trainer makes its own."""
    from slipway.trainer.data import inputs
    from slipway.trainer.failures import of_library
    from tests.trainer import conftest

    encode, made = conftest.encode, itertools.count()

    def damaged(pixels: Any, kind: str = "png") -> bytes:
        return encode(pixels, kind)[: -40 if next(made) == 17 else None]

    monkeypatch.setattr(conftest, "encode", damaged)
    folder = tmp_path / "damaged"
    data_sets.write(folder, train=[30], kind="jpeg")
    assignment = ShardAssignment(folder, manifests.read(folder), 0, 1)
    training = inputs.training(assignment, batch=5, steps_per_epoch=6, seed=0)
    with pytest.raises(Exception, match="Invalid JPEG data") as caught:
        training.order(0, 6)  # type: ignore[union-attr]
    told = of_library(caught.value, folder)
    assert told is not None
    assert "cannot be decoded" in told.message


def test_a_long_wait_is_reported(jpegs: ShardAssignment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slipway.trainer.data import decoding

    monkeypatch.setenv("SLIPWAY_EVENTS", str(tmp_path / "events.jsonl"))
    monkeypatch.setattr(decoding, "_PROGRESS_SECONDS", 0.02)
    decode = decoding.Decoding._decode

    def slow(self: Any, chosen: Any) -> None:
        time.sleep(0.05)
        decode(self, chosen)

    monkeypatch.setattr(decoding.Decoding, "_decode", slow)
    decoding.Decoding(jpegs, "train").wait()
    phase, *told = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert phase["text"] == "decoding 60 images"
    assert {(event["unit"], event["total"]) for event in told} == {("images decoded", 60)}
    assert max(event["done"] for event in told) > 0


def test_resized_images_are_the_same_in_memory_and_streamed(
    data_sets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a thread waits: TensorFlow, which would resize them to slightly different pixels, does not help."""
    from slipway.trainer.data import decoding, images, inputs

    manifest = data_sets.write(tmp_path / "set", train=[20, 20], size=(8, 8), written_size=(19, 27), kind="jpeg")
    assignment = ShardAssignment(tmp_path / "set", manifest, 0, 1)
    streamed = next(inputs.evaluation(assignment, "train", 40, budget=0).batches())[0]
    monkeypatch.setattr(decoding, "_WAITING_RATIO", 0.0)
    monkeypatch.setattr(decoding, "_WAITING_SECONDS", -1.0)
    monkeypatch.setattr(decoding, "_WORTH_SECONDS", 0.0)
    in_memory = decoding.Decoding(assignment, "train")
    in_memory.wait()
    np.testing.assert_array_equal(streamed, in_memory.inputs)
    monkeypatch.setattr(images, "simd", None)
    by_graph = next(inputs.evaluation(assignment, "train", 40, budget=0).batches())[0]
    assert abs(by_graph.astype(int) - streamed).max() == 1


def test_a_stream_has_the_images_that_only_tensorflow_decodes() -> None:
    """PNG files, and JPEG files with colors that libjpeg-turbo converts differently, in their places."""
    import tensorflow as tf

    from slipway.trainer.data import images

    noise = np.random.default_rng(8).integers(0, 256, (24, 24, 3), np.uint8)
    inks, png = io.BytesIO(), io.BytesIO()
    Image.fromarray(noise).convert("CMYK").save(inks, "JPEG")
    Image.fromarray(noise).save(png, "PNG")
    files = tf.constant([jpeg(noise), png.getvalue(), jpeg(noise[:, ::-1]), inks.getvalue()])
    manifest = Manifest(
        name="x", fingerprint="", source="", settings={}, classes=[], image_size=(24, 24), channels=3, resize=False,
        encodings=["jpeg", "png"], splits={},
    )  # fmt: skip
    found = images.traced(lambda encoded: images.decode_stream(encoded, manifest))(files).numpy()
    np.testing.assert_array_equal(found, images.decode_prepared(files, manifest).numpy())
    np.testing.assert_array_equal(found[1], noise)


def test_records_are_those_that_tensorflow_reads(jpegs: ShardAssignment) -> None:
    import tensorflow as tf

    from slipway.trainer.data.decoding import Records

    records = Records([Path(path) for path in jpegs.paths("train")])
    expected = list(tf.data.TFRecordDataset(jpegs.paths("train")).as_numpy_iterator())
    assert [records[number] for number in range(len(records))] == expected
