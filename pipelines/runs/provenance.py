"""What a run was made with: the project's commit and files, Python, the processor, and the versions of packages."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.core.cores import available_cores
from slipway.core.values import JsonObject, leaves

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig

FILE_NAME = "provenance.json"
# The packages on which data and weights depend.
PACKAGES = ("tensorflow", "keras", "jax", "torch", "numpy", "pyarrow", "pillow", "simplejpeg", "cykooz-resizer")
MAX_NAME = 250  # no file system has longer names
MODULE = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_]\w*)?")  # with a function


def of_here(config: RunConfig) -> JsonObject:
    """Return what a run that starts now on this machine is made with."""
    import hashlib  # light commands only read this file

    from slipway.core.git import git_commit
    from slipway.trainer.engines.installed import DISTRIBUTION

    return {
        "commit": git_commit(Path.cwd()),
        "files": {str(path): hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in _files(config)},
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": available_cores(),
        "packages": {name: version for name in (DISTRIBUTION, *PACKAGES) if (version := version_of(name))},
    }


def read(folder: Path) -> JsonObject:
    """Return what the run in `folder` was made with; {} if it is not known."""
    try:
        provenance: JsonObject = json.loads((folder / FILE_NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return provenance


def _files(config: RunConfig) -> list[Path]:
    """Return the project's files that the configuration names: modules, such as that of model.builder, and weights."""
    texts = [value for _, value in leaves(config.model_dump(mode="json")) if isinstance(value, str)]
    modules = [text.partition(":")[0] for text in texts if len(text) < MAX_NAME and MODULE.fullmatch(text)]
    files = [Path(*module.split(".")).with_suffix(".py") for module in modules]
    if config.model is not None and config.model.weights is not None:
        files.append(Path(config.model.weights.file))
    return sorted({path for path in files if path.is_file()})


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text(errors="replace").splitlines() if information.is_file() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
