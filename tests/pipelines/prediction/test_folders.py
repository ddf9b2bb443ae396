"""Folders to predict on: files are known by their content, and those that are not used are said."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from slipway.pipelines.prediction import inputs


def test_images_under_any_name_are_used_and_other_files_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(inputs, "say", said.append)
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, "JPEG")
    for name in ("0.jpg", "1.jfif", "2.jpe", "3", "4.dat", "5.PNG"):
        (tmp_path / name).write_bytes(buffer.getvalue())
    (tmp_path / "notes.dat").write_text("no image")
    (part,) = inputs.listed([str(tmp_path)], "test")
    assert [Path(path).name for path in part.paths] == ["0.jpg", "1.jfif", "2.jpe", "3", "4.dat", "5.PNG"]
    assert said == [f"1 of 7 files in {tmp_path} are not used, as not images: notes.dat"]
    (tmp_path / "notes.dat").unlink()
    said.clear()
    inputs.listed([str(tmp_path)], "test")
    assert not said
