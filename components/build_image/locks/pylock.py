"""What is to install of a pylock.toml, by the rules of the standard: PEP 751."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.pylock import (
    Package,
    PackageArchive,
    PackageDirectory,
    PackageSdist,
    PackageVcs,
    Pylock,
    PylockSelectError,
    PylockValidationError,
)
from packaging.utils import parse_wheel_filename

from slipway.components.build_image.locks import release as rules
from slipway.components.build_image.locks.release import Conflict, Image, Release
from slipway.core.errors import UserError
from slipway.trainer.engines.installed import DISTRIBUTION


def releases(path: Path, image: Image, groups: Sequence[str]) -> Iterator[Release]:
    """Yield what is to install of a pylock.toml."""
    try:
        lock = Pylock.from_dict(rules.read(path))
        for group in groups:
            if group not in (known := lock.dependency_groups or ()):
                raise UserError.unknown("dependency group", group, known, setting="build.groups")
        chosen = [*(lock.default_groups or ()), *groups] if groups else None
        selected = list(lock.select(environment=rules.environment(), tags=rules.tags(), dependency_groups=chosen))
    except (PylockValidationError, PylockSelectError) as error:
        raise UserError(
            f"{path.name} is not for the images: {error}.",
            setting=rules.SETTING,
            value=path.name,
            fix=rules.refresh(path),
        ) from None
    usual = rules.usual_index((package.index or "").rstrip("/") for package in lock.packages)
    conflicts: list[Conflict] = []
    for package, source in selected:
        if package.name == DISTRIBUTION:
            raise UserError(
                f"{path.name} has {DISTRIBUTION}, with all that it needs; the images have these.",
                setting=rules.SETTING, value=path.name,
                fix=f"uv export --format {rules.PYLOCK} --prune {DISTRIBUTION} -o {path.name}",
            )  # fmt: skip
        if isinstance(source, PackageDirectory) and Path(source.path) in (Path(), path.parent):
            continue  # the project itself
        if isinstance(source, PackageVcs | PackageDirectory):
            rules.without_source(path, package.name, str(source.url if isinstance(source, PackageVcs) else source.path))
        if package.version is not None and (conflict := image.conflict(package.name, package.version)):
            conflicts.append(conflict)
        if package.version is not None and package.name in image.packages:
            continue
        if isinstance(source, PackageSdist) or (package.version is None and not isinstance(source, PackageArchive)):
            rules.without_wheel(path, package.name, package.version or "")
        release = _release(path, package, source if isinstance(source, PackageArchive) else None)
        yield replace(release, index="" if release.index == usual else release.index)
    rules.refuse_conflicts(path, image, conflicts)


def _release(path: Path, package: Package, archive: object) -> Release:
    """Return the release of a package with wheels, or of an archive at a URL."""
    if isinstance(archive, PackageArchive):
        file = (archive.url or archive.path or "").rpartition("/")[2]
        if archive.url is None:
            rules.without_source(path, package.name, str(archive.path))
        if not rules.fits(file):
            rules.without_wheel(path, package.name, package.version or "")
        version = parse_wheel_filename(file)[1]
        hashes = rules.hashes_of(path, package.name, (f"{name}:{value}" for name, value in archive.hashes.items()))
        return Release(package.name, version, hashes, url=archive.url)
    wheels = package.wheels or ()
    if any(wheel.url is None for wheel in wheels):
        rules.without_source(path, package.name, str(next(wheel.path for wheel in wheels if wheel.url is None)))
    assert package.version is not None
    digests = (f"{name}:{value}" for wheel in wheels for name, value in wheel.hashes.items())
    return Release(
        package.name,
        package.version,
        rules.hashes_of(path, package.name, digests),
        index=(package.index or "").rstrip("/"),
    )
