"""A resumed run repeats the finished steps whose results a power cut has damaged, and only those."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slipway.core import integrity
from slipway.pipelines.platforms.local.executor import forget_damaged


def entry(folder: Path, name: str, output: str, uri: Path, **metadata: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps({output: {"uri": str(uri), "metadata": metadata}, "Output": [1]}))


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        (lambda _folder: None, ["data", "evaluate", "plan", "train"]),
        (lambda folder: os.truncate(folder / "model" / "model.pt2", 0), ["data", "evaluate", "plan"]),
        (lambda folder: (folder / "model" / "model.json").unlink(), ["data", "evaluate", "plan"]),
        (lambda folder: os.truncate(folder / "report", 0), ["data", "plan", "train"]),
        (lambda folder: os.truncate(folder / "cache" / "plan.json", 0), ["data", "evaluate", "train"]),
        (lambda folder: (folder / "cache" / "plan.json").write_text("null"), ["data", "evaluate", "train"]),
        (lambda folder: (folder / "cache" / "plan.json").write_bytes(b"\xff"), ["data", "evaluate", "train"]),
    ],
)
def test_a_damaged_result_is_forgotten(tmp_path: Path, damage: Any, kept: list[str]) -> None:
    cache, model = tmp_path / "cache", tmp_path / "model"
    cache.mkdir()
    model.mkdir()
    (model / "model.pt2").write_bytes(b"weights")
    integrity.seal(model, {"weights_checksum": "1"})
    (tmp_path / "report").write_text("<html>")
    entry(cache, "train", "model", model, weights_checksum="1")
    entry(cache, "evaluate", "report", tmp_path / "report")
    entry(cache, "data", "dataset", tmp_path / "elsewhere")  # kfp's cache notices that it is missing
    (cache / "plan.json").write_text('{"Output": "text"}')
    damage(tmp_path)
    forget_damaged(cache)
    assert sorted(path.stem for path in cache.iterdir()) == kept
