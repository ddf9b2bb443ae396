"""Slipway: from a data set to a trained, evaluated, registered and served model.

    import slipway

    run = slipway.run("slipway.yaml", {"train.epochs": 8})
    run.verdict, run.metrics["accuracy"]
    slipway.model("digits").predict(images)

Everything is imported when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipway.pipelines.api.existing import Rejected, Run, RunFailed, Runs
    from slipway.pipelines.api.functions import (
        CrossValidation,
        check,
        cross_validate,
        model,
        rehearse,
        run,
        runs,
    )
    from slipway.pipelines.api.models import Model
    from slipway.pipelines.api.notebook import Report

__all__ = [
    "CrossValidation", "Model", "Rejected", "Report", "Run", "RunFailed", "Runs",
    "check", "cross_validate", "model", "rehearse", "run", "runs",
]  # fmt: skip
# The modules of the other classes; what is not named here is in `functions`.
_MODULES = {
    "Model": "models",
    "Rejected": "existing",
    "Report": "notebook",
    "Run": "existing",
    "RunFailed": "existing",
    "Runs": "existing",
}
# `from slipway import steps` asks for the attribute before it imports the module.
_MODULE_NAMES = ("extensions", "steps", "training")


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(f"slipway.pipelines.api.{_MODULES.get(name, 'functions')}"), name)
    if name not in _MODULE_NAMES and name in (added := _added()):
        return importlib.import_module("slipway.extensions").load(added[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_added()]


def _added() -> dict[str, str]:
    """Return the references of what extensions offer here, by name."""
    rows = importlib.import_module("slipway.extensions").installed()
    return {name: reference for row in rows for name, reference in row.functions.items()}
