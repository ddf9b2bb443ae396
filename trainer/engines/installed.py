"""Check that the packages that engines and commands need are installed, without importing them."""

from __future__ import annotations

import importlib.util
import sys

from slipway.core.errors import UserError
from slipway.trainer.engines.table import ENGINES, READERS

# The distribution; `slipway` on the package index belongs to another project.
DISTRIBUTION = "slipway-ml"
# The importable modules that the distribution installs without extras (NO_EXTRA), and that each extra installs besides
# the engines' extras; only those that some command does without.
NO_EXTRA = ""
_EXTRAS = {
    NO_EXTRA: (
        "cryptography", "docker", "google_crc32c", "importlib_resources", "keras", "matplotlib", "numpy", "packaging",
        "PIL", "pyarrow", "scipy", "simplejpeg", "sklearn", "tensorflow", "tensorflow_datasets",
    ),
    "cloud": (
        "cronsim", "google_auth_httplib2", "googleapiclient", "google.cloud.aiplatform",
        "google.cloud.bigquery_storage_v1", "google_cloud_pipeline_components", "httplib2", "tenacity",
    ),
    "beam": ("apache_beam",),
    "compile-gpu": ("jax_cuda12_plugin", "jax_plugins"),
    "compile-tpu": ("libtpu",),
    "heic": ("pillow_heif",),
    "huggingface": ("huggingface_hub",),
    "mcp": ("mcp",),
    "notebook": ("pandas",),
    "serving": ("httptools", "prometheus_client", "starlette", "uvicorn", "uvloop"),
    "trees": ("lightgbm",),
    "tune": ("optuna",),
}  # fmt: skip


def extras() -> dict[str, tuple[str, ...]]:
    """Return the importable modules that each extra installs, and those of the distribution without extras."""
    return {row.extra: row.modules for row in ENGINES.values()} | _EXTRAS


def package(extra: str) -> str:
    """Return what `pip install` installs an extra with, quoted for a shell."""
    return f"'{DISTRIBUTION}[{extra}]'" if extra else DISTRIBUTION


def verify(engine: str) -> None:
    """Check that the engine's libraries are installed.

    Raises:
        UserError: One is missing; contains the command that installs it.
    """
    missing = _missing(engine)
    if missing:
        there = [name for name in ENGINES if not _missing(name)]
        raise UserError(
            f"The engine {engine} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            f"installed.",
            setting="train.engine",
            value=engine,
            allowed=f"installed engines: {', '.join(there)}" if there else "no engine is installed",
            fix=f"pip install {package(ENGINES[engine].extra)}",
        )


def _missing(engine: str) -> list[str]:
    return [name for name in (*READERS, *ENGINES[engine].modules) if not is_installed(name)]


def verify_extra(extra: str) -> None:
    """Check that everything in an extra, or in the distribution without extras, is installed.

    Raises:
        UserError: A module is missing; contains the command that installs it.
    """
    missing = _missing_modules(extra)
    if missing:
        raise _not_installed(missing, extra)


def is_extra_installed(extra: str) -> bool:
    """Return whether everything in an extra is installed."""
    return not _missing_modules(extra)


def _missing_modules(extra: str) -> list[str]:
    return [name for name in extras()[extra] if not is_installed(name)]


def missing_extra(error: ImportError) -> UserError | None:
    """Return the UserError for an import that failed because a package is missing; None for any other import."""
    name = error.name or ""
    for extra, modules in extras().items():
        if any(f"{name}.".startswith(f"{module}.") for module in modules):
            return _not_installed([name], extra)
    return None


def _not_installed(modules: list[str], extra: str) -> UserError:
    single = len(modules) == 1
    return UserError(
        f"The Python package{'' if single else 's'} {', '.join(modules)} {'is' if single else 'are'} not installed.",
        fix=f"pip install {package(extra)}",
    )


def is_installed(module: str) -> bool:
    """Return whether a module can be imported."""
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
