"""Which installed packages engines and commands need; nothing is imported to find out."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass

from slipway.core.errors import UserError

# What each extra installs, by the modules that are imported. Docker's client has no extra.
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
    """What an engine needs: the extra of the package that installs it, and the modules that it imports."""

    extra: str
    modules: tuple[str, ...]


# TensorFlow reads the data for every engine.
NEEDS = {
    "tensorflow": Needs("training", ("tensorflow", "keras")),
    "jax": Needs("jax", ("tensorflow", "keras", "jax", "jaxlib")),
    "pytorch": Needs("pytorch", ("tensorflow", "keras", "torch")),
}


def verify(engine: str) -> None:
    """Check that the engine's libraries are there.

    Raises:
        UserError: One is not; with the command that installs it.
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
            allowed=f"installed here: {', '.join(there)}" if there else "none is installed here",
            fix=f"pip install 'slipway[{needs.extra}]'",
        )


def verify_extra(extra: str) -> None:
    """Check that everything that an extra of the package installs is there.

    Raises:
        UserError: A module is missing; with the command that installs the extra.
    """
    missing = [name for name in EXTRAS[extra] if not _is_there(name)]
    if missing:
        raise _not_installed(missing, f"'slipway[{extra}]'")


def verify_docker() -> None:
    """Check that Docker's client is there.

    Raises:
        UserError: It is not; with the command that installs it.
    """
    if not _is_there(DOCKER):
        raise _not_installed([DOCKER], DOCKER)


def missing_extra(error: ImportError) -> UserError | None:
    """The error of an import that failed because an extra is not installed; None for any other import."""
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
    except ModuleNotFoundError:  # the package that the module is in
        return False
