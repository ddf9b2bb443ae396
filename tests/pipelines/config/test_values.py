"""Where the values of a configuration come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.config.config import load
from slipway.pipelines.config.values import origins

TEXT = """\
# A comment.
name: digits
data: {source: digits, split: {train: 0.8}}
common: &common
  epochs: 2
train:
  <<: *common
  batch_size: 8
  milestones: [
    {epochs: 1}]
"""
OVERRIDES = ["train={epochs: 3, checkpoint: {keep: 1}}", "train.checkpoint.every_steps=5", "name=other"]


@pytest.mark.parametrize(
    ("key", "overrides", "hardware", "expected"),
    [
        ("name", [], None, "FILE:2"),
        ("data.split.train", [], None, "FILE:3"),
        ("data.split.test", [], None, "default"),
        ("hardware", [], None, "default"),
        ("hardware", [], "cpu*2", "--hardware cpu*2"),
        ("hardware", ["hardware=cpu"], None, "--set hardware=cpu"),
        ("train.epochs", [], None, "FILE:5"),
        ("train.batch_size", [], None, "FILE:8"),
        ("train.milestones", [], None, "FILE:9"),
        ("train.epochs", ["train.steps=7"], None, "default"),
        ("train.steps", ["train.steps=7"], None, "--set train.steps=7"),
        ("name", OVERRIDES, None, "--set name=other"),
        ("train.epochs", OVERRIDES, None, f"--set {OVERRIDES[0]}"),
        ("train.checkpoint.keep", OVERRIDES, None, f"--set {OVERRIDES[0]}"),
        ("train.checkpoint.every_steps", OVERRIDES, None, f"--set {OVERRIDES[1]}"),
        ("train.batch_size", OVERRIDES, None, "default"),
        ("train.batch_size", ["train.batch_size=1", "train.batch_size=2"], None, "--set train.batch_size=2"),
    ],
)
def test_the_origin_of_a_value(tmp_path: Path, key: str, overrides: list[str], hardware: str | None, expected: str):
    path = tmp_path / "run.yaml"
    path.write_text(TEXT)
    assert origins(path, overrides, hardware)(tuple(key.split("."))) == expected.replace("FILE", str(path))


@pytest.mark.parametrize(
    ("notify", "overrides"),
    [
        ("notify: [ADDRESS]", []), ("notify: ADDRESS", []), ("notify: {webhok: ADDRESS}", []),
        ("notify: {topic: ADDRESS}", []), ("notfy: {webhook: ADDRESS}", []), ("webhook: ADDRESS", []),
        ("", ["notify=ADDRESS"]), ("", ["notify.hook=ADDRESS"]), ("", ["notify.topic=ADDRESS"]),
        ("", ["notfy.webhook=ADDRESS"]), ("", ["notify={webhok: ADDRESS}"]), ("", ["webhook=ADDRESS"]),
        ("notify: ADDRESS", ["notify.webhook=ADDRESS"]),
    ],
)  # fmt: skip
@pytest.mark.extension("notify")
def test_no_error_shows_the_address_of_a_webhook(tmp_path: Path, notify: str, overrides: list[str]):
    path = tmp_path / "run.yaml"
    address = "https://chat.example/T0/secret"
    path.write_text(f"name: a\ndata: {{source: digits}}\ntrain: {{epochs: 1}}\n{notify.replace('ADDRESS', address)}")
    with pytest.raises(UserError) as caught:
        load(path, [text.replace("ADDRESS", address) for text in overrides])
    assert "secret" not in f"{caught.value}{caught.value.as_dict()}"
    assert "notify" in str(caught.value)
