"""After `slipway runs clean`, registered models still predict, and kept runs are evaluated again and reproduced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.end_to_end.test_drift import CONFIGURATION, photograph

OLD = 90 * 86400


def slipway(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "slipway.pipelines", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def newest(folder: Path) -> str:
    return (folder / "runs" / "latest").resolve().name


@pytest.mark.slow
def test_what_is_kept_works_as_before(tmp_path: Path) -> None:
    folder = tmp_path / "a project"
    for name, seed in (("photos", 1), ("others", 2)):
        photograph(folder / name, 80, seed)
    (folder / "slipway.yaml").write_text(yaml.safe_dump({**CONFIGURATION, "when": "always"}))
    slipway(folder, "run")
    registered = newest(folder)
    slipway(folder, "run", "--set", "data.source=images:others", "--set", "evaluate.gate.margin=0.9")
    rejected = newest(folder)
    slipway(folder, "run", "--only", "evaluate", "--from", registered)
    for path in (*folder.glob("runs/*/*"), *folder.glob("datasets/*/*/*")):
        os.utime(path, (time.time() - OLD, time.time() - OLD))
    deleted = {Path(each["path"]).name for each in json.loads(slipway(folder, "runs", "clean", "--apply", "--json"))}
    assert rejected in deleted
    assert registered not in deleted
    assert len(deleted) == 2, "the run and its data set"
    image = next((folder / "photos" / "dark").iterdir())
    assert "dark" in slipway(folder, "predict", "shades", str(image))
    slipway(folder, "run", "--only", "evaluate", "--from", registered)
    assert f"is equal to {registered}" in slipway(folder, "runs", "reproduce", registered)
    assert slipway(folder, "runs", "verify").splitlines()
