"""The tasks of the steps on Kubeflow."""

from __future__ import annotations

from collections.abc import Mapping

from slipway.pipelines.step import EVALUATE, Task

TASKS: Mapping[str, tuple[Task, ...]] = {"evaluate": (Task("find-champion-folder", concurrent=True), EVALUATE)}
