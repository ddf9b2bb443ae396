"""Execution of a pipeline job: tasks start when their inputs are ready, create jobs, and succeed or fail."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from google.cloud import aiplatform_v1 as vertex
from google.protobuf import json_format
from google.rpc import status_pb2
from kfp.pipeline_spec.pipeline_spec_pb2 import ComponentSpec, PipelineSpec

from slipway.core.values import whole_numbers
from tests.fakes.errors import ServiceError
from tests.fakes.vertex.cache import Cache, key_of
from tests.fakes.vertex.jobs import JobService
from tests.fakes.vertex.metadata import STORE, MetadataService
from tests.fakes.vertex.pipeline_checks import parameters_of, specification_of
from tests.fakes.vertex.pipeline_features import CONDITION
from tests.fakes.vertex.steps import StepFailed, Steps
from tests.fakes.vertex.task import ENDED as TASK_ENDED
from tests.fakes.vertex.task import State, Task

Pipeline = vertex.PipelineState
PIPELINE_ENDED = (
    Pipeline.PIPELINE_STATE_SUCCEEDED,
    Pipeline.PIPELINE_STATE_FAILED,
    Pipeline.PIPELINE_STATE_CANCELLED,
)
PLACEHOLDER = re.compile(r"\{\{\$\.(pipeline_\w+)\}\}")
INPUT = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")


class Execution:
    """The execution of one pipeline job. `look` advances it and updates the states in the job."""

    def __init__(
        self, job: vertex.PipelineJob, jobs: JobService, metadata: MetadataService, steps: Steps, cache: Cache
    ) -> None:
        self.job = job
        self._cache = cache
        self._jobs = jobs
        self._metadata = metadata
        self._steps = steps
        self._specification: PipelineSpec = specification_of(job)
        self._executors = json_format.MessageToDict(self._specification.deployment_spec)["executors"]
        self._tasks: dict[tuple[str, ...], Task] = {}
        root = self._specification.root
        self._root = {
            name: json_format.MessageToDict(definition.default_value)
            for name, definition in root.input_definitions.parameters.items()
            if definition.HasField("default_value")
        } | parameters_of(job)
        self._add((), root)

    def look(self) -> None:
        """Advance by one time step."""
        if self.job.state in PIPELINE_ENDED:
            return
        if self.job.state == Pipeline.PIPELINE_STATE_CANCELLING:
            self._stop()
            return
        if self.job.state == Pipeline.PIPELINE_STATE_PENDING:
            if "job_detail" not in self.job:
                self.job.job_detail = vertex.PipelineJobDetail()
                return
            self.job.state, self.job.start_time = Pipeline.PIPELINE_STATE_RUNNING, datetime.now(UTC)
            self._detail()
            return
        for task in [task for task in self._tasks.values() if task.detail.state == State.RUNNING]:
            self._advance(task)
        failed = [task for task in self._tasks.values() if task.detail.state == State.FAILED]
        fast = self.job.runtime_config.failure_policy == vertex.PipelineFailurePolicy.PIPELINE_FAILURE_POLICY_FAIL_FAST
        for task in [task for task in self._tasks.values() if task.detail.state == State.PENDING]:
            self._start_if_ready(task, stopping=bool(failed) and fast)
        self._close_dags()
        if all(task.detail.state in TASK_ENDED for task in self._tasks.values()):
            self._conclude()
        self.job.update_time = datetime.now(UTC)
        self._detail()

    @property
    def _store(self) -> str:
        return self.job.name.rpartition("/pipelineJobs/")[0] + STORE

    @property
    def is_busy(self) -> bool:
        """Whether a task works in the background, and may call the service."""
        return any(task.is_busy for task in self._tasks.values())

    def _detail(self) -> None:
        """Show the contexts and, once the job has started, its tasks."""
        contexts = f"{self._store}/contexts/"
        pipeline = contexts + self._specification.pipeline_info.name
        identity = self.job.name.rpartition("/")[2]
        self.job.job_detail = vertex.PipelineJobDetail(
            pipeline_context=self._metadata.add(pipeline, "system.Pipeline"),
            pipeline_run_context=self._metadata.add(contexts + identity, "system.PipelineRun", parent=pipeline),
            task_details=[task.detail for task in self._tasks.values()] if "start_time" in self.job else [],
        )

    def _add(self, scope: tuple[str, ...], component: ComponentSpec) -> None:
        for name, spec in component.dag.tasks.items():
            found = self._specification.components[spec.component_ref.name]
            detail = vertex.PipelineTaskDetail(
                task_id=self._jobs.world.number(), task_name=name, create_time=datetime.now(UTC), state=State.PENDING
            )
            self._tasks[(*scope, name)] = Task(name, scope, spec, found, detail)

    def _sibling(self, task: Task, name: str) -> Task:
        return self._tasks[(*task.scope, name)]

    def _start_if_ready(self, task: Task, *, stopping: bool) -> None:
        needed = [self._sibling(task, name) for name in task.spec.dependent_tasks]
        if task.is_exit:
            if not all(other.detail.state in TASK_ENDED for other in needed):
                return
        elif stopping or any(
            other.detail.state in (State.FAILED, State.NOT_TRIGGERED, State.CANCELLED) for other in needed
        ):
            task.detail.state = State.NOT_TRIGGERED
            return
        elif not all(other.detail.state in (State.SUCCEEDED, State.SKIPPED) for other in needed):
            return
        inputs = self._inputs(task)
        condition = CONDITION.fullmatch(task.spec.trigger_policy.condition)
        if condition and inputs[condition[1]] != condition[2]:
            task.detail.state, task.detail.end_time = State.NOT_TRIGGERED, datetime.now(UTC)
            return
        task.detail.start_time = datetime.now(UTC)
        task.detail.state = State.RUNNING
        if task.component.HasField("dag"):
            self._add((*task.scope, task.name), task.component)
        elif self._cache.take(self._key(task), task):
            self._end(task, inputs, State.SKIPPED)
        else:
            self._launch(task, inputs)

    def _launch(self, task: Task, inputs: Mapping[str, Any]) -> None:
        container = self._filled(task, self._executors[task.component.executor_label]["container"])
        try:
            self._steps.launch(task, container, inputs, self._artifacts(task))
        except ServiceError as error:
            if task.job:  # the launcher's call was refused
                self._jobs.log.write_job(task.job, "workerpool0-0", {"severity": "ERROR", "message": str(error)})
                self._jobs.end(task.job, failed=True)
                self._fail(task, f"{error.reason}: {error.message}")
            else:
                self._fail(task, self._refusal(task, error))
            return
        task.detail.executor_detail = vertex.PipelineTaskExecutorDetail(
            container_detail=vertex.PipelineTaskExecutorDetail.ContainerDetail(main_job=task.job)
        )
        self._say(task, inputs)

    def _refusal(self, task: Task, error: ServiceError) -> str:
        """Return the message of a task for which the service could not create a job, as reported (see test_quotas)."""
        number, _, location, _, identity = self.job.name.split("/")[1:]
        return (
            "com.google.cloud.ai.platform.common.errors.AiPlatformException: "
            f"code={error.reason}, message={error.message}, cause=null; Failed to handle the pipeline task. "
            f"Task: Project number: {number}, Job id: {identity}, Task id: {task.detail.task_id}, "
            f"Task name: {task.name}, Task state: DRIVER_SUCCEEDED, Execution name: projects/{number}/locations/"
            f"{location}/metadataStores/default/executions/{task.detail.task_id}"
        )

    def _advance(self, task: Task) -> None:
        if task.component.HasField("dag"):
            return
        inputs = self._inputs(task)
        try:
            if self._steps.advance(task):
                self._finish(task, inputs)
            else:
                self._say(task, inputs)
        except StepFailed as error:
            if task.retries < task.spec.retry_policy.max_retry_count:
                task.retries += 1
                self._launch(task, inputs)
            else:
                self._fail(task, str(error))

    def _finish(self, task: Task, inputs: Mapping[str, Any]) -> None:
        self._steps.finish(task, inputs)
        for artifact in task.artifacts.values():
            artifact.name = f"{self._store}/artifacts/{self._jobs.world.number()}"
        self._cache.put(self._key(task), task)
        self._end(task, inputs, State.SUCCEEDED)

    def _key(self, task: Task) -> str:
        container = self._executors[task.component.executor_label]["container"]
        name = self._specification.pipeline_info.name
        return key_of(name, task, container, self._given(task), self._artifacts(task))

    def _end(self, task: Task, inputs: Mapping[str, Any], state: State) -> None:
        task.detail.state, task.detail.end_time = state, datetime.now(UTC)
        for name, artifact in task.artifacts.items():
            task.detail.outputs[name] = vertex.PipelineTaskDetail.ArtifactList(artifacts=[artifact])
        self._say(task, inputs)

    def _fail(self, task: Task, message: str) -> None:
        task.detail.state, task.detail.end_time = State.FAILED, datetime.now(UTC)
        task.detail.error = status_pb2.Status(code=9, message=message)
        self._say(task, self._inputs(task))
        self._jobs.log.write_pipeline(self.job.name, {"severity": "ERROR", "message": message})

    def _say(self, task: Task, inputs: Mapping[str, Any]) -> None:
        """Write a task's parameters to its execution's metadata, as the service does."""
        metadata = {f"input:{name}": value for name, value in inputs.items()}
        metadata |= {f"output:{name}": value for name, value in task.outputs.items()}
        task.detail.execution = vertex.Execution(
            name=f"{self._store}/executions/{task.detail.task_id}",
            display_name=task.name,
            schema_title="system.ContainerExecution",
            metadata=metadata,
        )

    def _inputs(self, task: Task) -> dict[str, Any]:
        """Return a task's available parameters."""
        given = self._given(task)
        return {name: self._filled(task, one) if isinstance(one, str) else one for name, one in given.items()}

    def _given(self, task: Task) -> dict[str, Any]:
        """Return a task's available parameters, with the placeholders of the pipeline that they contain."""
        above = self._given(self._tasks[task.scope]) if task.scope else self._root
        given = {}
        for name, definition in task.component.input_definitions.parameters.items():
            if definition.HasField("default_value"):
                given[name] = json_format.MessageToDict(definition.default_value)
        for name, source in task.spec.inputs.parameters.items():
            kind = source.WhichOneof("kind")
            if kind == "runtime_value":
                given[name] = json_format.MessageToDict(source.runtime_value.constant)
            elif kind == "component_input_parameter":
                if source.component_input_parameter in above:
                    given[name] = above[source.component_input_parameter]
            elif kind == "task_final_status":
                given[name] = self._final_status(self._sibling(task, source.task_final_status.producer_task))
            else:
                produced = source.task_output_parameter
                outputs = self._sibling(task, produced.producer_task).outputs
                if produced.output_parameter_key in outputs:
                    given[name] = outputs[produced.output_parameter_key]
        # Only in texts: see test_a_placeholder_inside_a_constant_mapping_is_text.
        texts = {name: value for name, value in given.items() if isinstance(value, str)}
        return given | {name: _replaced(text, INPUT, lambda match: given[match[1]]) for name, text in texts.items()}

    def _final_status(self, task: Task) -> dict[str, Any]:
        """Return the PipelineTaskFinalStatus of a task, with the keys of its JSON form."""
        status = {
            "state": task.detail.state.name,
            "pipelineJobResourceName": self.job.name,
            "pipelineTaskName": task.name,
        }
        if task.detail.state != State.FAILED:
            return status
        return {**status, "error": {"code": 9, "message": self._why()}}

    def _why(self) -> str:
        """Return the message of a DAG with failed tasks, which are those that have an error of their own."""
        names = ", ".join(task.name for task in self._tasks.values() if task.detail.error.message)
        return f"The DAG failed because some tasks failed. The failed tasks are: [{names}]."

    def _artifacts(self, task: Task) -> dict[str, vertex.Artifact]:
        """Return a task's input artifacts."""
        given = {}
        for name, source in task.spec.inputs.artifacts.items():
            if source.WhichOneof("kind") == "task_output_artifact":
                produced, key = source.task_output_artifact, source.task_output_artifact.output_artifact_key
                found = self._sibling(task, produced.producer_task).artifacts
            else:
                key = source.component_input_artifact
                found = self._artifacts(self._tasks[task.scope]) if task.scope else {}
            if key in found:
                given[name] = found[key]
        return given

    def _filled(self, task: Task, value: Any) -> Any:
        """Return a value with the placeholders of the pipeline and the task replaced."""
        number, location, identity = (self.job.name.split("/")[place] for place in (1, 3, 5))
        created = self.job.create_time.strftime("%Y-%m-%dT%H:%M:%SZ")
        texts = {
            "pipeline_job_name": identity,
            "pipeline_job_resource_name": self.job.name,
            "pipeline_job_uuid": self.job.labels["vertex-ai-pipelines-run-billing-id"],
            "pipeline_job_create_time_utc": created,
            "pipeline_job_schedule_time_utc": created,
            "pipeline_root": self.job.runtime_config.gcs_output_directory,
            "pipeline_task_name": task.name,
            "pipeline_task_uuid": str(task.detail.task_id),
            "pipeline_google_cloud_project_id": self._jobs.world.project(number).id,
            "pipeline_google_cloud_location": location,
            "pipeline_persistent_resource_id": "",
        }
        return _replaced(value, PLACEHOLDER, lambda match: texts.get(match[1], match[0]))

    def _close_dags(self) -> None:
        """End DAG tasks whose tasks have all ended, innermost first."""
        for path, task in reversed(self._tasks.items()):
            if task.detail.state != State.RUNNING or not task.component.HasField("dag"):
                continue
            states = [inner.detail.state for inner in self._tasks.values() if inner.scope == path]
            if all(state in TASK_ENDED for state in states):
                task.detail.state = State.FAILED if State.FAILED in states else State.SUCCEEDED
                task.detail.end_time = datetime.now(UTC)

    def _conclude(self) -> None:
        failed = [task for task in self._tasks.values() if task.detail.state == State.FAILED]
        self.job.end_time = datetime.now(UTC)
        self.job.state = Pipeline.PIPELINE_STATE_FAILED if failed else Pipeline.PIPELINE_STATE_SUCCEEDED
        if failed:
            number, identity = self.job.name.split("/")[1], self.job.name.rpartition("/")[2]
            job = f"Job (project_id = {number}, job_id = {identity}) is failed due to the above error."
            self.job.error = status_pb2.Status(code=9, message=f"{self._why()}; {job}")

    def _stop(self) -> None:
        """End everything; launchers cancel their own jobs."""
        for task in self._tasks.values():
            if task.detail.state in (State.RUNNING, State.PENDING):
                task.detail.state = State.CANCELLED if task.detail.start_time else State.NOT_TRIGGERED
                task.detail.end_time = datetime.now(UTC)
                if task.job:
                    self._jobs.end(task.job, cancelled=True)
        self.job.state, self.job.end_time = Pipeline.PIPELINE_STATE_CANCELLED, datetime.now(UTC)
        self._detail()


def _replaced(value: Any, pattern: re.Pattern[str], found: Callable[[re.Match[str]], Any]) -> Any:
    """Return a JSON value whose texts have the matches replaced; values that are no texts are written as JSON."""
    if isinstance(value, dict):
        return {key: _replaced(one, pattern, found) for key, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one, pattern, found) for one in value]

    def text(match: re.Match[str]) -> str:
        one = whole_numbers(found(match))
        return one if isinstance(one, str) else json.dumps(one)

    return pattern.sub(text, value) if isinstance(value, str) else value
