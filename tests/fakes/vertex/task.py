"""One task of a running pipeline job."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from google.cloud import aiplatform_v1 as vertex
from kfp.pipeline_spec.pipeline_spec_pb2 import ComponentSpec, PipelineTaskSpec

State = vertex.PipelineTaskDetail.State
ALL_COMPLETED = PipelineTaskSpec.TriggerPolicy.ALL_UPSTREAM_TASKS_COMPLETED
ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.SKIPPED, State.NOT_TRIGGERED)


@dataclass
class Task:
    """`scope` is the DAG that it is in, by the path of its parents' names.

    `outputs` are its output parameters and `artifacts` its output artifacts, by name, as far as they are known; `job`
    is the job of its container, `child` the one that its launcher made, `work` what it does in the background.
    """

    name: str
    scope: tuple[str, ...]
    spec: PipelineTaskSpec
    component: ComponentSpec
    detail: vertex.PipelineTaskDetail
    outputs: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, vertex.Artifact] = field(default_factory=dict)
    job: str = ""
    retries: int = 0
    child: str = ""
    work: threading.Thread | None = None

    @property
    def is_exit(self) -> bool:
        """Whether it runs when its upstream tasks have ended, whatever their outcome."""
        return bool(self.spec.trigger_policy.strategy == ALL_COMPLETED)

    @property
    def is_busy(self) -> bool:
        """Whether its work continues in the background."""
        return self.work is not None and self.work.is_alive()
