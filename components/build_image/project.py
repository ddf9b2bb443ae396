"""What a user's project adds to the images: its files, and its own pip requirements."""

from __future__ import annotations

import fnmatch
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from slipway.components.build_image.locks import export
from slipway.components.build_image.settings import ContentSettings
from slipway.core.errors import UserError, nearest
from slipway.core.git import git

# Never included in an image, even if git tracks them.
SECRET_NAMES = (".env", ".env.*", "*.pem", "*.key", "*.p12", "id_rsa*", "id_ed25519*", "*credentials*.json", ".netrc")
PACKAGE = "slipway"
# What `git ls-files` needs to list the files that git neither tracks nor ignores.
OTHERS = ("--others", "--exclude-standard")


@dataclass(frozen=True)
class ContextFile:
    """A file of a build context: its path, whether it is executable, and its text if that is made for the context."""

    source: Path
    executable: bool
    text: str | None = None

    @classmethod
    def of(cls, path: Path) -> ContextFile:
        return cls(path, bool(path.stat().st_mode & 0o100))

    def read_bytes(self) -> bytes:
        """Return its content."""
        return self.source.read_bytes() if self.text is None else self.text.encode()


@dataclass(frozen=True)
class ProjectContent:
    """The files of a project by their path in it, and its requirements file or lock file.

    `untracked` are the files that git neither tracks nor ignores and that no setting includes.
    """

    files: Mapping[str, ContextFile]
    untracked: tuple[str, ...] = ()
    requirements: Path | None = None
    groups: tuple[str, ...] = ()
    index: str | None = None

    def requirements_for(self, locked: Path) -> ContextFile | None:
        """Return the requirements file for the image with a lock file; None without one.

        Raises:
            UserError: It does not pin all packages, or to other versions than the image has; see also `exported`.
        """
        if self.requirements is None:
            return None
        if export.is_lock(self.requirements):
            text = export.exported(self.requirements, locked, self.groups, self.index)
            return ContextFile(self.requirements, False, text)
        check_requirements(self.requirements, locked)
        text = self.requirements.read_text(encoding="utf-8")
        return ContextFile(self.requirements, False, f"--index-url {self.index}\n{text}" if self.index else text)


def project_content(
    folder: Path,
    settings: ContentSettings,
    modules: Iterable[str],
    is_configuration: Callable[[Path], bool] = lambda _path: False,
    *,
    without_git: bool = False,
) -> ProjectContent:
    """Return what the project in `folder` adds to an image.

    Args:
        folder: The project's folder: where `slipway` runs.
        settings: The section `build`.
        modules: The project's packages and modules that the run imports; the content must have them.
        is_configuration: Whether a file is a run configuration, which no image needs.
        without_git: Accept a folder that is in no git checkout, as if git tracked what .gitignore does not ignore.

    Raises:
        UserError: The folder is not in a git checkout, git does not track a module, a pattern matches nothing, or the
            requirements file does not exist.
    """
    included = _included(folder, settings.include)
    tracked, untracked = (
        [path for path in paths if not _excluded(path, settings) and not is_configuration(folder / path)]
        for paths in _tracked_and_others(folder, without_git=without_git)
    )
    names = sorted({*tracked, *included})
    _check_modules(folder, names, modules)
    if any(PurePosixPath(name).parts[0] in (PACKAGE, f"{PACKAGE}.py") for name in names):
        raise UserError(
            f"The project has a folder or module named {PACKAGE}, which would replace Slipway in the image.",
            setting="build.exclude",
            value=list(settings.exclude),
            fix=f"rename {folder / PACKAGE}, or add it to build.exclude",
        )
    requirements = export.file_of(folder, settings.requirements) if settings.requirements else None
    _check_packages(settings, requirements)
    if requirements is not None and not requirements.is_file():
        raise UserError(
            f"There is no requirements file {requirements}.",
            setting="build.requirements",
            value=settings.requirements,
            nearest=nearest(str(settings.requirements), [*(path.name for path in folder.glob("*.txt")), *export.NAMES]),
        )
    files = {name: ContextFile.of(folder / name) for name in names}
    known = {*files, settings.requirements, requirements and requirements.name}
    others = tuple(name for name in untracked if name not in known)
    return ProjectContent(files, others, requirements, settings.groups, settings.index)


def _check_packages(settings: ContentSettings, requirements: Path | None) -> None:
    """Refuse settings of packages that no file names, and groups of a file that has none."""
    for name, value in (("groups", settings.groups), ("index", settings.index)):
        if value and requirements is None:
            raise UserError(
                f"build.{name} is for packages of build.requirements, which is not set.", setting=f"build.{name}",
                value=value, fix=f"--set build.requirements={export.AUTO}",
            )  # fmt: skip
    if settings.groups and requirements is not None and not export.has_groups(requirements):
        raise UserError(
            f"{requirements.name} has no dependency groups that are locked.", setting="build.groups",
            value=list(settings.groups), allowed="groups of uv.lock or pylock.toml",
            fix="uv lock, or --set build.groups=[]",
        )  # fmt: skip


