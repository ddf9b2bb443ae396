"""Build contexts: the files of the installed Slipway, or those that git tracks, as a reproducible archive.

The fingerprint of the content is the image's tag, so nothing is built twice and tags never move.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.metadata
import io
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from slipway.components.build_image.images import REQUIREMENTS, ImageKind, beam_kind
from slipway.components.build_image.project import OTHERS, ContextFile, ProjectContent, git_files
from slipway.core.errors import UserError
from slipway.core.git import git_commit
from slipway.trainer.engines.installed import DISTRIBUTION

DOCKERFILE = "slipway/containers/Dockerfile"
BEAM_DOCKERFILE = "slipway/containers/Dockerfile.beam"
BUILD_TOOLS = f"{REQUIREMENTS}/build-tools.txt"
# The project's requirements file in the archive; empty without one, because Docker's COPY needs a file.
PROJECT_REQUIREMENTS = "project/requirements.txt"
EMPTY = ContextFile(Path(os.devnull), False)
CODE = "code"
TAG_LENGTH = 24


@dataclass(frozen=True)
class Context:
    """An image's content: files by their path in the archive, and build arguments.

    `project` are the paths in the archive of the project's own files. `excluded` lists untracked files that .gitignore
    does not ignore: they may have been forgotten.
    """

    kind: ImageKind
    files: Mapping[str, ContextFile]
    arguments: Mapping[str, str]
    revision: str
    excluded: tuple[str, ...]
    project: frozenset[str] = frozenset()

    @functools.cached_property
    def fingerprint(self) -> str:
        """The SHA-256 (hex) of the files' paths, modes and bytes and of the build arguments."""
        digest = hashlib.sha256()
        for name, value in sorted(self.arguments.items()):
            digest.update(f"{name}={value}\0".encode())
        for path, file in sorted(self.files.items()):
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{path}\0{int(file.executable)}\0{content}\0".encode())
        return digest.hexdigest()

    @property
    def tag(self) -> str:
        """The image's tag."""
        return self.fingerprint[:TAG_LENGTH]

    def archive(self) -> bytes:
        """Return the context as a reproducible .tar.gz: no timestamps, owners or file name."""
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path, file in sorted(self.files.items()):
                content = file.read_bytes()
                entry = tarfile.TarInfo(path)
                entry.size = len(content)
                entry.mode = 0o755 if file.executable else 0o644
                archive.addfile(entry, io.BytesIO(content))
        return gzip.compress(plain.getvalue(), mtime=0)


def make_context(
    source: Path,
    kind: ImageKind,
    base: str,
    own: Mapping[str, Path] | None = None,
    project: ProjectContent | None = None,
) -> Context:
    """Return the build context of an image.

    Args:
        source: The folder that contains the package slipway: a git checkout, or where Slipway is installed.
        kind: The kind of image.
        base: The base image.
        own: The user's packages or modules outside of the project to include, by name: the folder or .py file of each.
        project: The content of the user's project.

    Raises:
        UserError: A file that the image needs is not tracked by git, or a requirement contradicts the image.
    """
    project = project or ProjectContent({})
    needed = (DOCKERFILE, BUILD_TOOLS, kind.requirements)
    installed = _slipway_files(source, (*needed, *kind.code))
    dockerfile, tools, locked = (_needed(installed[name], name) for name in needed)
    files = {
        "Dockerfile": dockerfile,
        PROJECT_REQUIREMENTS: EMPTY,
        BUILD_TOOLS.removeprefix("slipway/"): tools,
        kind.requirements.removeprefix("slipway/"): locked,
    }
    added = {f"{CODE}/{name}": file for name, file in project.files.items()}
    if (requirements := project.requirements_for(locked.source)) is not None:
        added[PROJECT_REQUIREMENTS] = requirements
    files |= added
    excluded = list(project.untracked)
    for name in kind.code:
        files |= _archived(name, source / name, installed[name], setting=None)
    if is_checkout(source):
        forgotten = _listed(source, kind.code, *OTHERS)
        excluded += [str(file.source.resolve()) for name in kind.code for file in forgotten[name]]
    for name, path in (own or {}).items():
        files |= _archived(name, path, _git_files(path, "--cached"), setting="model.builder or data.source")
        excluded += [str(file.source.resolve()) for file in _git_files(path, *OTHERS)]
    return Context(
        kind=kind,
        files=files,
        arguments={**kind.arguments, "BASE": base},
        revision=revision(source),
        excluded=tuple(excluded),
        project=frozenset(added),
    )


