"""The core without the folders of the extensions trains the same models, and names what it lacks; its tests remain."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slipway import extensions
from tests import photographs

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.extension]  # it deletes them all
DIGITS = """
name: digits
data: {source: digits}
model: {builder: "slipway.trainer.models.digits:build"}
train: {epochs: 3, batch_size: 64}
evaluate: {gate: {minimum: 0.5}}
"""
PHOTOGRAPHS = """
name: photographs
data: {source: "images:photos", image_size: [32, 32]}
model: {builder: "slipway.trainer.models.digits:build"}
train: {epochs: 2, batch_size: 16}
evaluate: {gate: {minimum: 0.1}}
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and its tests, without the folders of its extensions."""
    folder = tmp_path_factory.mktemp("core")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("slipway", "trainer", "components", "pipelines", "tests", "benchmarks", "docs"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for module in extensions.MODULES:
        row = extensions.load(f"{module}:EXTENSION")
        for package in (module.rpartition(".")[0], *row.packages):
            path = folder.joinpath(*package.split("."))
            shutil.rmtree(path) if path.is_dir() else path.with_suffix(".py").unlink()
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "digits.yaml").write_text(DIGITS)
    (tmp_path / "photographs.yaml").write_text(PHOTOGRAPHS)
    photographs.write(tmp_path / "photos", 60, (40, 80), 0)
    return tmp_path


def slipway(package: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slipway.pipelines", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(package), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def trained(package: Path, folder: Path, name: str) -> dict[str, Any]:
    """Run a configuration; return what its data and its model are known by."""
    result = slipway(package, folder, "run", "-c", f"{name}.yaml", "--set", f"register.registry=models-{package.name}")
    assert result.returncode == 0, result.stdout + result.stderr
    metadata = json.loads((folder / f"models-{package.name}" / name / "1" / "metadata.json").read_text())
    return {key: metadata[key] for key in ("data_fingerprint", "weights_checksum", "metrics")}


@pytest.mark.long
@pytest.mark.parametrize("name", ["digits", "photographs"])
def test_the_core_alone_trains_the_same_model(core: Path, work: Path, name: str) -> None:
    whole = trained(ROOT, work, name)
    shutil.rmtree(work / "datasets")
    assert trained(core, work, name) == whole


def test_the_core_alone_checks_predicts_and_explains_what_it_has_not(core: Path, work: Path) -> None:
    where = "import slipway, importlib.util as u; print(slipway.__file__, u.find_spec('slipway.pipelines.tuning'))"
    environment = {**os.environ, "PYTHONPATH": str(core)}
    found = subprocess.run(
        [sys.executable, "-c", where], cwd=work, env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout == f"{core / 'slipway' / '__init__.py'} None\n"
    shown = slipway(core, work, "--help").stdout
    commands = {row.name for module in extensions.MODULES for row in extensions.load(f"{module}:EXTENSION").commands}
    assert not commands & {line.split()[1] for line in shown.splitlines() if line.startswith("│ ")}
    for group, members in {"runs": {"open", "verify"}, "config": {"show", "schema", "compile"}}.items():
        shown = slipway(core, work, group).stdout.partition("Commands")[2]
        assert {line.split()[1] for line in shown.splitlines() if line.startswith("│ ")} == members
    refused = slipway(core, work, "clean")
    assert (refused.returncode, "Did you mean" in refused.stderr) == (2, False)
    assert slipway(core, work, "doctor", "-c", "digits.yaml").returncode == 0
    refused = slipway(core, work, "run", "-c", "digits.yaml", "--set", "tune.trials=3")
    assert refused.returncode == 2
    assert "the section tune belongs to an extension that is not installed" in refused.stderr
    assert "install Slipway with slipway.pipelines.tuning, or remove tune" in refused.stderr
    refused = slipway(core, work, "run", "-c", "digits.yaml", "--target", "vertex")
    assert refused.returncode == 2
    assert "'vertex' is not 'local'" in refused.stderr or "vertex" in refused.stderr
    refused = slipway(core, work, "run", "-c", "digits.yaml", "--runner", "docker")
    assert refused.returncode == 2
    assert "no extension is installed that builds one" in refused.stderr
    refused = slipway(core, work, "predict", "gs://bucket/model", "x.png")
    assert refused.returncode == 2
    assert "no extension is installed that reads gs:// buckets" in refused.stderr


@pytest.mark.long
def test_the_tests_of_the_core_are_collected(core: Path) -> None:
    """Those that need an extension are not, which tests/absent.py finds out."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "--collect-only", "--assert=plain", "tests"]
    environment = {**os.environ, "PYTHONPATH": str(core)}
    result = subprocess.run(command, cwd=core, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr
    files = {line.partition("::")[0] for line in result.stdout.splitlines() if "::" in line}
    assert {"tests/trainer/test_training.py", "tests/components/prepare_data/test_prepare.py"} <= files
    assert result.stdout.count("::") > 4000
