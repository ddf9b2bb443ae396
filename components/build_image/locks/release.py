"""Releases that a lock file has, what an image has already, and which wheels can be installed there."""

from __future__ import annotations

import functools
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

from packaging.markers import Environment, Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, NormalizedName, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from slipway.core.errors import UserError
from slipway.core.values import JsonObject

SETTING = "build.requirements"
PYLOCK, UV_LOCK, PLAIN, PYPROJECT = "pylock.toml", "uv.lock", "requirements.txt", "pyproject.toml"
# The images' platform: that of requirements/*.txt. After 3.11.9, versions of 3.11 only fix security.
PYTHON = "3.11.9"
GLIBC = (2, 31)
MACHINE = "x86_64"
ALGORITHMS = ("sha256", "sha384", "sha512")  # those that pip accepts
# Packages that replace each other.
SAME = {"tensorflow": "tensorflow-cpu", "tensorflow-cpu": "tensorflow"}


@dataclass(frozen=True)
class Release:
    """A release to install.

    Attributes:
        name: The package's name.
        version: Its version.
        hashes: Those of its wheels, such as sha256:ab….
        index: The index that has it, "" for the one that has most of the lock file's packages: where an image is built,
            that may be a mirror.
        url: The URL of its wheel, if it is on no index.
    """

    name: NormalizedName
    version: Version
    hashes: tuple[str, ...]
    index: str = ""
    url: str = ""

    def __str__(self) -> str:
        source = f" @ {self.url}" if self.url else f"=={self.version}"
        return " \\\n    ".join([f"{self.name}{source}", *(f"--hash={digest}" for digest in sorted(self.hashes))])


def _pins(locked: Path) -> dict[NormalizedName, Version]:
    lines = (line.partition(" ")[0].partition("==") for line in locked.read_text().splitlines() if "==" in line)
    packages = {canonicalize_name(name.partition("[")[0]): Version(version) for name, _, version in lines}
    return packages | {canonicalize_name(SAME[name]): packages[name] for name in packages.keys() & SAME.keys()}


@dataclass(frozen=True)
class Conflict:
    """A package that a lock file has in another version than an image."""

    name: NormalizedName
    locked: Version
    image: Version


@dataclass(frozen=True)
class Image:
    """What an image has already: its name, its packages' versions, and those that other images have."""

    name: str
    packages: Mapping[NormalizedName, Version]
    elsewhere: Mapping[NormalizedName, Version]

    @classmethod
    def of(cls, locked: Path) -> Image:
        """Return what is in an image's lock file, and in those beside it."""
        others = (path for role in ("steps", "trainer", "serving") for path in locked.parent.glob(f"{role}-*.txt"))
        elsewhere = {name: version for path in others for name, version in _pins(path).items()}
        return cls(locked.stem, _pins(locked), elsewhere)

    def conflict(self, name: NormalizedName, version: Version) -> Conflict | None:
        """Return how a release differs from the one that this image has, or another one; None if it does not.

        The build of a release for other hardware (1.0+cpu) does not differ from it.
        """
        there = self.packages.get(name) or self.elsewhere.get(name)
        return None if there is None or str(there) in (str(version), version.public) else Conflict(name, version, there)


def environment(machine: str = MACHINE) -> Environment:
    """Return the values of markers in an image."""
    return Environment(
        implementation_name="cpython", implementation_version=PYTHON, os_name="posix", platform_machine=machine,
        platform_python_implementation="CPython", platform_release="", platform_system="Linux", platform_version="",
        python_full_version=PYTHON, python_version=PYTHON.rpartition(".")[0], sys_platform="linux",
    )  # fmt: skip


def holds(marker: Marker) -> bool:
    """Return whether a marker holds in an image; no extra is chosen."""
    return marker.evaluate(cast("dict[str, str]", {**environment(), "extra": ""}))


