"""Another package adds a platform, a source, a tracker, a section, a command and a check, without a change here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
EXTENSION = """
from slipway.extensions import Command, Extension, Section

EXTENSION = Extension(
    "mine",
    sections=(Section("mine", "mine.settings:MineSettings", "Where lines are written; null: nowhere."),),
    commands=(Command("Follow runs", "mine", "mine.parts:mine", "Say how many lines were written."),),
    platforms=("mine.platform:Elsewhere",),
    checks=("mine.parts:CHECKS",),
    observers=("mine.parts:Lines",),
    sources=("mine.parts:SOURCE",),
)
"""
PARTS = '''
from pathlib import Path

from slipway.components.prepare_data.sources import SourceKind
from slipway.components.prepare_data.sources.digits import DigitsSource
from slipway.pipelines.checks import Check, NotApplicableError
from slipway.pipelines.runs.observers import Observer
from slipway.pipelines.terminal import console, user_errors

from mine.settings import MineSettings

SOURCE = SourceKind("mine", "mine:NAME", "mine:digits", "mine.parts:open_mine", argument="NAME", features=False)

def open_mine(argument, settings, column, task):
    source = DigitsSource()
    source.name, source.reference = argument, f"mine:{argument}"
    return source


class Lines(Observer):
    def ended(self, folder, config, record, say):
        if section := config.section(MineSettings):
            with Path(section.file).open("a") as file:
                file.write(f"{record.run_id} {record.status} {record.platform}\\n")


def written(context):
    """The file of lines can be written."""
    section = context.config.section(MineSettings)
    if section is None:
        raise NotApplicableError("no lines are written")
    return section.file


CHECKS = (Check("lines", written),)


@user_errors
def mine() -> None:
    """Say how many lines were written."""
    console.print(f"{len(Path('lines.txt').read_text().splitlines())} lines")
'''
# What is imported with the configuration and the command line has modules of its own.
SETTINGS = """
from slipway.trainer.settings import Settings


class MineSettings(Settings):
    file: str
"""
PLATFORM = """
from slipway.pipelines.platforms.local.platform import LocalPlatform


class Elsewhere(LocalPlatform):
    name = "elsewhere"
    title = "another machine"
"""
CONFIGURATION = """
name: digits
data: {source: "mine:digits"}
model: {builder: "slipway.trainer.models.digits:build"}
train: {epochs: 1, batch_size: 64}
evaluate: {gate: {minimum: 0.1}}
mine: {file: lines.txt}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as an installer leaves it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "mine").mkdir()
    (folder / "mine/__init__.py").write_text("")
    (folder / "mine/extension.py").write_text(EXTENSION)
    (folder / "mine/settings.py").write_text(SETTINGS)
    (folder / "mine/platform.py").write_text(PLATFORM)
    (folder / "mine/parts.py").write_text(PARTS)
    about = folder / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[slipway.extensions]\nmine = mine.extension:EXTENSION\n")
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
    assert slipway(site, tmp_path, "mine").stdout == "1 lines\n"
    assert "Say how many lines were written." in slipway(site, tmp_path, "--help").stdout
    assert json.loads((run / "run.json").read_text())["platform"] == "elsewhere"


def test_without_the_package_its_section_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "slipway.yaml").write_text(CONFIGURATION)
    result = slipway(tmp_path, tmp_path, "run")
    assert result.returncode == 2
    assert "has the unknown key mine" in result.stderr
