"""The source images:FOLDER: which of its files are examples."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.scan import scan
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "gztar"])
def test_the_content_decides_whether_a_file_is_an_image(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings], kind: str
) -> None:
    """JPEG and PNG files under any name are examples; other files are counted in a note."""
    root = make_folder({"a": 9, "b": 9})
    for number, name in enumerate(["1.jfif", "2.jpe", "3", "4.dat"]):
        (root / "a" / f"image {number}.png").rename(root / "a" / name)
    (root / "a" / "notes.dat").write_text("no image")
    if kind != "folder":
        root = Path(shutil.make_archive(str(root), kind, root))
    prepared = prepare(make_settings(root), 1)
    assert sum(split.examples for split in prepared.manifest.splits.values()) == 18
    assert "1 file is not used, as not images: a/notes.dat." in prepared.manifest.notes


def test_a_folder_without_a_usable_image_is_refused_with_the_reason(
    tmp_path: Path, make_settings: Callable[..., DataSettings]
) -> None:
    for name in ("a", "b"):
        (tmp_path / "scans" / name).mkdir(parents=True)
        for number in range(3):
            path = tmp_path / "scans" / name / f"{number}.tif"
            Image.fromarray(np.full((4, 4), number / 7, np.float32)).save(path)
    with pytest.raises(UserError, match=r"6 of 6 images cannot be used: a/0\.tif \(its pixels have an unsup"):
        scan(make_settings(tmp_path / "scans"))