def _tracked_and_others(folder: Path, *, without_git: bool) -> tuple[list[str], list[str]]:
    """Return the files that git tracks, and those that it neither tracks nor ignores."""
    try:
        return git_files(folder, "--cached"), git_files(folder, *OTHERS)
    except UserError:
        if not without_git:
            raise
    with tempfile.TemporaryDirectory() as repository:
        git(folder, "init", "--quiet", "--bare", repository)
        return git_files(folder, *OTHERS, repository=repository), []


def git_files(
    folder: Path, *options: str, patterns: Sequence[str] = (".",), repository: str | None = None
) -> list[str]:
    """Return the paths in `folder` of the regular files that `git ls-files` lists with `options`, but secrets.

    Symlinks are skipped: they may point to files outside the tree, or to untracked ones. `repository` replaces the one
    that the folder is in.
    """
    location = [] if repository is None else ["--git-dir", repository, "--work-tree", "."]
    names = git(folder, *location, "ls-files", "-z", *options, "--", *patterns).split("\0")
    return [name for name in names if name and _is_regular(folder / name)]


def check_requirements(path: Path, locked: Path) -> None:
    """Check that a requirements file pins every package, and none to another version than the image has.

    Args:
        path: The project's requirements file.
        locked: The image's lock file.

    Raises:
        UserError: It does not.
    """
    image = {
        canonicalize_name(requirement.name): str(requirement.specifier) for _, requirement in _requirements(locked)
    }
    for line, requirement in _requirements(path):
        pins = [specifier for specifier in requirement.specifier if specifier.operator in ("==", "===")]
        if requirement.url is None and (len(requirement.specifier) != 1 or not pins or pins[0].version.endswith(".*")):
            raise UserError(
                f"Line {line} of {path} does not pin {requirement.name} to a version: {requirement}.",
                setting="build.requirements",
                value=path.name,
                allowed="NAME==VERSION on every line, so that an image's name always means the same packages",
                fix=f"uv pip compile requirements.in -c {locked} -o {path}",
            )
        existing = image.get(canonicalize_name(requirement.name))
        if existing is not None and existing != str(requirement.specifier):
            raise UserError(
                f"Line {line} of {path} requires {requirement}; the image has {requirement.name}{existing}, "
                "with which Slipway is tested.",
                setting="build.requirements",
                value=path.name,
                nearest=f"{requirement.name}{existing}",
                fix=f"change line {line} to {requirement.name}{existing}, or remove it",
            )


def _requirements(path: Path) -> Iterator[tuple[int, Requirement]]:
    """Yield the requirements of a file and the number of each one's first line, without hashes and comments."""
    text = path.read_text(encoding="utf-8")
    number = 1
    for line in re.sub(r"\\\n", "\\\\", text).splitlines():  # continued lines as one, so that they can be counted
        requirement = re.sub(r"(^|\s)#.*|--hash=\S+|\\", " ", line).strip()
        if requirement:
            try:
                yield number, Requirement(requirement)
            except InvalidRequirement:
                raise UserError(
                    f"Line {number} of {path} is not a requirement: {requirement}.",
                    setting="build.requirements",
                    value=path.name,
                    allowed="NAME==VERSION on every line",
                ) from None
        number += 1 + line.count("\\")


def _included(folder: Path, patterns: Iterable[str]) -> list[str]:
    """Return the files that `build.include` names, whether git tracks them or not."""
    patterns = tuple(patterns)
    if not patterns:
        return []
    every = [path for path in _walk(folder) if _is_regular(folder / path)]
    for pattern in patterns:
        if not any(_matches(path, pattern) for path in every):
            raise UserError(
                f"No file in {folder} matches {pattern}.",
                setting="build.include",
                value=pattern,
                nearest=nearest(pattern, every),
            )
    return [path for path in every if any(_matches(path, pattern) for pattern in patterns)]


def _walk(folder: Path) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
        for name in names:
            yield (Path(root) / name).relative_to(folder).as_posix()


def _excluded(path: str, settings: ContentSettings) -> bool:
    return any(_matches(path, pattern) for pattern in settings.exclude)


def _matches(path: str, pattern: str) -> bool:
    """Whether a pattern matches a file: its path or a folder of it; without a slash, any name in its path."""
    parts = PurePosixPath(path).parts
    pattern = pattern.removeprefix("./").rstrip("/")
    if "/" not in pattern:
        return any(fnmatch.fnmatchcase(part, pattern) for part in parts)
    paths = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
    return any(fnmatch.fnmatchcase(prefix, pattern) for prefix in paths)


def _check_modules(folder: Path, names: list[str], modules: Iterable[str]) -> None:
    top_level = {PurePosixPath(name).parts[0] for name in names}
    for module in modules:
        if not top_level & {module, f"{module}.py"}:
            path = module if (folder / module).is_dir() else f"{module}.py"
            raise UserError(
                f"The run needs {path}, which would not be in its image: git does not track it, or build.exclude "
                "excludes it.",
                value=module,
                fix=f"git add {path}",
            )


def _is_regular(path: Path) -> bool:
    secret = any(fnmatch.fnmatchcase(path.name.lower(), pattern) for pattern in SECRET_NAMES)
    return not secret and path.is_file() and not path.is_symlink()
