"""The tasks of the steps of runs that train on Cloud TPU VMs: the image is built before the pipeline."""

from __future__ import annotations

from collections.abc import Mapping

from slipway.pipelines.step import Task

TASKS: Mapping[str, tuple[Task, ...]] = {"build_image": ()}
