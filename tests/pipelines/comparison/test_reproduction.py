"""A run and the one made again from its record: what is equal, where they part, and why."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core import integrity
from slipway.pipelines.comparison.reproduction import Reproduction, compare
from slipway.pipelines.runs import provenance
from slipway.pipelines.runs.record import RunFolder, RunRecord, StepRecord
from slipway.pipelines.selection.selection import Row, read
from tests.photographs import scene

LOSSES = {10: 1.0, 20: 0.5, 30: 0.25}


def run(path: Path, **changes: Any) -> Row:
    """A run of which `changes` replaces losses, checkpoints, weights, the data's fingerprint or provenance."""
    folder = RunFolder(path)
    weights = changes.get("weights", "e" * 64)
    losses, sums = changes.get("losses", LOSSES), changes.get("checkpoints", {20: "a", 30: "b"})
    logs = folder.path / "train" / "logs"
    logs.mkdir(parents=True)
    lines = [{"kind": "train", "step": step, "loss": loss, "time": hash(path)} for step, loss in losses.items()]
    (logs / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step, checksum in sums.items():
        checkpoint = folder.path / "train" / "checkpoints" / f"step-{step}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "checkpoint.json").write_text(json.dumps({"step": step, "sha256": checksum}))
    data = {"fingerprint": "f" * 64, "dataset": str(path / "none")} | changes.get("data", {})
    folder.write(
        RunRecord(
            run_id=folder.run_id, name="x", platform="local", hardware="cpu", created=datetime.now(UTC),
            steps=[
                StepRecord(name="prepare_data", outputs=data),
                StepRecord(name="train", outputs=changes.get("train", {"weights_checksum": weights})),
            ],
        )
    )  # fmt: skip
    made = {"packages": {"tensorflow": "2.21"}, "cores": 2, "files": {"net.py": "1"}} | changes.get("made", {})
    (folder.path / provenance.FILE_NAME).write_text(json.dumps(made))
    return read(folder)


def compared(tmp_path: Path, **changes: Any) -> Reproduction:
    return compare(run(tmp_path / "before"), run(tmp_path / "again", **changes))


def test_equal_runs_are_equal_whatever_their_speed(tmp_path: Path) -> None:
    found = compared(tmp_path)
    assert [(each.name, each.equal) for each in found.compared] == [
        ("data", True), ("history", True), ("checkpoints", True), ("weights", True)
    ]  # fmt: skip
    assert (found.equal, found.causes) == (True, [])


def test_the_first_step_that_differs_is_named_with_the_likely_cause(tmp_path: Path) -> None:
    changes = {"losses": {**LOSSES, 20: 0.5000001}, "checkpoints": {20: "c", 30: "d"}, "weights": "9" * 64}
    found = compared(tmp_path, **changes, made={"packages": {"tensorflow": "2.22"}, "cores": 4})
    details = {each.name: each.detail for each in found.compared}
    assert details["history"] == "parts at step 20: loss in train is 0.5000001 instead of 0.5"
    assert details["checkpoints"].startswith("that of step 20 is the first to differ")
    assert found.causes == ["packages: tensorflow 2.22 instead of 2.21", "the number of cores: 4 instead of 2"]
    assert not found.equal


def test_a_changed_module_of_the_project_is_named(tmp_path: Path) -> None:
    found = compared(tmp_path, weights="9" * 64, made={"files": {"net.py": "2"}})
    assert found.causes == ["the files: net.py 2 instead of 1"]
    assert not found.equal


def program_model(folder: Path, written: float, weight: str = "1", **files: str) -> dict[str, Any]:
    """What the step train returned of a custom program's model that reported its progress at the time `written`."""
    folder.mkdir()
    (folder / "model.pt").write_text(weight)
    lines = [{"kind": "train", "step": step, "loss": 0.5, "time": written + step} for step in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "metrics.json").write_text(json.dumps({"accuracy": 0.9, "seconds": written}))
    with zipfile.ZipFile(folder / "model.keras", "w") as archive:
        archive.writestr("metadata.json", json.dumps({"date_saved": written}))
        archive.writestr("model.weights.h5", weight)
    for name, content in files.items():
        (folder / name).write_text(content)
    integrity.seal(folder, {}, integrity.CHECKSUMS_FILE)
    return {"model": str(folder), integrity.FILES_CHECKSUM: integrity.checksum(folder)}


@pytest.mark.parametrize(
    ("again", "equal", "detail"),
    [
        ({"written": 2}, True, "all 4 files are equal but for times in metrics.json, metrics.jsonl, model.keras"),
        ({"written": 1}, True, "checksum "),
        ({"written": 2, "weight": "2"}, False, "2 of 4 files differ: model.keras"),
        ({"written": 1, "vocabulary": "a"}, False, "1 of 5 files differ: vocabulary; only one of them has vocabulary"),
    ],
)
def test_files_of_a_program_are_compared_without_their_times(
    tmp_path: Path, again: dict[str, Any], equal: bool, detail: str
) -> None:
    runs = [
        run(tmp_path / "before", train=program_model(tmp_path / "model", 1)),
        run(tmp_path / "again", train=program_model(tmp_path / "model-again", **again)),
    ]
    found = compare(*runs).compared[-1]
    assert (found.name, found.equal) == ("model", equal)
    assert found.detail.startswith(detail)


def test_runs_that_recorded_nothing_are_not_called_equal(tmp_path: Path) -> None:
    empty: dict[str, Any] = {"losses": {}, "checkpoints": {}, "weights": ""}
    found = compare(run(tmp_path / "a", **empty, data={"fingerprint": "1"}), run(tmp_path / "b", **empty))
    assert [each.equal for each in found.compared] == [False, None, None, None]


@pytest.mark.parametrize("changed", [False, True])
def test_a_changed_image_is_named(tmp_path: Path, changed: bool) -> None:
    folder = tmp_path / "images"
    for number in range(12):
        file = folder / "train" / ("ab"[number % 2]) / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        scene(16, 16, seed=number).save(file)
    settings = DataSettings(source=f"images:{folder}", store=str(tmp_path / "store"))
    data = []
    for _ in range(2):
        prepared = prepare(settings, 1)
        data.append({"fingerprint": prepared.manifest.fingerprint, "dataset": str(prepared.folder)})
        if changed:
            scene(16, 16, seed=99).save(folder / "train" / "a" / "4.png")
    found = compare(run(tmp_path / "before", data=data[0]), run(tmp_path / "again", data=data[1]))
    assert found.compared[0].equal is not changed
    if changed:
        assert "1 new examples (train/a/4.png), 1 missing" in found.compared[0].detail
        assert found.causes[0] == "the source of the data has changed"
