"""The platforms that a run executes on."""

from __future__ import annotations

import importlib
from typing import Any

REMOTE = ("vertex", "kubeflow")


def remote(platform: str) -> Any | None:
    """What the command line does with runs of a platform that is not this machine; None where it is.

    A module with `start`, `resume`, `watch`, `current`, `log_lines` and `cancel`.
    """
    return importlib.import_module(f"slipway.pipelines.platforms.{platform}.commands") if platform in REMOTE else None
