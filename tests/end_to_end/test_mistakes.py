"""User errors show one screen with the fix, exit with the right code, and leave no partial output."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from tests.end_to_end.workspace import QUICK_PROGRAM, FinishedRun, Workspace, steps

SCREEN = 25
QUICK = ("--set", "model=null", "--set", "train={module: program}", "--set", "evaluate.gate.minimum=0")


def refused(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """Assert that the command refused on one screen, without a traceback, in these words."""
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    lines = (result.stdout + result.stderr).splitlines()
    assert len([line for line in lines if not line.startswith("…")]) <= SCREEN  # "…": what took seconds before
    for word in words:
        assert word in result.stderr, f"{word!r} is missing in:\n{result.stderr}"


BEFORE_ANYTHING = {
    "no such configuration": (
        ("-c", "configs/digit.yaml"),
        ("configs/digits.yaml", "fix:      -c configs/digits.yaml"),
    ),
    "unknown key": (("--set", "train.batchsize=3"), ("train.batchsize", "train.batch_size")),
    "wrong type": (("--set", "train.batch_size=lots"), ("train.batch_size", "integer")),
    "unknown source": (("--set", "data.source=digist"), ("data.source", "digits")),
    "missing folder": (("--set", "data.source=images:nowhere"), ("nowhere",)),
    "unknown hardware": (("--hardware", "cpus"), ("hardware", "cpu")),
    "builder's module": (
        ("--set", "model.builder=slipway.trainer.models.digit:build"),
        ("slipway.trainer.models.digits",),
    ),
    "builder's function": (("--set", "model.builder=slipway.trainer.models.digits:biuld"), ("build",)),
    "override without value": (("--set", "train.steps"), ("--set", "key=value")),
    "no such run": (("--resume", "nothing"), ("slipway",)),
}


@pytest.mark.parametrize("case", BEFORE_ANYTHING)
def test_refused_before_anything_starts(workspace: Workspace, case: str):
    arguments, words = BEFORE_ANYTHING[case]
    refused(workspace.call("run", *arguments), 2, *words)
    assert not workspace.runs()
    assert not (workspace.path / "datasets").exists()


def test_a_broken_champion_alias_is_refused_at_once(tmp_path: Path):
    workspace = Workspace(tmp_path)
    (tmp_path / "models/digits").mkdir(parents=True)
    (tmp_path / "models/digits/champion").write_text("7\n")
    refused(workspace.call("run"), 2, "models/digits/champion", "evaluate.champion=none")
    assert not workspace.runs()


def images(folder: Path, classes: dict[str, int], size: tuple[int, int] = (6, 6)) -> Path:
    """Create a folder of small random images; `classes` maps names to counts."""
    chance = random.Random(7)
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            image = Image.frombytes("L", size, chance.randbytes(size[0] * size[1]))
            image.save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    return images(tmp_path / "images", {"cat": 20, "dog": 20})


def run_on(workspace: Workspace, image_folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    options = ["--set", f"data.source=images:{image_folder}", "--set", "train.batch_size=8", "--set", "train.steps=2"]
    return workspace.slipway("run", *options, "--set", "evaluate.champion=none", *more)


def failed_in(workspace: Workspace, step: str) -> None:
    record = workspace.record()
    assert record["status"] == "failed"
    assert record["error"]["step"] == step
    assert record["error"]["fix"]
    assert record["error"]["traceback"] is None
    assert steps(record)[step]["status"] == "failed"


def half_written(workspace: Workspace) -> list[Path]:
    """Data sets without a manifest."""
    root = workspace.path / "datasets"
    found = root.glob("*/*/") if root.exists() else []
    return [folder for folder in found if folder.is_dir() and not (folder / "manifest.json").exists()]


def test_a_corrupt_image_is_named_and_skipped_with_skip_corrupt(tmp_path: Path, image_folder: Path):
    workspace = Workspace(tmp_path)
    whole = (image_folder / "cat/3.png").read_bytes()
    (image_folder / "cat/3.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "program.py").write_text(QUICK_PROGRAM)
    refused(run_on(workspace, image_folder, *QUICK), 1, "cat/3.png", "data.skip_corrupt")
    failed_in(workspace, "prepare_data")
    assert not half_written(workspace)
    allowed = run_on(workspace, image_folder, "--set", "data.skip_corrupt=0.05", *QUICK)
    assert allowed.returncode == 0, allowed.stdout + allowed.stderr


def test_an_image_with_a_valid_header_and_corrupt_pixels_fails_training(tmp_path: Path, image_folder: Path):
    workspace = Workspace(tmp_path)
    for path in image_folder.rglob("*.png"):
        content = bytearray(path.read_bytes())
        content[-20] ^= 0xFF  # in the compressed pixels
        path.write_bytes(content)
    refused(run_on(workspace, image_folder, "--set", "data.check=header"), 1, "cannot be decoded", "data.check=decode")
    failed_in(workspace, "train")


def test_an_empty_folder_is_refused(tmp_path: Path):
    workspace = Workspace(tmp_path)
    (tmp_path / "empty").mkdir()
    result = run_on(workspace, tmp_path / "empty")
    assert result.returncode in (1, 2)
    assert "empty" in result.stderr
    assert "Traceback" not in result.stderr


BUILDER = """
def broken(image_shape, classes):
    return {}["lost"]
