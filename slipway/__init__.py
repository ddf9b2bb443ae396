"""Slipway: from a data set to a trained, evaluated, registered and served model.

    import slipway

    run = slipway.run("slipway.yaml", {"train.epochs": 8})
    run.verdict, run.metrics["accuracy"]
    slipway.model("digits").predict(images)

Everything is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipway.pipelines.api import (
        Model,
        Rejected,
        Report,
        Run,
        RunFailed,
        Runs,
        check,
        model,
        rehearse,
        run,
        runs,
    )

__all__ = ["Model", "Rejected", "Report", "Run", "RunFailed", "Runs", "check", "model", "rehearse", "run", "runs"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from slipway.pipelines import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return __all__
