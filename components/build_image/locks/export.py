"""The requirements of an image from a project's lock file, or from its pyproject.toml."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from slipway.components.build_image.locks.release import (
    PLAIN,
    PYLOCK,
    PYPROJECT,
    SETTING,
    UV_LOCK,
    Image,
    holds,
    read,
    without_source,
)
from slipway.core.errors import UserError
from slipway.trainer.engines.installed import DISTRIBUTION

AUTO = "auto"
# What `auto` stands for: the first of these that exists.
NAMES = (PYLOCK, UV_LOCK, PLAIN, PYPROJECT)
# The first line of requirements whose versions pip chooses: the Dockerfile looks for it.
UNLOCKED = "# unlocked"


def file_of(folder: Path, requirements: str) -> Path:
    """Return the file that `build.requirements` names, or the first of `NAMES` for auto; it may not exist.

    Raises:
        UserError: It is auto, and the folder has none.
    """
    if requirements != AUTO:
        return folder / requirements
    path = next((folder / name for name in NAMES if (folder / name).is_file()), None)
    if path is None:
        raise UserError(
            f"{folder} has no lock file.", setting=SETTING, value=AUTO, allowed=", ".join(NAMES),
            fix="uv lock, which writes uv.lock, or --set build.requirements=null",
        )  # fmt: skip
    return path


def is_lock(path: Path) -> bool:
    """Return whether requirements are exported from a file; otherwise it is pip's."""
    return path.suffix in (".toml", ".lock")


def has_groups(path: Path) -> bool:
    """Return whether a file can lock dependency groups."""
    return is_lock(path) and path.name != PYPROJECT


def exported(path: Path, locked: Path, groups: Sequence[str] = (), index: str | None = None) -> str:
    """Return the requirements of a lock file, or of pyproject.toml, that an image does not have; "" if it has all.

    Args:
        path: The lock file.
        locked: The image's lock file.
        groups: Dependency groups to install, besides the project's dependencies.
        index: The index to install from.

    Raises:
        UserError: The file cannot be read or is not for the image's platform, a package has no wheel for it, or has
            another version there.
    """
    from packaging.pylock import is_valid_pylock_path

    from slipway.components.build_image.locks import pylock, uv_lock

    image = Image.of(locked)
    if path.name == PYPROJECT:
        lines = list(_declared(path, image))
        return "\n".join([UNLOCKED, *([f"--index-url {index}"] if index else []), *lines, ""]) if lines else ""
    if path.name != UV_LOCK and not is_valid_pylock_path(path):
        raise UserError(
            f"{path.name} is no lock file that Slipway reads.", setting=SETTING, value=path.name,
            allowed=", ".join(NAMES), nearest=UV_LOCK,
            fix=f"export it as {PLAIN}, with hashes, and --set {SETTING}={PLAIN}",
        )  # fmt: skip
    reader = uv_lock if path.name == UV_LOCK else pylock
    releases = list(reader.releases(path, image, groups))
    if not releases:
        return ""
    others = sorted({release.index for release in releases} - {""})
    indexes = [f"--index-url {index}"] if index else [f"--extra-index-url {url}" for url in others]
    header = [f"# Exported from {path.name} for {image.name}.", "--require-hashes", "--only-binary :all:", *indexes]
    return "\n".join([*header, *map(str, sorted(releases, key=lambda release: release.name)), ""])


def _declared(path: Path, image: Image) -> Iterator[str]:
    """Yield the dependencies of a pyproject.toml that the image does not have, with their ranges of versions."""
    project = read(path).get("project", {})
    if "dependencies" in project.get("dynamic", ()):
        raise UserError(
            f"The dependencies in {path.name} are dynamic.",
            setting=SETTING,
            value=path.name,
            fix="uv lock, and uv.lock",
        )
    conflicts = []
    for text in project.get("dependencies", ()):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            raise UserError(
                f"{path.name} has an invalid dependency: {text}.", setting=SETTING, value=path.name
            ) from None
        name = canonicalize_name(requirement.name)
        if name == DISTRIBUTION or (requirement.marker and not holds(requirement.marker)):
            continue
        if requirement.url and not requirement.url.startswith("https://"):
            without_source(path, name, requirement.url)
        if name in image.packages and not requirement.url:
            version = image.packages[name]
            if not requirement.specifier.contains(version, prereleases=True):
                conflicts.append((requirement, version))
            if not requirement.extras:
                continue
        requirement.marker = None
        yield str(requirement)
    for requirement, version in conflicts:
        raise UserError(
            f"{path.name} requires {requirement.name}{requirement.specifier}; the image {image.name} has "
            f"{requirement.name} {version}, with which Slipway is tested.",
            setting=SETTING,
            value=path.name,
            nearest=f"{requirement.name}=={version}",
            fix=f"change it to a range that has {version}, or remove it",
        )
