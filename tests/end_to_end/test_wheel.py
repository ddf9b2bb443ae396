"""The wheel, installed where there is no checkout: `slipway init` writes projects that run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
SOURCE = Path(__file__).parents[2]
# What the wheel is built from; the rest of the checkout must not be needed.
PROJECT = ("LICENSE", "README.md", "pyproject.toml", "slipway", "trainer", "components", "pipelines", "containers")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built in a copy of the checkout because a build leaves folders behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in (*PROJECT, "requirements"):
        place, ignored = SOURCE / name, shutil.ignore_patterns("__pycache__")
        if place.is_dir():
            shutil.copytree(place, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(place, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "."]
    subprocess.run([*command, "."], cwd=copy, check=True)
    (built,) = copy.glob("slipway_ml-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel and, of this environment, all packages but the checkout."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    # A folder in a .pth file is searched, but its own .pth files, such as the checkout's, are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    command = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--quiet", "--no-deps"]
    subprocess.run([*command, "--ignore-installed", wheel], check=True)
    return folder / "bin"


def run(installed: Path, folder: Path, *command: str) -> str:
    """Run a command of the environment in a folder; return its output."""
    environment = {**os.environ, "PATH": f"{installed}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_wheel_has_one_import_name_and_what_images_are_built_from(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"slipway", "slipway_ml-0.1.0.dist-info"}
    wanted = {
        "containers/Dockerfile",
        "containers/Dockerfile.beam",
        "requirements/trainer-cpu.txt",
        "pipelines/hardware/catalogue.json",
    }
    assert {f"slipway/{name}" for name in wanted} <= set(names)


@pytest.mark.parametrize(
    "template", ["images", "tabular", "text", pytest.param("trees", marks=pytest.mark.extension("trees")), "program"]
)
def test_a_new_project_trains_at_once(installed: Path, tmp_path: Path, template: str):
    where = run(installed, tmp_path, "python", "-c", "import slipway; print(slipway.__file__)").strip()
    assert Path(where).is_relative_to(installed.parent)
    run(installed, tmp_path, "slipway", "init", "flowers", "--template", template)
    project = tmp_path / "flowers"
    assert "models/flowers/1, the champion" in run(installed, project, "make", "run-pipeline")
    assert "OK" in run(installed, project, "make", "test")
    if template == "tabular":
        rehearsed = run(installed, project, "slipway", "rehearse", "--hardware", "cpu*2")
        assert "2 replicas" in rehearsed.partition("proven")[2]
    for command in (["init", "--quiet"], ["add", "."]):
        run(installed, project, "git", *command)
    place = {"project": "my-project", "region": "europe-west4", "bucket": "gs://my-bucket", "serving_image": "e.g/i:1"}
    settings = [part for name, value in place.items() for part in ("--set", f"vertex.{name}={value}")]
    run(installed, project, "slipway", "config", "compile", "--target", "vertex", *settings)
    assert "trainer-cpu:" in (project / "spec.yaml").read_text()
