"""Checksums of a model's files: each kind of damage is one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slipway.core import integrity
from slipway.core.errors import UserError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "variables").mkdir(parents=True)
    (folder / "variables" / "data").write_bytes(bytes(range(256)))
    (folder / "model.pt2").write_bytes(b"weights")
    integrity.seal(folder, {"classes": ["a", "b"], "rate": 0.1})
    return folder


def test_a_whole_model(model: Path) -> None:
    assert integrity.damage(model) is None
    (model / "metadata.json").write_text("{}")  # of a registry
    integrity.verify(model)
    record = json.loads((model / "model.json").read_text())
    assert record["files"]["variables/data"][0] == 256
    assert integrity.unsealed(record) == {"classes": ["a", "b"], "rate": 0.1}


def test_each_damage_is_one_sentence(model: Path) -> None:
    data, record = model / "variables" / "data", model / "model.json"
    content, text = data.read_bytes(), record.read_text()
    for change, what in (
        (lambda: data.write_bytes(content[:-1] + b"x"), "variables/data does not match its checksum"),
        (lambda: os.truncate(data, 10), "variables/data has 10 bytes instead of 256"),
        (data.unlink, "variables/data is missing"),
        (lambda: record.write_text(text.replace('"b"', '"c"')), "model.json does not match its checksum"),
        (lambda: record.write_bytes(b""), "model.json cannot be read"),
        (lambda: record.write_bytes(bytes(100)), "model.json cannot be read"),
        (lambda: record.write_bytes(b"\xff"), "model.json cannot be read"),
    ):
        change()
        with pytest.raises(UserError) as refused:
            integrity.verify(model)
        assert refused.value.message == f"The model in {model} is damaged: {what}."
        data.write_bytes(content)
        record.write_text(text)
    integrity.verify(model)


@pytest.mark.parametrize("by", [integrity.RECORD_FILE, integrity.CHECKSUMS_FILE])
def test_no_flipped_bit_is_overlooked(model: Path, by: str) -> None:
    integrity.seal(model, {}, by)
    for path in (model / by, model / "model.pt2"):
        content = path.read_bytes()
        for bit in range(8 * len(content)):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            assert integrity.damage(model) is not None, (path, bit, bytes(flipped))
        path.write_bytes(content)
    assert integrity.damage(model) is None


def test_all_damages_are_named(model: Path) -> None:
    (model / "model.pt2").unlink()
    (model / "variables" / "data").write_bytes(b"")
    assert list(integrity.damages(model)) == [
        "model.pt2 is missing", "variables/data has 0 bytes instead of 256"
    ]  # fmt: skip


@pytest.mark.parametrize("text", [None, "{}", "[]", '{"format": "layers-model"}'])
def test_a_model_without_checksums_is_not_damaged(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "model.json").write_text(text)
    integrity.verify(tmp_path)