"""


def test_a_builder_that_raises_is_shown_with_its_line(tmp_path: Path, image_folder: Path):
    workspace = Workspace(tmp_path)
    # Jobs from AI Platform Training have a package of this name in their folder; it must not shadow Slipway's.
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/__init__.py").write_text("raise RuntimeError('not this one')")
    (tmp_path / "my_models.py").write_text(BUILDER)
    result = run_on(workspace, image_folder, "--set", "model.builder=my_models:broken")
    assert result.returncode == 1
    assert "KeyError: 'lost'" in result.stderr
    assert workspace.record()["error"]["step"] == "train"
    explained = workspace.call("explain")
    assert explained.returncode == 1
    assert f'File "{tmp_path / "my_models.py"}", line 3' in explained.stdout
    assert "KeyError: 'lost'" in explained.stdout
    assert "absl" not in explained.stdout
    raw = workspace.call("explain", "--raw").stdout
    assert raw.startswith(explained.stdout)
    assert len(raw) > len(explained.stdout), "the log's lines follow"


def test_a_batch_size_that_the_replicas_cannot_divide(tmp_path: Path, image_folder: Path):
    workspace = Workspace(tmp_path)
    result = run_on(workspace, image_folder, "--hardware", "cpu*3")
    refused(result, 2, "train.batch_size", "--set train.batch_size=9")
    assert not workspace.runs()


def test_a_damaged_shard_is_found_by_its_checksum(tmp_path: Path, finished: FinishedRun):
    workspace = finished.copy(tmp_path)
    shard = next((tmp_path / "datasets").rglob("*-train.tfrecord-*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    refused(workspace.slipway("run"), 1, shard.name, "damaged", "rm -r")


def test_a_damaged_champion_is_refused_before_the_run(tmp_path: Path, finished: FinishedRun):
    workspace = finished.copy(tmp_path)
    before = workspace.runs()
    (tmp_path / "models/digits/1/saved_model.pb").write_bytes(b"broken")
    refused(workspace.call("run"), 2, "models/digits/1", "damaged", "evaluate.champion=none")
    assert workspace.runs() == before
    (tmp_path / "program.py").write_text(QUICK_PROGRAM)
    without = workspace.slipway("run", *QUICK, "--set", "evaluate.champion=none")
    assert without.returncode == 0, without.stdout + without.stderr
    assert workspace.record()["verdict"]["decision"] == "promote"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_leaves_no_partial_files(tmp_path: Path):
    store = tmp_path / "store"
    store.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", store], capture_output=True)
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        workspace = Workspace(tmp_path)
        result = workspace.slipway("run", "--set", f"data.store={store}")
        refused(result, 1, str(store))
        failed_in(workspace, "prepare_data")
        assert not list(store.rglob("*.tfrecord*"))
    finally:
        subprocess.run(["umount", store], check=True)
