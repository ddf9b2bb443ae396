"""Import TensorFlow and Keras in half the time, with Keras on the engine's backend.

Keras imports scikit-learn, matplotlib, pandas and SciPy if they are installed, for wrappers and plots that are not used
here; they take longer to import than Keras itself. TensorFlow imports Google's API client to find Compute Engine
clusters, which are described by variables here.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from slipway.trainer.distributed.accelerators import find
from slipway.trainer.engines.installed import is_installed
from slipway.trainer.engines.table import ENGINES, PLUGGABLE_VARIABLE

# Optional dependencies of Keras and TensorFlow.
_OPTIONAL = ("googleapiclient", "matplotlib", "pandas", "scipy", "sklearn")
# Where libtpu.so lies, for TensorFlow with PLUGGABLE_VARIABLE; it reads both on import.
_PLUGGABLE_PATH = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"


_plain = False


def use_plain_imports() -> None:
    """From now on, import without what saves time only in a process of Slipway's own.

    In a notebook or a user's program, hidden packages would be missing from Keras, objects that were excluded from
    garbage collection would never be freed, and variables and log levels are the user's.
    """
    global _plain
    _plain = True


def import_tensorflow(engine: str = "tensorflow", *, keras: bool = True) -> None:
    """Import tensorflow (which reads the data for every engine) and keras without log output; can be called repeatedly.

    Keras fixes its backend on first import: this sets the engine's, overriding the environment and ~/.keras. The
    skipped packages remain importable afterwards. A process that only runs SavedModels does not need `keras`.
    """
    if _plain:
        for name in (*ENGINES[engine].imported_first, "tensorflow", *(["keras"] if keras else [])):
            importlib.import_module(name)
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # PyTorch's threads wait for each other by spinning, unless configured otherwise before the import. If another
    # process occupies a core, the other threads waste theirs: small steps took 15 times as long on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    row, libtpu = ENGINES[engine], importlib.util.find_spec("libtpu")
    if libtpu and find(os.environ).kind in ("cpu", "virtual"):
        # It was installed to compile for TPUs: JAX would look for one, and write errors.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if keras:
        if "keras" in sys.modules:
            backend = importlib.import_module("keras").backend.backend()
            if backend != row.keras_backend:
                raise RuntimeError(f"keras is already imported on {backend}; {engine} requires a new process")
        os.environ["KERAS_BACKEND"] = row.keras_backend
    if os.environ.get(PLUGGABLE_VARIABLE) and libtpu and libtpu.origin:
        os.environ.setdefault(_PLUGGABLE_PATH, str(Path(libtpu.origin).with_name("libtpu.so")))
    _import_if_installed(row.imported_first_if_installed)
    for name in row.imported_first:
        importlib.import_module(name)  # before hiding the optional packages: JAX requires SciPy
    with _hidden(_OPTIONAL), _uncollected():
        importlib.import_module("tensorflow")
        if keras:
            importlib.import_module("keras")
    for name in ("absl", "tensorflow"):
        logging.getLogger(name).setLevel(logging.ERROR)


def let_tensorflow_only_read() -> None:
    """Leave the accelerators to another library; without effect once TensorFlow has used them.

    Images are decoded on all cores at once: dividing each one's operations among threads as well took 1.4 times the
    CPU time for images that are resized (benchmarks/README.md).
    """
    tensorflow = importlib.import_module("tensorflow")
    for kind in ("GPU", "TPU"):
        with contextlib.suppress(ValueError, RuntimeError):
            tensorflow.config.set_visible_devices([], kind)
    with contextlib.suppress(RuntimeError):
        tensorflow.config.threading.set_intra_op_parallelism_threads(1)


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


def import_before_tensorflow() -> None:
    """Import the optional modules that any engine must import before TensorFlow, unless TensorFlow is imported."""
    for row in ENGINES.values():
        _import_if_installed(row.imported_first_if_installed)


def _import_if_installed(names: tuple[str, ...]) -> None:
    for name in names:
        if "tensorflow" not in sys.modules and is_installed(name):
            importlib.import_module(name)
