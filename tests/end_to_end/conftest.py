"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from filelock import FileLock

from tests.end_to_end.workspace import FinishedRun, Workspace


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A finished run of configs/digits.yaml: one for all processes of the test session."""
    root = tmp_path_factory.getbasetemp()
    if root.name.startswith("popen-"):  # a process of pytest-xdist has a folder in the session's
        root = root.parent
    with FileLock(root / "finished.lock"):
        path = root / "finished"
        if not path.exists():
            temporary = root / "finished-temporary"
            temporary.mkdir()
            result = Workspace(path).slipway("run", TMPDIR=str(temporary))
            told = {"returncode": result.returncode, "stdout": result.stdout, "stderr": result.stderr}
            left = [file.name for file in temporary.iterdir()]
            (root / "finished.json").write_text(json.dumps({**told, "left": left}))
    values = json.loads((root / "finished.json").read_text())
    return FinishedRun(Path(path), **values)
