"""A pipeline's tasks in real containers; kfp resolves their arguments and outputs, as it does locally.

kfp.local's DockerRunner runs one task at a time, prints the containers' output and does not support buckets. Here,
paths are those of a bucket that is mounted at /gcs, as on Vertex AI.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.cloud import aiplatform_v1 as vertex
from google.protobuf import json_format
from kfp import dsl
from kfp.dsl.executor import create_artifact_instance
from kfp.local import executor_input_utils, executor_output_utils, placeholder_utils
from kfp.pipeline_spec.pipeline_spec_pb2 import ComponentSpec, ExecutorInput

from slipway.core.paths import local_path
from slipway.core.values import whole_numbers
from tests.fakes.containers import Container
from tests.fakes.vertex.jobs import ENDED, JobService
from tests.fakes.vertex.script import Failure
from tests.fakes.vertex.steps import StepFailed, account_of, parent_of, root_of, step_job
from tests.fakes.vertex.task import Task
from tests.fakes.vertex.work import Ended

if TYPE_CHECKING:
    from tests.fakes.vertex.containers import Containers

REPLICA = "workerpool0-0"
RESOURCES = "gcp_resources"
PATH = re.compile(r"\{\{\$\.(inputs|outputs)\.artifacts\['([^']+)'\]\.path\}\}")


class ContainerSteps:
    """The tasks of one pipeline job."""

    def __init__(self, containers: Containers, pipeline: vertex.PipelineJob, jobs: JobService) -> None:
        self._containers = containers
        self._pipeline = pipeline
        self._jobs = jobs
        self._told: dict[str, ExecutorInput] = {}

    def launch(
        self,
        task: Task,
        container: Mapping[str, Any],
        inputs: Mapping[str, Any],
        artifacts: Mapping[str, vertex.Artifact],
    ) -> None:
        told = self._executor_input(task, inputs, artifacts)
        self._told[task.detail.task_id] = told
        account = account_of(self._pipeline)
        environment = {one["name"]: one.get("value", "") for one in container.get("env", [])}
        work = StepContainer(self._containers, container["image"], self._command(task, container, told), environment)
        job = step_job(container, account)
        task.job = self._jobs.create(parent_of(self._pipeline), job, account, work, of_pipeline=True).name
        task.work = work.thread

    def advance(self, task: Task) -> bool:
        followed = self._jobs.advance(task.job)
        # A launcher's job is known before the launcher ends.
        resources = self._seen_here(self._told[task.detail.task_id]).outputs.parameters.get(RESOURCES)
        if resources is not None and (text := _content(Path(resources.output_file))):
            task.outputs[RESOURCES] = text
        if followed.state not in ENDED:
            return False
        if followed.state != vertex.JobState.JOB_STATE_SUCCEEDED:
            raise StepFailed(followed.error.message or f"The job {followed.name} was cancelled.")
        return True

    def finish(self, task: Task, inputs: Mapping[str, Any]) -> None:
        told = self._seen_here(self._told[task.detail.task_id])
        outputs = {  # an artifact that the container does not mention is as it was announced
            name: executor_output_utils.artifact_list_to_dsl_artifact(made, is_artifact_list=False)
            for name, made in told.outputs.artifacts.items()
        } | executor_output_utils.get_outputs_for_task(told, task.component)
        for name, value in outputs.items():
            if isinstance(value, dsl.Artifact):
                task.artifacts[name] = vertex.Artifact(
                    display_name=name,
                    uri=value.uri,
                    metadata=value.metadata,
                    schema_title=value.schema_title,
                    schema_version=value.schema_version,
                )
            else:
                task.outputs[name] = value

    def _executor_input(
        self, task: Task, inputs: Mapping[str, Any], artifacts: Mapping[str, vertex.Artifact]
    ) -> ExecutorInput:
        """Return the task's executor input: its inputs, and the URIs of its outputs."""
        root = f"{root_of(self._pipeline)}/{task.name}_{task.detail.task_id}"
        arguments = {**inputs, **{name: _as_dsl(name, artifact) for name, artifact in artifacts.items()}}
        component = ComponentSpec()
        component.CopyFrom(task.component)
        for name in set(component.input_definitions.parameters) - set(inputs):
            del component.input_definitions.parameters[name]  # an optional input without a value is absent
        told = executor_input_utils.construct_executor_input(component, arguments, root, block_input_artifact=False)
        _move_files(told, lambda path: str(local_path(path)))
        # A mounted bucket needs no folders to be made; this one is a folder.
        self._containers.mount.make_folder(Path(self._seen_here(told).outputs.output_file).parent)
        return told

    def _command(self, task: Task, container: Mapping[str, Any], told: ExecutorInput) -> list[str]:
        values = whole_numbers(executor_input_utils.executor_input_to_dict(told, task.component))

        def path(match: re.Match[str]) -> str:
            """Return the path of an artifact; kfp would give its URI."""
            found = (told.inputs if match[1] == "inputs" else told.outputs).artifacts[match[2]].artifacts
            return str(local_path(found[0].uri))

        command = [PATH.sub(path, part) for part in (*container.get("command", []), *container.get("args", []))]
        return placeholder_utils.replace_placeholders(
            command,
            values,
            pipeline_resource_name=self._pipeline.name.rpartition("/")[2],
            task_resource_name=task.name,
            pipeline_root=self._pipeline.runtime_config.gcs_output_directory,
            unique_pipeline_id=self._pipeline.name.split("/")[1],
        )

    def _seen_here(self, told: ExecutorInput) -> ExecutorInput:
        """Return the same with local file paths."""
        here = ExecutorInput()
        here.CopyFrom(told)
        _move_files(here, lambda path: str(self._containers.mount.folder / Path(path).relative_to("/gcs")))
        return here


