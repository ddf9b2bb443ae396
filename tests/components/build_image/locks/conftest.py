"""A package index on this machine, with tiny wheels, and locks that uv makes from it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

# What stands for the index in locks, after they were made.
INDEX = "https://index.example"
UV = Path(sys.executable).with_name("uv")


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without a log."""

    def log_message(self, format: str, *args: object) -> None:
        pass


class Index:
    """The index: a folder with a page for each package, and its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "files").mkdir(parents=True)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wheel(
        self, name: str, version: str = "1", *requires: str, tag: str = "py3-none-any", index: str = "simple"
    ) -> Path:
        """Add a wheel, whose name in requirements may have extras: 'extra == "x"' makes it one."""
        base = f"{name.replace('-', '_')}-{version}"
        extras = sorted({text.split("extra == ")[1].strip("\"'") for text in requires if "extra == " in text})
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Provides-Extra: {extra}" for extra in extras] + [f"Requires-Dist: {text}" for text in requires]
        path = self.folder / "files" / f"{base}-{tag}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{base}.dist-info/METADATA", "\n".join(lines) + "\n")
            archive.writestr(f"{base}.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
            archive.writestr(f"{base}.dist-info/RECORD", "")
        self._link(name, path, index)
        return path

    def source(self, name: str, version: str = "1") -> None:
        """Add a source distribution with static metadata."""
        import io
        import tarfile

        base = f"{name}-{version}"
        path = self.folder / "files" / f"{base}.tar.gz"
        text = f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n".encode()
        project = f'[project]\nname = "{name}"\nversion = "{version}"\n'.encode()
        with tarfile.open(path, "w:gz") as archive:
            for file, content in (("PKG-INFO", text), ("pyproject.toml", project)):
                entry = tarfile.TarInfo(f"{base}/{file}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        self._link(name, path, "simple")

    def _link(self, name: str, path: Path, index: str) -> None:
        page = self.folder / index / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with page.open("a") as file:
            file.write(f'<a href="/files/{path.name}#sha256={digest}">{path.name}</a>\n')


class Project:
    """A project with a pyproject.toml, and uv."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder = folder
        self.index = index
        folder.mkdir()

    def lock(self, dependencies: Sequence[str], more: str = "") -> Path:
        """Write pyproject.toml and let uv write uv.lock; return its path."""
        listed = ", ".join(repr(text) for text in dependencies)
        text = f'[project]\nname = "demo"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = [{listed}]\n{more}'
        (self.folder / "pyproject.toml").write_text(text)
        self.uv("lock", "--default-index", f"{self.index.url}/simple")
        path = self.folder / "uv.lock"
        path.write_text(path.read_text().replace(self.index.url, INDEX))
        (self.folder / "pyproject.toml").write_text(text.replace(self.index.url, INDEX))
        return path

    def uv(self, *arguments: str) -> str:
        """Run uv in the folder; return its output."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
        environment |= {"UV_PYTHON": sys.executable, "UV_CACHE_DIR": str(self.folder.parent / "uv-cache")}
        done = subprocess.run(
            [str(UV), "--no-config", *arguments], cwd=self.folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    made = Index(tmp_path / "index")
    yield made
    made.close()


@pytest.fixture
def project(tmp_path: Path, index: Index) -> Project:
    if not UV.exists() and shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    return Project(tmp_path / "project", index)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The lock file of an image; tests write its packages."""
    path = tmp_path / "requirements/trainer-cpu.txt"
    path.parent.mkdir()
    path.write_text("")
    return path
