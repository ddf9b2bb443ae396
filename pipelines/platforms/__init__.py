"""The platforms on which a run executes."""

from __future__ import annotations

import importlib
from typing import Any

REMOTE = ("vertex", "kubeflow")


def remote(platform: str) -> Any | None:
    """Return the module with the commands of a remote platform; None for the local one.

    The module has `start`, `resume`, `watch`, `current`, `log_lines` and `cancel`.
    """
    return importlib.import_module(f"slipway.pipelines.platforms.{platform}.commands") if platform in REMOTE else None