@functools.cache
def tags(machine: str = MACHINE) -> tuple[Tag, ...]:
    """Return the tags of the wheels that an image accepts, the best ones first."""
    older = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    names = []
    for minor in range(GLIBC[1], 4, -1):
        names += [f"manylinux_{GLIBC[0]}_{minor}", *([older[minor]] if minor in older else [])]
    platforms = [f"{name}_{machine}" for name in (*names, "linux")]
    version = tuple(int(part) for part in PYTHON.split(".")[:2])
    interpreter = f"cp{''.join(map(str, version))}"
    return (*cpython_tags(version, [interpreter], platforms), *compatible_tags(version, interpreter, platforms))


def fits(wheel: str) -> bool:
    """Return whether a wheel with this file name can be installed in an image."""
    try:
        return not parse_wheel_filename(wheel)[3].isdisjoint(tags())
    except InvalidWheelFilename:
        return False


def usual_index(indexes: Iterable[str]) -> str:
    """Return the index of most packages; "" is none."""
    return next((name for name, _ in Counter(filter(None, indexes)).most_common(1)), "")


def read(path: Path) -> JsonObject:
    """Return the content of a TOML file.

    Raises:
        UserError: It is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(
            f"{path} cannot be read: {error}.", setting=SETTING, value=path.name, fix=refresh(path)
        ) from None


def refresh(path: Path) -> str:
    """Return the command that writes a lock file anew."""
    return "uv lock" if path.name == UV_LOCK else f"uv pip compile {PYPROJECT} -o {path.name}"


def without_source(path: Path, name: str, is_at: str) -> NoReturn:
    """Refuse a package that is in a repository or a folder: an image's tag would not say what it is.

    Raises:
        UserError: Always.
    """
    raise UserError(
        f"{path.name} has {name} from {is_at}, which an image's build cannot install with a hash.",
        setting=SETTING,
        value=path.name,
        allowed="packages with wheels on an index, or at an https:// URL",
        fix=f"depend on a release of {name}, or on the URL of a wheel that `uv build` makes of it; modules in the "
        "project's folder are in its images anyway",
    )


def without_wheel(path: Path, name: str, version: Version | str) -> NoReturn:
    """Refuse a package that would be compiled: images have no compilers, and its build would download what it needs.

    Raises:
        UserError: Always.
    """
    raise UserError(
        f"{path.name} has {name} {version}, which has no wheel for the images: Python 3.11, Linux {MACHINE}, glibc "
        f"{GLIBC[0]}.{GLIBC[1]}.",
        setting=SETTING,
        value=path.name,
        allowed="packages with such a wheel",
        fix=f"choose a version of {name} that has one, or depend on the URL of the file that "
        f"pip wheel --no-deps {name}=={version} makes",
    )


def hashes_of(path: Path, name: str, hashes: Iterable[str]) -> tuple[str, ...]:
    """Return the hashes that pip accepts.

    Raises:
        UserError: There are none.
    """
    accepted = tuple(digest for digest in hashes if digest.partition(":")[0] in ALGORITHMS)
    if not accepted:
        raise UserError(
            f"{path.name} has no hash of {name}.", setting=SETTING, value=path.name,
            allowed=f"a hash by {', '.join(ALGORITHMS)} for every wheel", fix=refresh(path),
        )  # fmt: skip
    return accepted


def refuse_conflicts(path: Path, image: Image, conflicts: Sequence[Conflict]) -> None:
    """Refuse packages that the image has in another version, all at once; the fix also has those of other images.

    Raises:
        UserError: There are some.
    """
    here = [conflict for conflict in conflicts if conflict.name in image.packages]
    if not here:
        return
    named = ", ".join(f"{conflict.name} {conflict.locked} (image: {conflict.image})" for conflict in here)
    pins = [f"{conflict.name}=={conflict.image}" for conflict in conflicts]
    fix = " ".join(["uv lock", *(f"--upgrade-package '{pin}'" for pin in pins)])
    if path.name != UV_LOCK:
        fix = f"printf '%s\\n' {' '.join(pins)} > image.txt; uv pip compile {PYPROJECT} -c image.txt -o {path.name}"
    raise UserError(
        f"{path.name} and the image {image.name} have other versions of {named}; with the image's, Slipway is tested.",
        setting=SETTING,
        value=path.name,
        fix=fix,
    )
