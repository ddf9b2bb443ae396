"""A run with `when: drift` trains only if the data have drifted from those of the champion."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from slipway.components.check_drift.check import DRIFT, SAME, check
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from tests.end_to_end.workspace import record_in

CONFIGURATION = {
    "name": "shades",
    "data": {"source": "images:photos"},
    "model": {"builder": "slipway.trainer.models.digits:build"},
    "train": {"epochs": 2, "batch_size": 16},
    "when": "drift",
}


def photograph(folder: Path, mean: float, seed: int, count: int = 120) -> None:
    """Write photographs of two classes, of which one is lighter."""
    draws = np.random.default_rng(seed)
    for name, more in (("dark", 0), ("light", 60)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.clip(draws.normal(mean + more, 20, (16, 16)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{seed}-{number}.png")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a champion, trained because there was none."""
    folder = tmp_path_factory.mktemp("a project")
    photograph(folder / "photos", 80, 1)
    (folder / "slipway.yaml").write_text(yaml.safe_dump(CONFIGURATION))
    states, record = run(folder)
    assert set(states.values()) == {"succeeded"}
    assert record["model"].endswith("models/shades/1")
    return folder


def run(folder: Path, *options: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Run it; return the status of each step, and the record."""
    command = [sys.executable, "-m", "slipway.pipelines", "run", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = record_in(folder / "runs/latest")
    return {step["name"]: step["status"] for step in record["steps"]}, record


def test_the_data_of_the_champion_are_not_trained_on_again(project: Path) -> None:
    states, record = run(project)
    assert (record["status"], states["check_drift"]) == ("succeeded", "succeeded")
    assert {states[name] for name in ("plan_training", "train", "evaluate", "register_model")} == {"skipped"}
    checked = next(step for step in record["steps"] if step["name"] == "check_drift")
    assert checked["outputs"]["reason"] == "the champion was trained on this data set"
    assert not (project / "models/shades/2").exists()


@pytest.fixture
def prepared(project: Path) -> Callable[[float, int], Path]:
    """Prepare other photographs, in the project's store; return the data set's folder."""

    def made(mean: float, seed: int) -> Path:
        source = project / f"photos-{seed}"
        photograph(source, mean, seed)
        settings = DataSettings(source=f"images:{source}", store=str(project / "datasets"))
        return Path(prepare(settings, 1).uri)

    return made


def test_only_data_that_differ_are_drift(project: Path, prepared: Callable[[float, int], Path]) -> None:
    champion = project / "models/shades/1"
    assert check(prepared(80, 2), None).decision == DRIFT
    calm = check(prepared(80, 3), champion)
    assert (calm.decision, calm.reason.partition(":")[0]) == (SAME, "no drift")
    lighter = check(prepared(100, 4), champion)
    assert lighter.decision == DRIFT
    assert "image: brightness" in {shift.feature for shift in lighter.shifts if shift.has_drifted}
    assert "features have drifted: 48 examples, compared with 48" in lighter.reason


def test_a_champion_whose_data_set_was_deleted_is_trained_anew(
    project: Path, prepared: Callable[[float, int], Path]
) -> None:
    champion, new = project / "models/shades/1", prepared(80, 5)
    elsewhere = project / "elsewhere" / "photos"
    elsewhere.parent.mkdir()
    (project / "datasets" / "photos").rename(elsewhere)
    try:
        found = check(new, champion)
    finally:
        elsewhere.rename(project / "datasets" / "photos")
    assert (found.decision, found.reason) == (DRIFT, "the data set of the champion is no longer in the store")


def test_parts_of_a_run_and_rehearsals_do_what_they_were_asked_for(project: Path) -> None:
    states, _ = run(project, "--from-step", "train", "--from", first(project))
    assert "check_drift" not in states
    assert states["train"] == "succeeded"


def first(project: Path) -> str:
    """Return the run that trained the champion."""
    return str(json.loads((project / "models/shades/1/metadata.json").read_text())["run_id"])
