"""Files of a newer version of Slipway are refused, not taken for damaged ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from slipway.components.register_model.registry import Registry
from slipway.core import formats, integrity, manifest
from slipway.core.errors import UserError
from slipway.pipelines.runs.record import RunFolder, RunRecord
from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints


def data_set(folder: Path) -> Callable[[], object]:
    folder.mkdir()
    about = manifest.Manifest(
        name="a", fingerprint="f", source="digits", settings={}, classes=["0", "1"], image_size=(8, 8), channels=1,
        resize=False, encodings=["png"], splits={},
    )  # fmt: skip
    (folder / manifest.FILE_NAME).write_text(about.model_dump_json())
    return lambda: manifest.read(folder)


def run(folder: Path) -> Callable[[], object]:
    folder.mkdir()
    record = RunRecord(run_id="a", name="a", platform="local", hardware="cpu", created=datetime.now(UTC), steps=[])
    (folder / "run.json").write_text(record.as_json())
    return RunFolder(folder).read


def model(folder: Path) -> Callable[[], object]:
    folder.mkdir()
    (folder / "weights").write_bytes(b"0")
    integrity.seal(folder, {})
    return lambda: integrity.verify(folder)


def version(folder: Path) -> Callable[[], object]:
    (folder / "source").mkdir(parents=True)
    Registry(folder).register("a", folder / "source", {}, "any")
    return lambda: Registry(folder).version("a", 1)


def checkpoint(folder: Path) -> Callable[[], object]:
    stored = Checkpoints(folder, keep=1)
    stored.save(Checkpoint(1, {"a": np.zeros(2)}, {}))
    return stored.newest


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (data_set, "manifest.json"), (run, "run.json"), (model, "model.json"), (version, "a/1/metadata.json"),
        (checkpoint, "step-00000001/checkpoint.json"),
    ],
)  # fmt: skip
def test_a_newer_format_is_refused(
    write: Callable[[Path], Callable[[], object]], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "now")()
    assert json.loads((tmp_path / "now" / name).read_text())["format"] == formats.FORMAT == 1
    with monkeypatch.context() as newer:
        newer.setattr(formats, "FORMAT", 2)
        read = write(tmp_path / "newer")
    file = tmp_path / "newer" / name
    file.write_text(re.sub('"format": ?1', '"unknown": 0, "format": 2', file.read_text()))
    with pytest.raises(
        UserError, match=f"A newer version of Slipway wrote {re.escape(str(file))}: it has the format 2"
    ):
        read()
