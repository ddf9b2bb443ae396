"""What a run was made with: the commit of the project's code, Python, the processor, and the versions of packages."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from pathlib import Path

from slipway.components.build_image.project import git_commit
from slipway.core.values import JsonObject
from slipway.trainer.engines.installed import DISTRIBUTION

FILE_NAME = "provenance.json"
# The packages on which data and weights depend.
PACKAGES = (DISTRIBUTION, "tensorflow", "keras", "jax", "torch", "numpy", "pyarrow", "pillow", "simplejpeg")


def of_here() -> JsonObject:
    """Return what a run that starts now on this machine is made with."""
    return {
        "commit": git_commit(Path.cwd()),
        "python": platform.python_version(),
        "processor": _processor(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def read(folder: Path) -> JsonObject:
    """Return what the run in `folder` was made with; {} if it is not known."""
    try:
        found: JsonObject = json.loads((folder / FILE_NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """Return the processor's name."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(errors="replace").splitlines() if information.is_file() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