class StepContainer:
    """The work of a task's job: one container, to its end."""

    def __init__(self, containers: Containers, image: str, command: list[str], environment: Mapping[str, str]) -> None:
        self._containers = containers
        self._image = image
        self._command = command
        self._environment = environment
        self._container: Container | None = None
        self._stopping = False
        self._ended: Ended | None = None
        self._job = ""
        self.thread = threading.Thread(target=self._run, daemon=True)

    def check(self) -> None:
        """Do nothing: every valid job is accepted."""

    def start(self, job: vertex.CustomJob) -> None:
        self._job = job.name
        self.thread.start()

    def look(self) -> Ended | None:
        return self._ended

    def stop(self) -> None:
        self._stopping = True
        if self._container is not None:
            threading.Thread(target=self._container.stop, daemon=True).start()

    def _run(self) -> None:
        try:
            self._container = self._containers.start(
                self._image, self._command, environment=self._environment, labels={}, job=self._job, replica=REPLICA
            )
            if self._stopping:
                self.stop()
            code = self._container.wait().code
        except Exception as error:
            self._ended = Ended(Failure(f"Internal error occurred for the current attempt: {error!r}", code=13))
            return
        self._ended = Ended(
            Failure(f"The replica {REPLICA} exited with a non-zero status of {code}.") if code else None
        )


def _move_files(told: ExecutorInput, moved: Any) -> None:
    for parameter in told.outputs.parameters.values():
        parameter.output_file = moved(parameter.output_file)
    told.outputs.output_file = moved(told.outputs.output_file)


def _as_dsl(name: str, artifact: vertex.Artifact) -> dsl.Artifact:
    """Return an artifact in kfp's format."""
    made: dsl.Artifact = create_artifact_instance(
        {
            "name": name,
            "uri": artifact.uri,
            "metadata": json_format.MessageToDict(vertex.Artifact.pb(artifact).metadata),
            "type": {"schemaTitle": artifact.schema_title, "schemaVersion": artifact.schema_version},
        }
    )
    return made


def _content(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
