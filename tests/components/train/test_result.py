"""Collecting the model of a finished job: Slipway's own, or that of a custom program."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from slipway.components.train.result import publish
from slipway.core import integrity
from slipway.core.errors import UserError
from slipway.core.manifest import FILE_NAME, Manifest, Split
from slipway.core.seen import seen_by

WENT_BACK = ["the checkpoint of step 10 is damaged; training resumes from the one of step 5"]


def write(folder: Path, weights_step: int) -> None:
    folder.mkdir(parents=True)
    (folder / "model.json").write_text(
        json.dumps({"engine": "jax", "weights_step": weights_step, "went_back": WENT_BACK})
    )
    lines = [{"kind": "validation", "step": step, "loss": 1 / step, "accuracy": step / 100} for step in (10, 20, 30)]
    torn = '{"kind": "validation", "ste\n'  # what a full disk left of a line
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)


def published(output: Path) -> tuple[SimpleNamespace, dict[str, float], dict]:
    """The model artifact, the logged metrics and the step's outputs."""
    model, logged = SimpleNamespace(uri="", metadata={}), {}
    return model, logged, publish(str(output), model, SimpleNamespace(log_metric=logged.__setitem__))


def test_its_metrics_are_those_of_the_weights_that_were_exported(tmp_path: Path) -> None:
    write(tmp_path / "model", 20)
    model, logged, outputs = published(tmp_path)
    assert logged == {"loss": 0.05, "accuracy": 0.2}
    known = {
        "engine": "jax",
        "weights_step": 20,
        "went_back": WENT_BACK,
        "files_checksum": integrity.checksum(tmp_path / "model"),
    }
    assert (model.uri, model.metadata) == (f"{tmp_path}/model", known)
    assert outputs == {"model": model.uri, **model.metadata, "validation": logged}


def test_a_model_of_any_format_is_enough_and_an_empty_folder_is_not(tmp_path: Path) -> None:
    (tmp_path / "model" / "empty").mkdir(parents=True)
    with pytest.raises(UserError, match="wrote no model") as error:
        published(tmp_path)
    assert "AIP_MODEL_DIR" in str(error.value.fix)
    (tmp_path / "model" / "weights.gguf").write_bytes(b"")
    (tmp_path / "model" / "model.json").write_text('{"format": "layers-model", "engine": "another"}')  # TensorFlow.js
    lines = [{"kind": "validation", "step": 3, "epoch": 1, "rmse": 0.5, "bad": None, "time": 9.1}, {"step": 4}]
    (tmp_path / "model" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    model, logged, _ = published(tmp_path)
    assert (list(model.metadata), logged) == (["files_checksum"], {"rmse": 0.5})


def test_a_custom_programs_model_has_checksums_and_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, flushed = tmp_path / "model", []
    (folder / "layers").mkdir(parents=True)
    weights = folder / "layers" / "weights"
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(os.fstat(number).st_ino))
    for content in (b"interrupted", b"trained"):  # the program writes its model again when the step is repeated
        weights.write_bytes(content)
        model, _, outputs = published(tmp_path)
    assert outputs["files_checksum"] == model.metadata["files_checksum"] == integrity.checksum(folder)
    assert integrity.damage(folder) is None
    assert {path.stat().st_ino for path in (folder, *folder.rglob("*"))} <= set(flushed)
    weights.write_bytes(b"")
    assert integrity.damage(folder) == "layers/weights has 0 bytes instead of 7"


def test_slipways_own_model_keeps_its_checksums_in_model_json(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.pt2").write_bytes(b"weights")
    integrity.seal(tmp_path / "model", {"weights_step": 20})
    published(tmp_path)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.json", "model.pt2"]


def test_a_custom_programs_model_has_seen_the_splits_that_the_program_was_given(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.pt").write_bytes(b"weights")
    (tmp_path / "data").mkdir()
    splits = {"train": [9, 4, 7], "validation": [5, 4], "test": [6]}
    for split, hashes in splits.items():
        np.array(hashes, np.uint64).tofile(tmp_path / "data" / f"{split}.u64")
    found = {name: Split(examples=len(each), classes={}, shards=[]) for name, each in splits.items()}
    about = Manifest(
        name="own", fingerprint="", source="digits", settings={}, classes=[], image_size=(8, 8), channels=1,
        resize=False, encodings=[], splits=found,
    )  # fmt: skip
    (tmp_path / "data" / FILE_NAME).write_text(about.model_dump_json())
    publish(str(tmp_path), SimpleNamespace(uri="", metadata={}), SimpleNamespace(), tmp_path / "data")
    assert seen_by(tmp_path / "model").tolist() == [4, 5, 7, 9]
