"""Import TensorFlow and Keras in half the time, with Keras on the engine's backend.

Keras imports scikit-learn, matplotlib, pandas and SciPy if they are installed, for wrappers and plots that are not used
here; they take longer to import than Keras itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator

# Optional dependencies of Keras.
_OPTIONAL = ("matplotlib", "pandas", "scipy", "sklearn")
# The libraries that each engine imports, for messages.
LIBRARIES = {"tensorflow": "TensorFlow", "jax": "JAX and TensorFlow", "pytorch": "PyTorch and TensorFlow"}
# By engine: the Keras backend's name and its module.
_BACKENDS = {
    "tensorflow": ("tensorflow", "tensorflow"),
    "jax": ("jax", "jax.experimental.sparse"),
    "pytorch": ("torch", "torch"),
}


def import_tensorflow(engine: str = "tensorflow", *, keras: bool = True) -> None:
    """Import tensorflow (which reads the data for every engine) and keras without log output; can be called repeatedly.

    Keras fixes its backend on first import: this sets the engine's, overriding the environment and ~/.keras. The
    skipped packages remain importable afterwards. A process that only runs SavedModels does not need `keras`.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # PyTorch's threads wait for each other by spinning, unless configured otherwise before the import. If another
    # process occupies a core, the other threads waste theirs: small steps took 15 times as long on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    backend, library = _BACKENDS[engine]
    if "keras" in sys.modules:
        _check_backend(backend)
    os.environ["KERAS_BACKEND"] = backend
    if engine == "pytorch":
        import_triton()
    if library != "tensorflow":
        importlib.import_module(library)  # before hiding the optional packages: JAX requires SciPy
    with _hidden(_OPTIONAL), _uncollected():
        importlib.import_module("tensorflow")
        if keras:
            importlib.import_module("keras")
    for name in ("absl", "tensorflow"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextlib.contextmanager
def _hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Make these modules unimportable within the context, unless already imported."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # makes `import name` raise ImportError
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection within the context, and exclude the objects created in it from later collections.

    The million objects of TensorFlow's modules live as long as the process. Traversing them takes a fifth of the import
    time, and a tenth of a second in every full collection afterwards.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def import_triton() -> None:
    """Import Triton (part of PyTorch's GPU builds), unless TensorFlow is already imported.

    PyTorch imports it lazily. After TensorFlow (2.20 and later) that crashes with SIGSEGV, since TensorFlow exports its
    LLVM symbols: https://github.com/tensorflow/tensorflow/issues/124205
    """
    if "tensorflow" not in sys.modules and importlib.util.find_spec("triton") is not None:
        importlib.import_module("triton")


def _check_backend(backend: str) -> None:
    found = importlib.import_module("keras").backend.backend()
    if found != backend:
        raise RuntimeError(f"keras is already imported on {found}; the backend {backend} requires a new process")
