"""What released versions of Slipway stored is resumed and served by this one."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from slipway.core.formats import FORMAT
from tests.end_to_end.workspace import Workspace
from tests.formats.write import FOLDER


def answers(text: str) -> list[list[float]]:
    return [json.loads(line)["prediction"]["probabilities"] for line in text.splitlines()]


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
@pytest.mark.extension
def test_a_project_of_a_released_format(number: int, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with tarfile.open(FOLDER / f"{number}.tar.xz") as archive:
        archive.extractall(tmp_path)
    stored = answers((tmp_path / "predictions.jsonl").read_text())
    answered = workspace.slipway("predict", "table", "table.csv")
    assert answers(answered.stdout) == [pytest.approx(each, abs=1e-5) for each in stored]
    assert workspace.call("runs", "verify", "table").returncode == 0
    (tmp_path / "end").unlink()
    before = workspace.record()
    assert before["status"] == "failed"
    resumed = workspace.slipway("run", "--resume", "latest")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    record = workspace.record()
    assert (record["run_id"], record["status"]) == (before["run_id"], "succeeded")
    assert "resuming from the checkpoint at step 20 of 40" in workspace.log("train")
    first = next(run for run in workspace.runs() if run.name != record["run_id"])
    undisturbed = workspace.record(first.name)
    assert record["metrics"] == pytest.approx(undisturbed["metrics"], abs=1e-4)
