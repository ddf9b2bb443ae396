"""A resumed run repeats the finished steps whose results a power cut has damaged, and only those."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slipway.core import integrity
from slipway.core.integrity import CHECKSUMS_FILE
from slipway.pipelines.platforms.local.executor import forget_damaged


def entry(folder: Path, name: str, output: str, uri: Path, **metadata: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps({output: {"uri": str(uri), "metadata": metadata}, "Output": [1]}))


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        (lambda _folder: None, ["custom", "data", "evaluate", "plan", "train"]),
        (lambda folder: os.truncate(folder / "model" / "model.pt2", 0), ["custom", "data", "evaluate", "plan"]),
        (lambda folder: (folder / "model" / "model.json").unlink(), ["custom", "data", "evaluate", "plan"]),
        (lambda folder: os.truncate(folder / "own" / "model.pt", 0), ["data", "evaluate", "plan", "train"]),
        (lambda folder: os.truncate(folder / "own" / CHECKSUMS_FILE, 0), ["data", "evaluate", "plan", "train"]),
        (lambda folder: (folder / "own" / CHECKSUMS_FILE).unlink(), ["data", "evaluate", "plan", "train"]),
        (lambda folder: os.truncate(folder / "report", 0), ["custom", "data", "plan", "train"]),
        (lambda folder: os.truncate(folder / "cache" / "plan.json", 0), ["custom", "data", "evaluate", "train"]),
        (lambda folder: (folder / "cache" / "plan.json").write_text("null"), ["custom", "data", "evaluate", "train"]),
        (lambda folder: (folder / "cache" / "plan.json").write_text("{}"), ["custom", "data", "evaluate", "train"]),
        (lambda folder: (folder / "cache" / "plan.json").write_bytes(b"\xff"), ["custom", "data", "evaluate", "train"]),
    ],
)
def test_a_damaged_result_is_forgotten(tmp_path: Path, damage: Any, kept: list[str]) -> None:
    cache, model, own = tmp_path / "cache", tmp_path / "model", tmp_path / "own"
    for folder in (cache, model, own):
        folder.mkdir()
    (model / "model.pt2").write_bytes(b"weights")
    integrity.seal(model, {"weights_checksum": "1"})
    (own / "model.pt").write_bytes(b"weights")
    integrity.seal(own, {}, CHECKSUMS_FILE)
    (tmp_path / "report").write_text("<html>")
    entry(cache, "train", "model", model, files_checksum=integrity.checksum(model))
    entry(cache, "custom", "model", own, files_checksum=integrity.checksum(own))
    entry(cache, "evaluate", "report", tmp_path / "report")
    entry(cache, "data", "dataset", tmp_path / "elsewhere")  # kfp's cache notices that it is missing
    (cache / "plan.json").write_text('{"Output": "text"}')
    damage(tmp_path)
    forget_damaged(cache)
    assert sorted(path.stem for path in cache.iterdir()) == kept