def beam_context(source: Path, steps: str) -> Context:
    """Return the build context of the image of Beam's workers.

    Args:
        source: The folder that contains the package slipway.
        steps: The URI of the steps' image, on which it is built.
    """
    kind = beam_kind(source)
    dockerfile = _needed(_slipway_files(source, [BEAM_DOCKERFILE])[BEAM_DOCKERFILE], BEAM_DOCKERFILE)
    return Context(
        kind=kind,
        files={"Dockerfile": dockerfile},
        arguments={**kind.arguments, "BASE": steps},
        revision=revision(source),
        excluded=(),
    )


def is_checkout(source: Path) -> bool:
    """Whether Slipway runs from a git checkout; otherwise it is installed."""
    return (source / ".git").exists()


def revision(source: Path) -> str:
    """Return the installed version; in a checkout, the commit, with the suffix -dirty if files have changed."""
    commit = git_commit(source) if is_checkout(source) else None
    return commit or importlib.metadata.version(DISTRIBUTION)


def _archived(name: str, path: Path, files: list[ContextFile], *, setting: str | None) -> dict[str, ContextFile]:
    """Return the files of a package or module by their paths in the archive.

    Raises:
        UserError: There are none.
    """
    if not files:
        raise UserError(
            f"git tracks no files in {path}, so it cannot be included in the image.",
            setting=setting,
            value=name if setting else None,
            fix=f"git add {path}",
        )
    base_folder = path if path.is_dir() else path.parent
    folder = PurePosixPath(CODE, name if path.is_dir() else PurePosixPath(name).parent)
    return {str(folder / file.source.relative_to(base_folder).as_posix()): file for file in files}


def _needed(files: list[ContextFile], name: str) -> ContextFile:
    if not files:
        raise UserError(f"git does not track {name}, which every image needs.", fix=f"git add {name}")
    return files[0]


def _slipway_files(source: Path, names: Sequence[str]) -> dict[str, list[ContextFile]]:
    """Return the files at or below each of the paths `names` in `source` that an image may have."""
    if is_checkout(source):
        return _listed(source, names, "--cached")
    return {name: _installed_files(source / name) for name in names}


def _listed(source: Path, names: Sequence[str], *options: str) -> dict[str, list[ContextFile]]:
    """Return the existing regular files at or below each of the paths `names` that one `git ls-files` lists."""
    root = source.resolve()
    folders = {name: (source / name).resolve().relative_to(root).as_posix() for name in names}
    paths = git_files(root, *options, patterns=sorted(folders.values())) if names else []
    return {
        name: [
            ContextFile.of(source / name / path[len(folder) + 1 :])
            for path in paths
            if path == folder or path.startswith(f"{folder}/")
        ]
        for name, folder in folders.items()
    }


def _git_files(path: Path, *options: str) -> list[ContextFile]:
    """Return the existing regular files at or below `path` that `git ls-files` lists with `options`."""
    folder, pattern = (path, ".") if path.is_dir() else (path.parent, path.name)
    return [ContextFile.of(folder / name) for name in git_files(folder, *options, patterns=[pattern])]


def _installed_files(path: Path) -> list[ContextFile]:
    """Return the files at or below `path` but compiled ones; modes are not kept by an installation."""
    paths = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [ContextFile(file, False) for file in paths if file.is_file() and "__pycache__" not in file.parts]
