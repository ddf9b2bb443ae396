"""Importing TensorFlow in half the time.

Keras imports scikit-learn, matplotlib, pandas and SciPy wherever they are installed, for wrappers and pictures that
nothing here uses; they take longer to import than Keras itself.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys

# What Keras does without when it is missing.
_OPTIONAL = ("matplotlib", "pandas", "scipy", "sklearn")


def import_tensorflow() -> None:
    """Import tensorflow and keras, quietly; a later `import tensorflow` then costs nothing.

    The packages that are left out stay importable afterwards.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    hidden = [name for name in _OPTIONAL if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # makes `import name` raise ImportError
    try:
        importlib.import_module("tensorflow")
        importlib.import_module("keras")
    finally:
        for name in hidden:
            del sys.modules[name]
    for name in ("absl", "tensorflow"):
        logging.getLogger(name).setLevel(logging.ERROR)
