"""A pipeline job that goes its way: its tasks start when what they need is there, make their jobs, end, or fail."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.cloud import aiplatform_v1 as vertex
from google.protobuf import json_format
from google.rpc import status_pb2
from kfp.pipeline_spec.pipeline_spec_pb2 import ComponentSpec, PipelineSpec, PipelineTaskSpec

from tests.fakes.errors import ServiceError
from tests.fakes.vertex.jobs import ENDED, JobService
from tests.fakes.vertex.metadata import STORE, MetadataService
from tests.fakes.vertex.pipeline_checks import parameters_of, specification_of
from tests.fakes.vertex.script import Script, StepScript
from tests.fakes.vertex.slipway_steps import artifacts_of, outputs_of
from trainer.errors import ERROR_PREFIX, UserError

Pipeline = vertex.PipelineState
Task = vertex.PipelineTaskDetail.State
TASK_ENDED = (Task.SUCCEEDED, Task.FAILED, Task.CANCELLED, Task.SKIPPED, Task.NOT_TRIGGERED)
PIPELINE_ENDED = (
    Pipeline.PIPELINE_STATE_SUCCEEDED,
    Pipeline.PIPELINE_STATE_FAILED,
    Pipeline.PIPELINE_STATE_CANCELLED,
)
PLACEHOLDER = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")
CONDITION = re.compile(r"inputs\.parameter_values\['([^']+)'\] == '([^']*)'")
# What a container of a pipeline runs on where its spec does not say.
STEP_MACHINE = "e2-standard-4"


@dataclass
class _Task:
    """One task of a running pipeline. `scope` is the DAG that it is in, by the path of its parents' names."""

    name: str
    scope: tuple[str, ...]
    spec: PipelineTaskSpec
    component: ComponentSpec
    detail: vertex.PipelineTaskDetail
    script: StepScript
    outputs: dict[str, Any] = field(default_factory=dict)
    job: str = ""
    child: str = ""
    looks: int = 0


