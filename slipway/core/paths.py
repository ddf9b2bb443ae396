"""A worker's output folders, from AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and AIP_TENSORBOARD_LOG_DIR."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.core.errors import UserError

# Environment variables with a job's output folders.
OUTPUT_VARIABLES = ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR")
# Environment variable with the path of a custom program's data: a prepared data set (a folder or URI), or data.uri.
DATA_VARIABLE = "SLIPWAY_DATA"
# Environment variable of a rehearsed custom program: the number of steps after whose report it is ended.
REHEARSAL_VARIABLE = "SLIPWAY_REHEARSAL_STEPS"
# File in the checkpoint folder with the number of steps that a rehearsed program had reported.
REHEARSED_FILE = "rehearsed"


@dataclass(frozen=True)
class OutputPaths:
    """The job's folders: `model` is written once, at the end; `checkpoints` and `logs` grow."""

    model: Path
    checkpoints: Path
    logs: Path


# Where a bucket's objects appear in a container: mounted by Vertex AI, copied in and out by Kubeflow Pipelines.
MOUNTS = {"gs://": "/gcs", "s3://": "/s3", "minio://": "/minio"}


def is_remote(uri: str) -> bool:
    """Whether `uri` refers to an object store rather than a local folder."""
    return uri.startswith(tuple(MOUNTS))


def local_path(uri: str) -> Path:
    """Return the local folder for `uri`: in a container gs://bucket/object is /gcs/bucket/object; see `MOUNTS`."""
    for scheme, mount in MOUNTS.items():
        if uri.startswith(scheme):
            return Path(mount) / uri.removeprefix(scheme)
    return Path(uri)


def remote_uri(path: Path) -> str:
    """Return the URI of a path in a mounted bucket, such as gs://bucket/object of /gcs/bucket/object; else the path."""
    for scheme, mount in MOUNTS.items():
        if path.is_relative_to(mount):
            return f"{scheme}{path.relative_to(mount)}"
    return str(path)


def in_bucket(path: Path) -> bool:
    """Whether `path` is where buckets are mounted: there, renaming a folder is not atomic."""
    return any(path.is_relative_to(mount) for mount in MOUNTS.values())


def is_mounted(path: Path) -> bool:
    """Whether a path at which a bucket's objects would appear is in a file system that is mounted there.

    A folder /gcs of the disk is no mount: what is written to it stays on this machine.
    """
    real = path.resolve()
    points = [point for point in _mount_points() if point != Path("/")]
    return in_bucket(path) and any(path.is_relative_to(point) or real.is_relative_to(point) for point in points)


@functools.cache
def _mount_points() -> tuple[Path, ...]:
    """Return where file systems are mounted; where there is no such table, those at which buckets would be."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return tuple(Path(mount) for mount in MOUNTS.values() if os.path.ismount(mount))
    fields = (line.split(" ")[4] for line in lines)
    return tuple(Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)) for field in fields)


def require_mount(location: str, setting: str, fix: str, value: str | None = None) -> None:
    """Raise UserError if `location` is in a bucket that is not mounted on this machine.

    Args:
        location: A path or URI.
        setting: The setting or option with this location.
        fix: Another value for it, as a command or option.
        value: The setting's value; default: the location.
    """
    path = local_path(location)
    if is_remote(location) and not is_mounted(path):
        raise UserError(
            f"{location} is in a bucket, which is not mounted on this machine as {Path(*path.parts[:3])}.",
            setting=setting,
            value=value or location,
            allowed="a path of this machine, or a bucket that is mounted there, as by gcsfuse",
            fix=fix,
        )


def require_utf8(folder: Path) -> None:
    """Raise UserError if a folder's path is not UTF-8, as records and libraries such as kfp need it."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(folder).decode(errors="backslashreplace")
        raise UserError(
            f"The path of the folder {shown} is not UTF-8.", fix="rename the folder, or use another one"
        ) from None


def output_paths(environment: Mapping[str, str]) -> OutputPaths:
    """Return the output folders that the environment variables name.

    Raises:
        UserError: A variable is not set, or names a bucket that is not mounted.
    """
    missing = [name for name in OUTPUT_VARIABLES if not environment.get(name)]
    if missing:
        raise UserError(
            f"The job has no output folder: {' and '.join(missing)} not set.",
            fix=f"set the job's base output directory, or export {missing[0]}=FOLDER",
        )
    model, checkpoints, logs = (local_path(environment[name]) for name in OUTPUT_VARIABLES)
    variable = OUTPUT_VARIABLES[0]
    require_mount(
        environment[variable],
        variable,
        "on Vertex AI, run again, perhaps on another machine type, because what is written to the disk would be lost; "
        f"elsewhere, mount the bucket, or export {variable}=FOLDER",
    )
    return OutputPaths(model, checkpoints, logs)


def project(start: Path | None = None) -> Path | None:
    """Return the project's folder: the nearest of `start` and the folders above it with slipway.yaml or runs/latest.

    Args:
        start: An absolute path; by default, the current folder.
    """
    start = start or Path.cwd()
    for folder in (start, *start.parents):
        if (folder / "slipway.yaml").is_file() or (folder / "runs" / "latest").is_symlink():
            return folder
    return None


def in_project(path: Path) -> Path:
    """Return a relative path of the project, such as runs: from this folder or, as git does, from the project's."""
    if path.is_absolute() or path.exists():
        return path
    root = project()
    return root / path if root is not None and root != Path.cwd() and (root / path).exists() else path


def short(path: str) -> str:
    """Return `path` relative to the current folder if it is inside it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def cached(name: str) -> Path:
    """Return this user's file or folder for what can be made again, by its name."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "slipway" / name
