"""Importing TensorFlow and Keras in half the time, Keras on what the engine computes with.

Keras imports scikit-learn, matplotlib, pandas and SciPy wherever they are installed, for wrappers and pictures that
nothing here uses; they take longer to import than Keras itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator

# What Keras does without when it is missing.
_OPTIONAL = ("matplotlib", "pandas", "scipy", "sklearn")
# By engine: what is imported.
LIBRARIES = {"tensorflow": "TensorFlow", "jax": "JAX and TensorFlow", "pytorch": "PyTorch and TensorFlow"}
# By engine: Keras's name for what it computes with, and the module behind it.
_BACKENDS = {
    "tensorflow": ("tensorflow", "tensorflow"),
    "jax": ("jax", "jax.experimental.sparse"),
    "pytorch": ("torch", "torch"),
}


def import_tensorflow(engine: str = "tensorflow", *, keras: bool = True) -> None:
    """Import tensorflow (which reads the data for every engine) and keras, quietly; importing them again costs nothing.

    Keras takes its backend when it is first imported in a process, and keeps it: the engine's is chosen here, whatever
    the environment or ~/.keras says. The packages that are left out stay importable afterwards. A process that only
    runs SavedModels needs no `keras`.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # PyTorch's threads wait for each other by spinning, unless told otherwise before it is imported. Where other work
    # takes one's core, the rest burn theirs: small steps took 15 times as long on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    backend, library = _BACKENDS[engine]
    if "keras" in sys.modules:
        _check_backend(backend)
    os.environ["KERAS_BACKEND"] = backend
    if engine == "pytorch":
        import_triton()
    if library != "tensorflow":
        importlib.import_module(library)  # first: JAX itself cannot do without SciPy
    with _hidden(_OPTIONAL), _uncollected():
        importlib.import_module("tensorflow")
        if keras:
            importlib.import_module("keras")
    for name in ("absl", "tensorflow"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextlib.contextmanager
def _hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Within, these modules cannot be imported, unless they have been."""
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
    """Within, no garbage is collected; what is made within is never searched for garbage.

    The million objects of TensorFlow's modules live as long as the process. Searching them over and over takes a fifth
    of the time of the import, and a tenth of a second in every full collection afterwards.
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
    """Import Triton where PyTorch's builds for GPUs bring it along, and TensorFlow is not there yet.

    PyTorch imports it when it first needs it. After TensorFlow (from 2.20 on) that ends the process with SIGSEGV, since
    TensorFlow lets all others see its own LLVM: https://github.com/tensorflow/tensorflow/issues/124205
    """
    if "tensorflow" not in sys.modules and importlib.util.find_spec("triton") is not None:
        importlib.import_module("triton")


def _check_backend(backend: str) -> None:
    found = importlib.import_module("keras").backend.backend()
    if found != backend:
        raise RuntimeError(f"keras was imported on {found} before; {backend} is needed, which takes a new process")
