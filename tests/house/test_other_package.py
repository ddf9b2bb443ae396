"""The package of docs/extensions.md adds a platform, a source, a section, a command and a check, and follows runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs/extensions.md"
# The files on the page by name, and the configuration.
FILES = dict(re.findall(r"^`(mine/\w+\.py)`:\n\n```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))
(CONFIGURATION,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
(ENTRY_POINT,) = re.findall(r"^mine = \"(.*?)\"$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as an installer leaves it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "mine").mkdir()
    (folder / "mine/__init__.py").write_text("")
    for name, content in FILES.items():
        (folder / name).write_text(content)
    about = folder / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[slipway.extensions]\nmine = {ENTRY_POINT}\n")
    return folder


def slipway(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("slipway")), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_each_of_its_parts_is_used_without_a_change_of_slipway(site: Path, tmp_path: Path) -> None:
    (tmp_path / "slipway.yaml").write_text(CONFIGURATION)
    result = slipway(site, tmp_path, "run", "--target", "elsewhere")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "lines.txt" in slipway(site, tmp_path, "doctor").stdout
    result = slipway(site, tmp_path, "run", "--set", "mine.fil=x")
    assert "closest:  mine.file" in result.stderr
    schema = json.loads(slipway(site, tmp_path, "config", "schema").stdout)
    assert schema["properties"]["mine"]["description"] == "Where lines are written; null: nowhere."
    assert "mine:NAME" in slipway(site, tmp_path, "run", "--set", "data.source=nothing").stderr
    (run,) = (tmp_path / "runs").glob("digits-*")
    assert (tmp_path / "lines.txt").read_text() == f"{run.name} succeeded elsewhere\n"
    assert slipway(site, tmp_path, "runs", "mine").stdout == "1 lines\n"
    assert "Say how many lines were written." in slipway(site, tmp_path, "runs", "--help").stdout
    assert "Did you mean 'slipway runs mine'?" in slipway(site, tmp_path, "mine").stderr
    assert json.loads((run / "run.json").read_text())["platform"] == "elsewhere"


def test_without_the_package_its_section_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "slipway.yaml").write_text(CONFIGURATION)
    result = slipway(tmp_path, tmp_path, "run")
    assert result.returncode == 2
    assert "has the unknown key mine" in result.stderr


@pytest.mark.parametrize(
    ("extension", "problem", "fix"),
    [
        ("import nothing_of_this_name", "cannot be loaded: ModuleNotFoundError", "correct it, or pip uninstall broken"),
        ("1 +", "cannot be loaded: SyntaxError", "correct it, or pip uninstall broken"),
        (
            'from slipway.extensions import *\nEXTENSION = Extension("broken", sections=(Section("tune", "a:B", ""),))',
            "the extension broken adds the section tune, which the extension tune has",
            "rename it, or uninstall the package of broken",
        ),
    ],
)
def test_a_package_that_is_broken_is_named_with_a_fix(extension: str, problem: str, fix: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(extension)
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[slipway.extensions]\nbroken = broken:EXTENSION\n")
    for arguments in (["list"], ["--help"]):
        result = slipway(tmp_path, tmp_path, *arguments)
        assert result.returncode == 2, result.stdout
        assert problem in result.stderr
        assert fix in result.stderr
        assert "Traceback" not in result.stderr
