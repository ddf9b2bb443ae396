"""The Dockerfile's command for the project's packages, executed with pip and a package index on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.components.build_image.locks.export import exported
from tests.components.build_image.locks.conftest import Index, Project

ROOT = Path(__file__).parents[4]
pytestmark = [pytest.mark.slow, pytest.mark.long]  # pip's own behavior, in an environment of its own


class Layer:
    """An environment that stands for an image's, in which the command installs."""

    def __init__(self, folder: Path, mirror: str) -> None:
        self.folder = folder
        (folder / "project").mkdir(parents=True)
        (folder / "pip.conf").write_text(f"[global]\nindex-url = {mirror}\nretries = 0\n")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        text = re.sub(r"\\\n", "", (ROOT / "containers/Dockerfile").read_text())
        (command,) = re.findall(r"^RUN (?:--mount=\S+ +)*(if .*/opt/project/requirements.txt.*)$", text, re.MULTILINE)
        command = re.sub(r"/tmp/(before|after|kept)", rf"{folder}/\1", command)
        command = command.replace("/run/secrets/pip.conf", f"{folder}/pip.conf")
        self.command = command.replace("/opt/project", f"{folder}/project")

    def has(self, name: str, version: str) -> None:
        """Put a package into the image."""
        [site] = self.folder.glob("venv/lib/python*/site-packages")
        (site / f"{name}-{version}.dist-info").mkdir()
        (site / f"{name}-{version}.dist-info/METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )

    def install(self, requirements: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "project/requirements.txt").write_text(requirements)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        environment["PATH"] = f"{self.folder / 'venv/bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(["sh", "-c", self.command], env=environment, capture_output=True, text=True, check=False)

    @property
    def packages(self) -> set[str]:
        folders = self.folder.glob("venv/lib/python*/site-packages/*.dist-info")
        return {path.name.removesuffix(".dist-info") for path in folders} - {"pip"}


def test_a_lock_is_installed_with_hashes_from_the_mirror_alone(
    project: Project, index: Index, image: Path, tmp_path: Path
) -> None:
    """The lock names another host, which does not exist."""
    index.wheel("later", "1")
    index.wheel("later", "2")
    index.wheel("mine", "1", "later<2", "numpy")
    index.wheel("numpy", "2.3")
    path = project.lock(["mine"])
    image.write_text("numpy==2.3\n")
    layer = Layer(tmp_path / "layer", f"{index.url}/simple")
    layer.has("numpy", "2.3")
    text = exported(path, image)
    assert index.url not in path.read_text()
    refused = layer.install(re.sub(r"sha256:\w+", f"sha256:{'0' * 64}", text, count=1))
    assert refused.returncode != 0 and "DO NOT MATCH THE HASHES" in refused.stderr
    done = layer.install(text)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name for name in layer.packages if not name.startswith(("pip", "setuptools"))} == {
        "mine-1", "later-1", "numpy-2.3",
    }  # fmt: skip


def test_of_an_unlocked_project_the_images_packages_are_kept(index: Index, image: Path, tmp_path: Path) -> None:
    for version in ("2.3", "2.4"):
        index.wheel("numpy", version)
    index.wheel("mine", "1", "numpy", "more")
    index.wheel("more")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "demo"\ndependencies = ["mine"]\n')
    image.write_text("numpy==2.3\n")
    layer = Layer(tmp_path / "layer", f"{index.url}/simple")
    layer.has("numpy", "2.3")
    done = layer.install(exported(tmp_path / "pyproject.toml", image))
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"mine-1", "more-1", "numpy-2.3"} <= layer.packages
