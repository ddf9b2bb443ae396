"""The model folder: complete or unchanged, even if writing fails."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.core import events, paths, seen
from slipway.core import manifest as manifests
from slipway.trainer.engines.base import ModelSize
from slipway.trainer.export.export import export, exported
from slipway.trainer.weights import WeightsSettings


class WritingEngine:
    """An engine that writes a model, or fails halfway."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.exports = 0

    def size(self) -> ModelSize:
        return ModelSize(variables=12, trainable=8)

    def export(self, folder: Path, _job: Any, _manifest: Any) -> None:
        self.exports += 1
        (folder / "saved_model.pb").write_text("half")
        if self.fails:
            raise OSError(28, "No space left on device")


def write(engine: Any, tiny: Path, root: Path, make_job: Any, checksum: str = "c1") -> None:
    (root / "metrics.jsonl").write_text('{"kind": "train"}\n')
    (root / "spent.json").write_text('{"text": "it took 2 s"}')
    job = make_job(tiny, steps=10, steps_per_epoch=75)
    export(engine, job, manifests.read(tiny), checksum, root, root / "model", 10, 10)


def listing(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_the_folder_takes_the_place_of_an_empty_or_older_one(tiny: Path, tmp_path: Path, make_job: Any) -> None:
    (tmp_path / "model").mkdir()
    write(WritingEngine(), tiny, tmp_path, make_job)
    (tmp_path / "model" / "stale").touch()
    write(WritingEngine(), tiny, tmp_path, make_job, checksum="c2")
    assert listing(tmp_path / "model") == ["metrics.jsonl", "model.json", "saved_model.pb", "spent.json"]
    assert json.loads((tmp_path / "model" / "model.json").read_text())["weights_checksum"] == "c2"
    assert listing(tmp_path) == ["metrics.jsonl", "model", "spent.json"]


def test_a_model_with_another_ones_weights_has_seen_what_that_has(tiny: Path, tmp_path: Path, make_job: Any) -> None:
    base = tmp_path / "models" / "3"
    base.mkdir(parents=True)
    (base / "model.keras").touch()
    np.array([3, 7], np.uint64).tofile(base / seen.SEEN_FILE)
    job = make_job(tiny, steps=10, steps_per_epoch=75)
    model = job.model.model_copy(update={"weights": WeightsSettings(file=str(base / "model.keras"))})
    for name in ("metrics.jsonl", "spent.json"):
        (tmp_path / name).touch()
    job = job.model_copy(update={"model": model})
    export(WritingEngine(), job, manifests.read(tiny), "c1", tmp_path, tmp_path / "model", 10, 10)
    assert {3, 7} <= set(seen.seen_by(tmp_path / "model").tolist())


@pytest.mark.usefixtures("tensorflow")
def test_the_saved_model_resizes_as_the_training_does(tiny: Path, tmp_path: Path) -> None:
    """For each data.resize_mode; the network's logits are three of the pixels."""
    import tensorflow as tf

    from slipway.trainer.data.images import decode_images
    from slipway.trainer.export import saved_model

    wide = tf.io.encode_png(np.random.default_rng(0).integers(0, 256, (16, 40, 1), np.uint8))
    found = []
    for mode in ("stretch", "crop", "pad"):
        manifest = manifests.read(tiny).model_copy(update={"resize_mode": mode, "classes": ["left", "middle", "right"]})
        saved_model.write(tmp_path / mode, lambda images: 9 * images[:, 4, ::3, 0], [], manifest)
        served = tf.saved_model.load(str(tmp_path / mode)).signatures["serving_default"](image_bytes=wide[None])
        pixels = decode_images(wide[None], manifest)[:, 4, ::3, 0] / 255
        np.testing.assert_allclose(served["probabilities"], tf.nn.softmax(9 * pixels), atol=1e-6)
        found.append(served["probabilities"].numpy())
    assert len(np.unique(np.stack(found).round(3), axis=0)) == 3


def test_the_record_says_how_images_are_resized(tiny: Path, tmp_path: Path, make_job: Any) -> None:
    """For programs that decode images themselves, and for the evaluation of pytorch models."""
    write(WritingEngine(), tiny, tmp_path, make_job)
    record = json.loads((tmp_path / "model" / "model.json").read_text())
    assert (record["image_size"], record["resize_mode"]) == ([8, 8], "stretch")


def test_the_same_weights_are_not_written_again(tiny: Path, tmp_path: Path, make_job: Any) -> None:
    engine = WritingEngine()
    write(engine, tiny, tmp_path, make_job)
    write(engine, tiny, tmp_path, make_job)
    assert engine.exports == 1


def test_a_failure_leaves_the_folder_as_it_was(tiny: Path, tmp_path: Path, make_job: Any) -> None:
    with pytest.raises(OSError, match="No space"):
        write(WritingEngine(fails=True), tiny, tmp_path, make_job)
    assert listing(tmp_path) == ["metrics.jsonl", "spent.json"]
    write(WritingEngine(), tiny, tmp_path, make_job)
    with pytest.raises(OSError, match="No space"):
        write(WritingEngine(fails=True), tiny, tmp_path, make_job, checksum="c2")
    assert listing(tmp_path) == ["metrics.jsonl", "model", "spent.json"]
    assert json.loads((tmp_path / "model" / "model.json").read_text())["weights_checksum"] == "c1"


def test_in_a_bucket_the_record_goes_first_and_comes_last(
    tiny: Path, tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(paths.MOUNTS, "gs://", str(tmp_path))
    monkeypatch.setattr(Path, "rename", None)  # a mounted bucket has no renaming of folders
    write(WritingEngine(), tiny, tmp_path, make_job)
    (tmp_path / "model" / "variables").mkdir()
    (tmp_path / "model" / "variables" / "stale").touch()
    copied: list[str] = []
    copy = shutil.copyfile

    def copyfile(source: Path, target: Path) -> None:
        if target.parent == tmp_path / "model":
            copied.append(target.name)
            assert not (tmp_path / "model" / "model.json").exists()
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    with pytest.raises(OSError, match="No space"):
        write(WritingEngine(fails=True), tiny, tmp_path, make_job, checksum="c2")
    assert json.loads((tmp_path / "model" / "model.json").read_text())["weights_checksum"] == "c1"
    write(WritingEngine(), tiny, tmp_path, make_job, checksum="c2")
    assert copied == ["metrics.jsonl", "saved_model.pb", "spent.json", "model.json"]
    found = [path.name for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert sorted(found) == ["metrics.jsonl", "model.json", "saved_model.pb", "spent.json"]
    assert json.loads((tmp_path / "model" / "model.json").read_text())["weights_checksum"] == "c2"


def test_a_job_knows_the_model_that_it_has_exported(tiny: Path, tmp_path: Path, make_job: Any) -> None:
    """Accept the same job with its data in another folder, but not other settings, other data or a partial model."""
    job, manifest = make_job(tiny, steps=10, steps_per_epoch=75), manifests.read(tiny)
    folder = tmp_path / "model"
    assert exported(job, manifest, folder) is None
    write(WritingEngine(), tiny, tmp_path, make_job)
    assert exported(job, manifest, folder) == "c1"
    assert exported(job.model_copy(update={"data": "elsewhere"}), manifest, folder) == "c1"
    assert exported(make_job(tiny, steps=20, steps_per_epoch=75), manifest, folder) is None
    assert exported(job, manifest.model_copy(update={"fingerprint": "other"}), folder) is None
    (folder / "model.json").write_text('{"classes"')
    assert exported(job, manifest, folder) is None


@pytest.mark.parametrize("name", ["saved_model.pb", "metrics.jsonl", "model.json"])
@pytest.mark.parametrize("damage", ["empty", "missing", "bit"])
def test_a_damaged_export_counts_as_absent_and_is_written_again(
    tiny: Path, tmp_path: Path, make_job: Any, name: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    monkeypatch.setattr(events, "message", messages.append)
    job, manifest = make_job(tiny, steps=10, steps_per_epoch=75), manifests.read(tiny)
    engine, folder = WritingEngine(), tmp_path / "model"
    write(engine, tiny, tmp_path, make_job)
    content = (folder / name).read_bytes()
    if damage == "missing":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(b"" if damage == "empty" else content[:3] + bytes([content[3] ^ 1]) + content[4:])
    assert exported(job, manifest, folder) is None
    assert all("is damaged (" in text and "exported again" in text for text in messages)
    assert bool(messages) == ((name, damage) != ("model.json", "missing"))
    write(engine, tiny, tmp_path, make_job)
    assert engine.exports == 2
    assert exported(job, manifest, folder) == "c1"
    assert (folder / name).read_bytes() == content


def test_everything_is_on_the_disk_before_the_folder_has_its_name(
    tiny: Path, tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut loses what was not flushed; a rename is kept before the content is."""
    done: list[str] = []
    names = Path("/proc/self/fd")
    monkeypatch.setattr(os, "fsync", lambda number: done.append((names / str(number)).readlink().name))
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda path, target: (done.append("rename"), rename(path, target))[1])
    write(WritingEngine(), tiny, tmp_path, make_job)
    before, after = done[: done.index("rename")], done[done.index("rename") + 1 :]
    assert sorted(before) == [".model.new", "metrics.jsonl", "model.json", "saved_model.pb", "spent.json"]
    assert after[0] == tmp_path.name
