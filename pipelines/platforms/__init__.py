"""The platforms that a run executes on."""

from __future__ import annotations

import importlib
from typing import Any

REMOTE = ("kubeflow",)


def remote(platform: str) -> Any | None:
    """What the command line does with runs of a platform that is not this machine; None where it is.

    A module with `start`, `refresh`, `follow`, `cancel` and `where_logs_are`; see the kubeflow platform's `command`.
    """
    return importlib.import_module(f"pipelines.platforms.{platform}.command") if platform in REMOTE else None
