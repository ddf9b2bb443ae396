"""The features of pipeline specs that the fake Vertex AI does not run, though the service does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec.pipeline_spec_pb2 import ComponentSpec, PipelineSpec, PipelineTaskSpec

CONDITION = re.compile(r"inputs\.parameter_values\['([^']+)'\] == '([^']*)'")
PARAMETERS = ("runtime_value", "component_input_parameter", "task_output_parameter", "task_final_status")
ARTIFACTS = ("task_output_artifact", "component_input_artifact")


def check_features(specification: PipelineSpec) -> None:
    """Raise NotImplementedError for a pipeline that the fake would run wrongly; it names the features."""
    found = sorted(set(_features(specification)))
    if found:
        raise NotImplementedError(f"The fake Vertex AI does not run: {', '.join(found)}.")


def _features(specification: PipelineSpec) -> Iterator[str]:
    for component in (specification.root, *specification.components.values()):
        yield from _of_component(component)
        for task in component.dag.tasks.values():
            yield from _of_task(task)
    for executor in json_format.MessageToDict(specification.deployment_spec)["executors"].values():
        if "container" not in executor:
            yield f"executors of the kind {next(iter(executor))}"
        elif "accelerator" in executor["container"].get("resources", {}):
            yield "accelerators of a step"
        elif '{"Concat": ' in str(executor) or '{"IfPresent": ' in str(executor):
            yield "the placeholders Concat and IfPresent"
        if "{{$.workspace_path}}" in str(executor):
            yield "workspaces"


def _of_component(component: ComponentSpec) -> Iterator[str]:
    if any(one.is_artifact_list for one in component.input_definitions.artifacts.values()):
        yield "lists of artifacts"
    if component.dag.outputs.parameters or component.dag.outputs.artifacts:
        yield "outputs of a pipeline"


def _of_task(task: PipelineTaskSpec) -> Iterator[str]:
    if task.WhichOneof("iterator"):
        yield "loops"
    condition = task.trigger_policy.condition
    if condition and not CONDITION.fullmatch(condition):
        yield "conditions other than the equality with a text"
    inputs: list[tuple[Any, tuple[str, ...]]] = [(one, PARAMETERS) for one in task.inputs.parameters.values()]
    inputs += [(one, ARTIFACTS) for one in task.inputs.artifacts.values()]
    for one, kinds in inputs:
        if one.WhichOneof("kind") not in kinds or getattr(one, "parameter_expression_selector", ""):
            yield "inputs from a part of a value"
