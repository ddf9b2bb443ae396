"""A git repository with a small source tree laid out like the project."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

FILES = {
    ".gitignore": ".env\n*.secret\n__pycache__/\n",
    "README.md": "what it is\n",
    "containers/Dockerfile": "ARG BASE\nFROM ${BASE}\nCOPY code /app\n",
    "requirements/build-tools.txt": "wheel==1\n",
    "requirements/steps-cpu.txt": "kfp==2\n",
    "requirements/trainer-cpu.txt": "keras==3\n",
    "requirements/trainer-tpu.txt": "keras==3\n",
    "components/__init__.py": "",
    "components/evaluate/report.html": "<html>\n",
    "slipway/__init__.py": "",
    "pipelines/google/__init__.py": "",
    "pipelines/google/command.py": "COMMAND = 1\n",
    "pipelines/google/extension.py": "EXTENSION = 1\n",
    "slipway/core/errors.py": "ERRORS = 1\n",
    "slipway/extensions.py": "MODULES = ()\n",
    "slipway/serving/model.py": "MODEL = 1\n",
    "slipway/steps.py": "from kfp import dsl\n",
    "slipway/training.py": "PROGRESS = 1\n",
    "trainer/__init__.py": "",
    "trainer/loop.py": "STEPS = 1\n",
    "tests/test_loop.py": "def test(): ...\n",
}


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Someone", "-c", "user.email=someone@example.com"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes a file below the source tree."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def tree(tmp_path: Path, write: Callable[[str, str], Path]) -> Path:
    for name, text in FILES.items():
        write(name, text)
    folder = tmp_path / "tree"
    for name in ("components", "containers", "pipelines", "requirements", "trainer"):
        (folder / "slipway" / name).symlink_to(f"../{name}")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "All of it")
    return folder
