"""The execution cache of Vertex AI Pipelines: results of finished tasks, found by the task's interface, for ever."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from google.cloud import aiplatform_v1 as vertex
from google.protobuf import json_format

from tests.fakes.vertex.task import Task


class Cache:
    """Results by interface: pipeline name, input values and artifact ids, outputs, container.

    Source: cloud.google.com/vertex-ai/docs/pipelines/configure-caching. Values are compared as the spec has them, with
    their placeholders: the page does not say that `{{$.pipeline_job_name}}` is replaced before, and this is the worse
    of the two.
    """

    def __init__(self) -> None:
        self._results: dict[str, Task] = {}

    def take(self, key: str, task: Task) -> bool:
        """Give the task the result of an earlier one; return whether there is one and the task wants it."""
        earlier = self._results.get(key)
        if earlier is None or not task.spec.caching_options.enable_cache:
            return False
        task.outputs, task.artifacts = dict(earlier.outputs), dict(earlier.artifacts)
        return True

    def put(self, key: str, task: Task) -> None:
        """Store a finished task's result. Turning the cache off keeps a task from reading it, not from writing."""
        self._results.setdefault(key, task)


def key_of(
    pipeline: str,
    task: Task,
    container: Mapping[str, Any],
    inputs: Mapping[str, Any],
    artifacts: Mapping[str, vertex.Artifact],
) -> str:
    """Return a task's cache key."""
    outputs = json_format.MessageToDict(task.component.output_definitions)
    ids = {name: artifact.name for name, artifact in artifacts.items()}
    return json.dumps([pipeline, dict(container), dict(inputs), ids, outputs], sort_keys=True)
