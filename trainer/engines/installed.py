"""Check that the packages that engines and commands need are installed, without importing them."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass

from slipway.core.errors import UserError

# The importable modules that each extra installs. Docker's client has no extra.
EXTRAS = {
    "training": (
        "google_crc32c", "importlib_resources", "keras", "matplotlib", "numpy", "PIL", "sklearn", "tensorflow",
        "tensorflow_datasets",
    ),
    "cloud": (
        "google_auth_httplib2", "googleapiclient", "google.cloud.aiplatform", "google_cloud_pipeline_components",
        "httplib2", "tenacity",
    ),
    "beam": ("apache_beam",),
    "jax": ("jax", "jaxlib"),
    "pytorch": ("torch",),
}  # fmt: skip
DOCKER = "docker"


@dataclass(frozen=True)
class Needs:
    """An engine's dependencies: the extra that installs them, and the modules that it imports."""

    extra: str
    modules: tuple[str, ...]


# TensorFlow reads the data for every engine.
NEEDS = {
    "tensorflow": Needs("training", ("tensorflow", "keras")),
    "jax": Needs("jax", ("tensorflow", "keras", "jax", "jaxlib")),
    "pytorch": Needs("pytorch", ("tensorflow", "keras", "torch")),
}


def verify(engine: str) -> None:
    """Check that the engine's libraries are installed.

    Raises:
        UserError: One is missing; contains the command that installs it.
    """
    needs = NEEDS[engine]
    missing = [name for name in needs.modules if not _is_there(name)]
    if missing:
        there = [name for name in NEEDS if all(map(_is_there, NEEDS[name].modules))]
        raise UserError(
            f"The engine {engine} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            f"installed.",
            setting="train.engine",
            value=engine,
            allowed=f"installed engines: {', '.join(there)}" if there else "no engine is installed",
            fix=f"pip install 'slipway[{needs.extra}]'",
        )


def verify_extra(extra: str) -> None:
    """Check that everything in an extra of the package is installed.

    Raises:
        UserError: A module is missing; contains the command that installs the extra.
    """
    missing = [name for name in EXTRAS[extra] if not _is_there(name)]
    if missing:
        raise _not_installed(missing, f"'slipway[{extra}]'")


def verify_docker() -> None:
    """Check that Docker's Python client is installed.

    Raises:
        UserError: It is missing; contains the command that installs it.
    """
    if not _is_there(DOCKER):
        raise _not_installed([DOCKER], DOCKER)


def missing_extra(error: ImportError) -> UserError | None:
    """Return the UserError for an import that failed because an extra is missing; None for any other import."""
    name = error.name or ""
    if name == DOCKER:
        return _not_installed([name], DOCKER)
    for extra, modules in EXTRAS.items():
        if any(f"{name}.".startswith(f"{module}.") for module in modules):
            return _not_installed([name], f"'slipway[{extra}]'")
    return None


def _not_installed(modules: list[str], package: str) -> UserError:
    one = len(modules) == 1
    return UserError(
        f"The Python package{'' if one else 's'} {', '.join(modules)} {'is' if one else 'are'} not installed.",
        fix=f"pip install {package}",
    )


def _is_there(module: str) -> bool:
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
