"""The service's validation of a PipelineJob, with its error messages."""

from __future__ import annotations

from typing import Any

from google.cloud import aiplatform_v1 as vertex
from google.protobuf import json_format
from kfp.pipeline_spec.pipeline_spec_pb2 import ParameterType, PipelineSpec

from tests.fakes.errors import ServiceError
from tests.fakes.vertex.shapes import (
    JOB_ID,
    check_act_as,
    check_display_name,
    check_key,
    check_labels,
    check_network,
    check_object,
    invalid,
)
from tests.fakes.world import Project, World

OBJECT_RIGHTS = ("storage.objects.get", "storage.objects.create")
KINDS: dict[int, tuple[type, ...]] = {
    ParameterType.STRING: (str,),
    ParameterType.BOOLEAN: (bool,),
    ParameterType.NUMBER_INTEGER: (int, float),
    ParameterType.NUMBER_DOUBLE: (int, float),
    ParameterType.LIST: (list,),
    ParameterType.STRUCT: (dict,),
}


def check_pipeline_job(world: World, project: Project, job: vertex.PipelineJob, job_id: str, caller: str) -> None:
    """Raise CreatePipelineJob's error for an invalid job."""
    world.require(caller, "aiplatform.pipelineJobs.create", f"projects/{project.id}")
    if job_id and not JOB_ID.fullmatch(job_id):
        raise invalid(f"Invalid pipeline_job_id {job_id!r}: it must match the regex [a-z][-a-z0-9]{{0,127}}.")
    check_display_name(job.display_name)
    check_labels(job.labels)
    check_network(job.network)
    check_key(world, project, job.encryption_spec.kms_key_name)
    specification = specification_of(job)
    check_specification(specification)
    check_parameters(specification, job)
    bucket = check_object(job.runtime_config.gcs_output_directory, "gcs_output_directory")
    agent = f"service-{project.number}@gcp-sa-aiplatform.iam.gserviceaccount.com"
    if agent not in world.accounts:
        raise ServiceError(
            400,
            "Service agents are being provisioned (https://cloud.google.com/vertex-ai/docs/general/access-control"
            "#service-agents). Service agents are needed to read the Cloud Storage file provided. So please try again "
            "in a few minutes.",
            reason="FAILED_PRECONDITION",
        )
    account = job.service_account or f"{project.number}-compute@developer.gserviceaccount.com"
    check_act_as(world, project, caller, account)
    lacking = [
        right
        for right in OBJECT_RIGHTS
        if not world.allowed(account, right, f"buckets/{bucket}", f"projects/{project.id}")
    ]
    if lacking or bucket not in world.buckets:
        raise ServiceError(
            400,
            f"Failed to create pipeline job. Error: Service account `{account}` does not have "
            f"`[{', '.join(lacking or OBJECT_RIGHTS)}]` IAM permission(s) to the bucket `{bucket}`. Please either copy "
            "the files to the Google Cloud Storage bucket owned by your project, or grant the required IAM "
            "permission(s) to the service account.",
            reason="FAILED_PRECONDITION",
        )


def specification_of(job: vertex.PipelineJob) -> PipelineSpec:
    """Return a job's parsed pipeline spec.

    Raises:
        ServiceError: It is no pipeline spec.
    """
    values = json_format.MessageToDict(vertex.PipelineJob.pb(job).pipeline_spec)
    try:
        return json_format.ParseDict(values, PipelineSpec(), ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise invalid(f"Failed to parse the pipeline spec: {error}") from None


def check_specification(specification: PipelineSpec) -> None:
    """Check references: every task has a component, every component an executor or a DAG."""
    if specification.schema_version != "2.1.0" or not specification.pipeline_info.name:
        raise invalid("The pipeline spec has no pipelineInfo.name, or a schemaVersion that is not supported.")
    executors = specification.deployment_spec.fields["executors"].struct_value.fields
    components = specification.components
    for name, component in [("root", specification.root), *components.items()]:
        for task in component.dag.tasks.values():
            if task.component_ref.name not in components:
                raise invalid(f"The task {task.task_info.name} of {name} refers to no component.")
        label = component.executor_label
        if label and label not in executors:
            raise invalid(f"The component {name} refers to the executor {label}, which is not there.")


def check_parameters(specification: PipelineSpec, job: vertex.PipelineJob) -> None:
    """Check that the runtime parameters match the pipeline's names and types, and that none is missing."""
    defined = specification.root.input_definitions.parameters
    given = parameters_of(job)
    for name, value in given.items():
        if name not in defined:
            raise invalid(f"The input parameter {name} is not defined in the pipeline.")
        if not is_of_type(value, defined[name].parameter_type):
            raise invalid(f"The input parameter {name} has a value of the wrong type: {value!r}.")
    for name, definition in defined.items():
        if name not in given and not definition.is_optional and not definition.HasField("default_value"):
            raise invalid(f"The input parameter {name} is required and has no value.")


def is_of_type(value: Any, kind: int) -> bool:
    """Return whether a value is of a parameter's type. An integer may be any number: JSON has only one kind."""
    return isinstance(value, KINDS[kind]) and (not isinstance(value, bool) or kind == ParameterType.BOOLEAN)


def parameters_of(job: vertex.PipelineJob) -> dict[str, Any]:
    """Return a job's runtime parameters as plain values."""
    values = vertex.PipelineJob.pb(job).runtime_config.parameter_values
    return {name: json_format.MessageToDict(value) for name, value in values.items()}
