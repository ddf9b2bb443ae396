"""The forms in which the service may store a pipeline spec: parsed, and printed again by its own rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.cloud import aiplatform_v1 as vertex
from google.protobuf import json_format
from google.protobuf.message import Message
from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineDeploymentConfig

from tests.fakes.vertex.pipeline_checks import specification_of

Policy = vertex.PipelineFailurePolicy


@dataclass(frozen=True)
class Stored:
    """How a PipelineJob is stored. Which of it the service does is not documented; by default, it drops the defaults.

    Attributes:
        snake_case: Names of fields as in the proto file.
        numbers: Enums as numbers.
        defaults: Fields with their default values are written out.
        filled: The failure policy and the billing label are filled in.
    """

    snake_case: bool = False
    numbers: bool = False
    defaults: bool = False
    filled: bool = True

    def job(self, job: vertex.PipelineJob) -> vertex.PipelineJob:
        """Return the stored form of a job."""
        stored = vertex.PipelineJob(job)
        specification = specification_of(job)
        deployment = json_format.ParseDict(
            json_format.MessageToDict(specification.deployment_spec), PipelineDeploymentConfig()
        )
        json_format.ParseDict(self._printed(deployment), specification.deployment_spec)
        stored.pipeline_spec = self._printed(specification)
        if self.filled:
            stored.labels["vertex-ai-pipelines-run-billing-id"] = "1234567890"
            stored.runtime_config.failure_policy = (
                job.runtime_config.failure_policy or Policy.PIPELINE_FAILURE_POLICY_FAIL_SLOW
            )
        return stored

    def _printed(self, message: Message) -> dict[str, Any]:
        return json_format.MessageToDict(
            message,
            preserving_proto_field_name=self.snake_case,
            use_integers_for_enums=self.numbers,
            always_print_fields_with_no_presence=self.defaults,
        )
