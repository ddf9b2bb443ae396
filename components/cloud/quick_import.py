"""Import Google's modules, those of Vertex AI without the clients of all its other services.

`google.cloud.aiplatform_v1` imports some thirty clients, and its `types` the messages of all of them: two thirds of the
seconds that a light command of the cloud takes.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from types import ModuleType
from typing import Any

VERTEX = re.compile(r"google\.cloud\.aiplatform_v1(beta1)?\b")
SERVICES = "google.cloud.aiplatform_v1.services"
TYPES = "google.cloud.aiplatform_v1.types"


def import_module(name: str) -> Any:
    """Return a module, such as google.cloud.aiplatform_v1.types.pipeline_job.

    The packages of Vertex AI import a module when it is asked for, and everything as soon as another name is.
    """
    if vertex := VERTEX.match(name):
        for package in (vertex[0], f"{vertex[0]}.services", f"{vertex[0]}.types"):
            if package not in sys.modules:
                _add_package(package)
    return importlib.import_module(name)


def _add_package(name: str) -> None:
    """Add a package whose own code runs when it is asked for a name that is none of its modules."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package, loader = importlib.util.module_from_spec(spec), spec.loader

    def find(attribute: str) -> Any:
        if (module := _module(f"{name}.{attribute}")) is not None:
            return module
        if package.__dict__.pop("__getattr__", None) is not None:
            loader.exec_module(package)
            return getattr(package, attribute)
        raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

    package.__getattr__ = find  # type: ignore[method-assign]
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    setattr(sys.modules[parent], child, package)


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None