class Execution:
    """One pipeline job's way. `look` lets it go on; who holds the job sees the new states in it."""

    def __init__(self, job: vertex.PipelineJob, jobs: JobService, metadata: MetadataService, script: Script) -> None:
        self.job = job
        self._jobs = jobs
        self._metadata = metadata
        self._context: vertex.Context | None = None
        self._script = script
        self._specification: PipelineSpec = specification_of(job)
        self._executors = json_format.MessageToDict(self._specification.deployment_spec)["executors"]
        self._tasks: dict[tuple[str, ...], _Task] = {}
        root = self._specification.root
        self._root = {
            name: json_format.MessageToDict(definition.default_value)
            for name, definition in root.input_definitions.parameters.items()
            if definition.HasField("default_value")
        } | parameters_of(job)
        self._add((), root)

    def look(self) -> None:
        """Go on by one step of time."""
        if self.job.state in PIPELINE_ENDED:
            return
        if self.job.state == Pipeline.PIPELINE_STATE_CANCELLING:
            self._stop()
            return
        if self.job.state == Pipeline.PIPELINE_STATE_PENDING:
            self.job.state, self.job.start_time = Pipeline.PIPELINE_STATE_RUNNING, datetime.now(UTC)
            place, _, identity = self.job.name.partition("/pipelineJobs/")
            self._context = self._metadata.add(f"{place}{STORE}/contexts/{identity}", "system.PipelineRun")
            self._detail()
            return
        for task in [task for task in self._tasks.values() if task.detail.state == Task.RUNNING]:
            self._advance(task)
        failed = [task for task in self._tasks.values() if task.detail.state == Task.FAILED]
        fast = self.job.runtime_config.failure_policy == vertex.PipelineFailurePolicy.PIPELINE_FAILURE_POLICY_FAIL_FAST
        for task in [task for task in self._tasks.values() if task.detail.state == Task.PENDING]:
            self._start_if_ready(task, stopping=bool(failed) and fast)
        self._close_dags()
        if all(task.detail.state in TASK_ENDED for task in self._tasks.values()):
            self._conclude(failed)
        self.job.update_time = datetime.now(UTC)
        self._detail()

    def _detail(self) -> None:
        self.job.job_detail = vertex.PipelineJobDetail(
            pipeline_run_context=self._context, task_details=[task.detail for task in self._tasks.values()]
        )

    def _add(self, scope: tuple[str, ...], component: ComponentSpec) -> None:
        for name, spec in component.dag.tasks.items():
            found = self._specification.components[spec.component_ref.name]
            detail = vertex.PipelineTaskDetail(
                task_id=self._jobs.world.number(), task_name=name, create_time=datetime.now(UTC), state=Task.PENDING
            )
            script = self._script[name]
            self._tasks[(*scope, name)] = _Task(name, scope, spec, found, detail, script)

    def _sibling(self, task: _Task, name: str) -> _Task:
        return self._tasks[(*task.scope, name)]

    def _start_if_ready(self, task: _Task, *, stopping: bool) -> None:
        needed = [self._sibling(task, name) for name in task.spec.dependent_tasks]
        if stopping or any(other.detail.state in (Task.FAILED, Task.NOT_TRIGGERED, Task.CANCELLED) for other in needed):
            task.detail.state = Task.NOT_TRIGGERED
            return
        if not all(other.detail.state in (Task.SUCCEEDED, Task.SKIPPED) for other in needed):
            return
        inputs = self._inputs(task)
        condition = CONDITION.fullmatch(task.spec.trigger_policy.condition)
        if condition and inputs[condition[1]] != condition[2]:
            task.detail.state, task.detail.end_time = Task.NOT_TRIGGERED, datetime.now(UTC)
            return
        task.detail.start_time = datetime.now(UTC)
        task.detail.state = Task.RUNNING
        if task.component.HasField("dag"):
            self._add((*task.scope, task.name), task.component)
        elif task.script.cached and task.spec.caching_options.enable_cache:
            self._finish(task, inputs, Task.SKIPPED)
        else:
            self._launch(task, inputs)

    def _launch(self, task: _Task, inputs: Mapping[str, Any]) -> None:
        """Make the job of a task's container, and the one that its launcher makes."""
        container = self._executors[task.component.executor_label].get("container")
        if container is None:
            self._finish(task, inputs, Task.SUCCEEDED)
            return
        parent = f"projects/{self.job.name.split('/')[1]}/locations/{self._jobs.region}"
        launcher = "--payload" in container.get("args", []) and "CustomJob" in container["args"]
        try:
            own = StepScript(looks=1_000_000) if launcher else task.script
            task.job = self._jobs.create(
                parent, self._step_job(container["image"]), self._account, own, of_pipeline=True
            ).name
            task.detail.executor_detail = vertex.PipelineTaskExecutorDetail(
                container_detail=vertex.PipelineTaskExecutorDetail.ContainerDetail(main_job=task.job)
            )
            if launcher:
                job = custom_job_of(container["args"], inputs)
                task.child = self._jobs.create(parent, job, self._account, task.script, of_pipeline=True).name
                task.outputs["gcp_resources"] = resources_of(task.child)
        except ServiceError as error:
            if task.job:
                self._jobs.log.write_job(task.job, "workerpool0-0", {"severity": "ERROR", "message": str(error)})
            self._fail(task, f"{error.reason}: {error.message}")
            return
        self._say(task, inputs)

    @property
    def _account(self) -> str:
        number = self.job.name.split("/")[1]
        return self.job.service_account or f"{number}-compute@developer.gserviceaccount.com"

    def _step_job(self, image: str) -> vertex.CustomJob:
        pool = {
            "machine_spec": {"machine_type": STEP_MACHINE},
            "replica_count": 1,
            "container_spec": {"image_uri": image},
        }
        return vertex.CustomJob(
            display_name="caip_pipelines_task",
            job_spec={"worker_pool_specs": [pool], "service_account": self._account},
        )

    def _advance(self, task: _Task) -> None:
        if task.component.HasField("dag"):
            return
        followed = self._jobs.advance(task.child or task.job)
        if followed.state not in ENDED:
            return
        if task.child:
            self._jobs.end(task.job, failed=followed.state != vertex.JobState.JOB_STATE_SUCCEEDED)
        if followed.state == vertex.JobState.JOB_STATE_SUCCEEDED:
            try:
                self._finish(task, self._inputs(task), Task.SUCCEEDED)
            except UserError as error:
                for line in f"{error}\n{ERROR_PREFIX}{json.dumps(error.as_dict())}".splitlines():
                    self._jobs.log.write_job(task.job, "workerpool0-0", {"severity": "ERROR", "message": line})
                self._fail(task, "The replica workerpool0-0 exited with a non-zero status of 1.")
        else:
            self._fail(task, followed.error.message or f"The job {followed.name} was cancelled.")

    def _finish(self, task: _Task, inputs: Mapping[str, Any], state: Task) -> None:
        task.outputs |= outputs_of(task.name, inputs) | task.script.outputs
        task.detail.state, task.detail.end_time = state, datetime.now(UTC)
        root = f"{self.job.runtime_config.gcs_output_directory}/{self.job.name.rpartition('/')[2]}"
        for name, (uri, metadata) in artifacts_of(task.name, root, task.outputs).items():
            artifact = vertex.Artifact(display_name=name, uri=uri, metadata=metadata)
            task.detail.outputs[name] = vertex.PipelineTaskDetail.ArtifactList(artifacts=[artifact])
        self._say(task, inputs)

    def _fail(self, task: _Task, message: str) -> None:
        task.detail.state, task.detail.end_time = Task.FAILED, datetime.now(UTC)
        task.detail.error = status_pb2.Status(code=9, message=message)
        self._say(task, self._inputs(task))
        self._jobs.log.write_pipeline(self.job.name, {"severity": "ERROR", "message": message})

    def _say(self, task: _Task, inputs: Mapping[str, Any]) -> None:
        """Put a task's parameters into its execution's metadata, as the service does."""
        metadata = {f"input:{name}": value for name, value in inputs.items()}
        metadata |= {f"output:{name}": value for name, value in task.outputs.items()}
        task.detail.execution = vertex.Execution(
            name=f"{self.job.name.rpartition('/pipelineJobs/')[0]}/metadataStores/default/executions/{task.detail.task_id}",
            display_name=task.name,
            schema_title="system.ContainerExecution",
            metadata=metadata,
        )

    def _inputs(self, task: _Task) -> dict[str, Any]:
        """A task's parameters, as far as they are there."""
        above = self._inputs(self._tasks[task.scope]) if task.scope else self._root
        given = {}
        for name, definition in task.component.input_definitions.parameters.items():
            if definition.HasField("default_value"):
                given[name] = json_format.MessageToDict(definition.default_value)
        for name, source in task.spec.inputs.parameters.items():
            kind = source.WhichOneof("kind")
            if kind == "runtime_value":
                given[name] = json_format.MessageToDict(source.runtime_value.constant)
            elif kind == "component_input_parameter":
                given[name] = above[source.component_input_parameter]
            else:
                produced = source.task_output_parameter
                given[name] = self._sibling(task, produced.producer_task).outputs.get(produced.output_parameter_key, "")
        return {name: self._filled(value) for name, value in given.items()}

    def _filled(self, value: Any) -> Any:
        """A value with the placeholders that are the pipeline's."""
        number, location, identity = (self.job.name.split("/")[place] for place in (1, 3, 5))
        if isinstance(value, str):
            for placeholder, text in (
                ("pipeline_job_name", identity),
                ("pipeline_job_resource_name", self.job.name),
                ("pipeline_google_cloud_project_id", self._jobs.world.project(number).id),
                ("pipeline_google_cloud_location", location),
                ("pipeline_persistent_resource_id", ""),
            ):
                value = value.replace(f"{{{{$.{placeholder}}}}}", text)
        return value

    def _close_dags(self) -> None:
        """End the tasks that are DAGs, the innermost first, when all that is in them has ended."""
        for path, task in reversed(self._tasks.items()):
            if task.detail.state != Task.RUNNING or not task.component.HasField("dag"):
                continue
            states = [inner.detail.state for inner in self._tasks.values() if inner.scope == path]
            if all(state in TASK_ENDED for state in states):
                task.detail.state = Task.FAILED if Task.FAILED in states else Task.SUCCEEDED
                task.detail.end_time = datetime.now(UTC)

    def _conclude(self, failed: list[_Task]) -> None:
        failed = [task for task in self._tasks.values() if task.detail.state == Task.FAILED]
        self.job.end_time = datetime.now(UTC)
        self.job.state = Pipeline.PIPELINE_STATE_FAILED if failed else Pipeline.PIPELINE_STATE_SUCCEEDED
        if failed:
            number, identity = self.job.name.split("/")[1], self.job.name.rpartition("/")[2]
            names = ", ".join(task.name for task in failed)
            message = (
                f"The DAG failed because some tasks failed. The failed tasks are: [{names}].; "
                f"Job (project_id = {number}, job_id = {identity}) is failed due to the above error."
            )
            self.job.error = status_pb2.Status(code=9, message=message)

    def _stop(self) -> None:
        """End everything. A job that a launcher has made is told by the launcher."""
        for task in self._tasks.values():
            if task.detail.state in (Task.RUNNING, Task.PENDING):
                task.detail.state = Task.CANCELLED if task.detail.start_time else Task.NOT_TRIGGERED
                task.detail.end_time = datetime.now(UTC)
                if task.job:
                    self._jobs.end(task.job, cancelled=True)
        self.job.state, self.job.end_time = Pipeline.PIPELINE_STATE_CANCELLED, datetime.now(UTC)
        self._detail()


def custom_job_of(arguments: list[str], inputs: Mapping[str, Any]) -> vertex.CustomJob:
    """What the launcher of google-cloud-pipeline-components sends: its payload filled in, without what is empty."""
    payload = arguments[arguments.index("--payload") + 1]

    def fill(match: re.Match[str]) -> str:
        value = inputs[match[1]]
        return json.dumps(value)[1:-1] if isinstance(value, str) else json.dumps(value)

    try:
        return vertex.CustomJob(_without_empty(json.loads(PLACEHOLDER.sub(fill, payload), strict=False)))
    except (ValueError, TypeError) as error:
        raise ServiceError(400, f"Failed to parse the custom job: {error}") from None


def _without_empty(value: Any) -> Any:
    """Without what is empty, and whole floats as ints: the launcher reads numbers that were written as JSON."""
    if isinstance(value, dict):
        kept = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, "", {}, [])}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value


def resources_of(job: str) -> str:
    """What a launcher writes of the job that it made."""
    location = job.split("/")[3]
    uri = f"https://{location}-aiplatform.googleapis.com/v1/{job}"
    return json.dumps({"resources": [{"resourceType": "CustomJob", "resourceUri": uri}]})
