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
    from slipway.pipelines.api.errors import Rejected, RunFailed
    from slipway.pipelines.api.existing import Run, Runs
    from slipway.pipelines.api.functions import (
        CrossValidation,
        check,
        compare,
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
    "check", "compare", "cross_validate", "model", "rehearse", "run", "runs",
]  # fmt: skip
# The modules of the other classes; what is not named here is in `functions`.
_MODULES = {
    "Model": "models",
    "Rejected": "errors",
    "Report": "notebook",
    "Run": "existing",
    "RunFailed": "errors",
    "Runs": "existing",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"slipway.pipelines.api.{_MODULES.get(name, 'functions')}"), name)


def __dir__() -> list[str]:
    return __all__
