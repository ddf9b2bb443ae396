"""Real containers, shared by all tests; if something is missing on this machine, the tests are skipped and say what."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.engine import Engine, missing

PROJECT = Path(__file__).parents[2]
MARK = "planted-secret-7f3a"


class Sources:
    """A copy of the project's tracked files in a separate repository, which tests may change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "-C", str(PROJECT), "ls-files", "-z"], check=True, capture_output=True, text=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (PROJECT / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(PROJECT / name, folder / name, follow_symlinks=False)
        self.git("init", "--quiet")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "All of it")

    def git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=Someone", "-c", "user.email=someone@example.com"]
        subprocess.run(["git", "-C", str(self.folder), *identity, *arguments], check=True)


class Slipway:
    """The command of the copied sources, in a working folder."""

    def __init__(self, engine: Engine, sources: Sources, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        shutil.copytree(sources.folder / "configs", folder / "configs")
        # The secret reaches the build as part of how this machine's pip finds packages.
        self.environment = {**engine.environment, "PYTHONPATH": str(sources.folder), "PIP_TRUSTED_HOST": MARK}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        settings = {"base": self.engine.base, "builder": "buildah", "repository": f"{self.engine.registry}/slipway"}
        options = [part for name, value in settings.items() for part in ("--set", f"containers.{name}={value}")]
        words = 2 if arguments[0] == "config" else 1
        name, rest = arguments[:words], arguments[words:]
        command = [sys.executable, "-m", "slipway.pipelines", *name, *options, *rest]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        output, error = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, output, error)

    def image(self) -> str:
        """Return the steps' image by digest; built if missing."""
        done = self("config", "build", "--target", "local")
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    folder = Path(tempfile.mkdtemp(prefix="slipway-containers-", dir=os.environ.get("TMPDIR")))
    if reason := missing(folder):
        shutil.rmtree(folder)
        pytest.skip(reason)
    with Engine(folder) as engine:
        yield engine


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return Sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="session")
def slipway(engine: Engine, sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Slipway:
    (sources.folder / "trainer/.env").write_text(MARK)
    (sources.folder / "trainer/notes.txt").write_text(MARK)
    return Slipway(engine, sources, tmp_path_factory.mktemp("workspace"))
