"""What is to install of a uv.lock: the project's dependencies, followed from edge to edge in the images' environment.

The format is uv's own; this reads its version 1: https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile.
What a package needs that the image has is not followed: the image has that, too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from slipway.components.build_image.locks import release as rules
from slipway.components.build_image.locks.release import Conflict, Image, Release
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.trainer.engines.installed import DISTRIBUTION

FORMAT = 1
# The sources of packages that are folders.
FOLDERS = ("editable", "virtual", "directory")


def releases(path: Path, image: Image, groups: Sequence[str]) -> list[Release]:
    """Return the releases of the project's dependencies, and of these dependency groups, that an image does not have.

    Raises:
        UserError: The file is not for the image, is older than the project's pyproject.toml, or has what cannot be
            installed there.
    """
    try:
        return list(_releases(path, image, groups))
    except (KeyError, InvalidMarker, InvalidVersion, InvalidSpecifier) as error:
        raise UserError(
            f"{path.name} is damaged: {type(error).__name__}: {error}.", setting=rules.SETTING, value=path.name,
            fix="uv lock, or restore it",
        ) from None  # fmt: skip


def _releases(path: Path, image: Image, groups: Sequence[str]) -> Iterator[Release]:
    data = rules.read(path)
    _check_platform(path, data)
    packages: dict[str, list[JsonObject]] = defaultdict(list)
    for package in data.get("package", ()):
        packages[package["name"]].append(package)
    root = _root(path, packages)
    _check_age(path, root)
    conflicts: dict[str, Conflict] = {}
    selected: dict[str, JsonObject] = {}
    pending = deque(_edges(path, data, root, groups))
    followed: set[tuple[str, str]] = set()
    while pending:
        edge = pending.popleft()
        name = edge["name"]
        if name == DISTRIBUTION or ("marker" in edge and not rules.holds(Marker(edge["marker"]))):
            continue
        package = _target(path, packages, edge)
        if "version" in package and (conflict := image.conflict(canonicalize_name(name), Version(package["version"]))):
            conflicts[name] = conflict
        is_there = package is root or ("version" in package and name in image.packages)
        if not is_there:
            selected[name] = package
        for extra in ("", *edge.get("extra", ())):
            if (name, extra) not in followed and (extra or not is_there):
                followed.add((name, extra))
                optional = package.get("optional-dependencies", {})
                pending += optional.get(extra, ()) if extra else package.get("dependencies", ())
    rules.refuse_conflicts(path, image, [conflicts[name] for name in sorted(conflicts)])
    usual = rules.usual_index(_index(package) for same in packages.values() for package in same)
    for package in selected.values():
        release = _release(path, package)
        yield replace(release, index="" if release.index == usual else release.index)


def _check_platform(path: Path, data: JsonObject) -> None:
    """Refuse a lock file of another format, or for other platforms than the images'."""
    if data.get("version") != FORMAT:
        raise UserError(
            f"{path.name} has the format {data.get('version')}.", setting=rules.SETTING, value=path.name,
            allowed=f"format {FORMAT}", fix=f"uv export --frozen --no-emit-project -o {rules.PLAIN}, and "
            f"--set {rules.SETTING}={rules.PLAIN}",
        )  # fmt: skip
    if not SpecifierSet(data.get("requires-python", "")).contains(rules.PYTHON):
        raise UserError(
            f"{path.name} is for Python {data['requires-python']}; the images have 3.11.", setting=rules.SETTING,
            value=path.name, fix=f'requires-python = ">=3.11" in {rules.PYPROJECT}, then uv lock',
        )  # fmt: skip
    supported = data.get("supported-markers", ())
    if supported and not any(rules.holds(Marker(marker)) for marker in supported):
        raise UserError(
            f"{path.name} is not for the images' platform, Linux {rules.MACHINE}.", setting=rules.SETTING,
            value=path.name,
            fix=f"add \"sys_platform == 'linux'\" to tool.uv.environments in {rules.PYPROJECT}, then uv lock",
        )  # fmt: skip


def _root(path: Path, packages: Mapping[str, Sequence[JsonObject]]) -> JsonObject:
    """Return the project's own package, or raise UserError if it has none."""
    for package in (package for same in packages.values() for package in same):
        if any(package.get("source", {}).get(kind) == "." for kind in FOLDERS):
            return package
    raise UserError(
        f"{path.name} has no package for the project in {path.parent}.", setting=rules.SETTING, value=path.name,
        allowed="the lock file of a project", fix=f"a section [project] in {rules.PYPROJECT}, then uv lock",
    )  # fmt: skip


def _check_age(path: Path, root: JsonObject) -> None:
    """Refuse a lock file without a dependency that pyproject.toml has by now."""
    declared = path.with_name(rules.PYPROJECT)
    if not declared.is_file():
        return
    names = {edge["name"] for edge in root.get("metadata", {}).get("requires-dist", ())}
    for text in rules.read(declared).get("project", {}).get("dependencies", ()):
        try:
            name = canonicalize_name(Requirement(text).name)
        except InvalidRequirement:
            continue
        if name not in names:
            raise UserError(
                f"{path.name} is older than {rules.PYPROJECT}: it lacks {name}.", setting=rules.SETTING,
                value=path.name, fix="uv lock",
            )  # fmt: skip


def _edges(path: Path, data: JsonObject, root: JsonObject, groups: Sequence[str]) -> Iterator[JsonObject]:
    """Yield what the project and its dependency groups depend on."""
    yield from root.get("dependencies", ())
    locked = root.get("dev-dependencies", {})
    for group in groups:
        if group not in locked:
            raise UserError.unknown("dependency group", group, locked, setting="build.groups")
        if data.get("conflicts"):
            raise UserError(
                f"{path.name} has dependency groups or extras that exclude each other.", setting="build.groups",
                value=list(groups), fix=f"uv export --frozen --no-emit-project --group {group} -o {rules.PLAIN}, and "
                f"--set {rules.SETTING}={rules.PLAIN}",
            )  # fmt: skip
        yield from locked[group]


def _target(path: Path, packages: Mapping[str, Sequence[JsonObject]], edge: JsonObject) -> JsonObject:
    """Return the package of an edge, which names its version and source where there are several."""
    same = [
        package
        for package in packages[edge["name"]]
        if all(edge[key] == package.get(key) for key in ("version", "source") if key in edge)
    ]
    if len(same) != 1:
        raise UserError(
            f"{path.name} has {len(same)} packages {edge['name']} for one dependency.", setting=rules.SETTING,
            value=path.name, fix="uv lock",
        )  # fmt: skip
    return same[0]


def _index(package: JsonObject) -> str:
    """Return the URL of a package's index; "" if it is on none, or on one that is a folder."""
    registry: str = package.get("source", {}).get("registry", "")
    return registry.rstrip("/") if registry.startswith(("https://", "http://")) else ""


def _release(path: Path, package: JsonObject) -> Release:
    """Return what installs a package, or raise UserError if nothing does."""
    name, source = canonicalize_name(package["name"]), package.get("source", {})
    index, url = _index(package), source.get("url", "")
    if not index and not url:
        rules.without_source(path, name, " ".join(map(str, source.values())))
    wheels = package.get("wheels", ())
    version = Version(package["version"]) if "version" in package else None
    if version is None or not any(rules.fits(wheel["url"].partition("#")[0].rpartition("/")[2]) for wheel in wheels):
        rules.without_wheel(path, name, version or "")
    hashes = rules.hashes_of(path, name, (wheel["hash"] for wheel in wheels if "hash" in wheel))
    return Release(name, version, hashes, index=index, url=url)
