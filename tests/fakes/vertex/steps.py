"""The work of a pipeline's tasks: scripted by a test, or in real containers (see container_steps)."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from google.cloud import aiplatform_v1 as vertex

from slipway.core.errors import ERROR_PREFIX, UserError
from slipway.core.values import whole_numbers
from slipway.pipelines.hardware.catalogue import load
from tests.fakes.errors import ServiceError
from tests.fakes.vertex.jobs import ENDED, JobService
from tests.fakes.vertex.script import Script, StepScript
from tests.fakes.vertex.slipway_steps import BACKGROUND, artifacts_of, best_of, outputs_of
from tests.fakes.vertex.task import Task
from tests.fakes.vertex.tuning import TuningService
from tests.fakes.vertex.work import ScriptedWork, Work

PLACEHOLDER = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")
# The machine of a pipeline's container without limits; with limits, the smallest of these families that has them.
STEP_MACHINE = "e2-standard-4"
STEP_FAMILIES = ("e2", "n1")
MAX_CPUS = 96
MAX_MEMORY_GB = 624
# The type of Google's component for e-mail, which the service executes itself.
MAIL = "VertexNotificationEmail"
MAX_RECIPIENTS = 3


class StepFailed(Exception):
    """A failed task, with the service's message."""


class Steps(Protocol):
    """The work of one pipeline job's tasks."""

    def launch(
        self,
        task: Task,
        container: Mapping[str, Any],
        inputs: Mapping[str, Any],
        artifacts: Mapping[str, vertex.Artifact],
    ) -> None:
        """Create the job of a task's container from its input parameters and artifacts. Raises ServiceError."""

    def advance(self, task: Task) -> bool:
        """Advance; return whether the work has succeeded. Raises StepFailed."""

    def finish(self, task: Task, inputs: Mapping[str, Any]) -> None:
        """Write the outputs and artifacts of a finished task. Raises StepFailed."""


class ScriptedSteps:
    """Steps that end after the scripted number of polls and return what Slipway's steps return."""

    def __init__(self, pipeline: vertex.PipelineJob, jobs: JobService, searches: TuningService, script: Script) -> None:
        self._pipeline = pipeline
        self._jobs = jobs
        self._searches = searches
        self._script = script
        self._given: dict[str, Mapping[str, vertex.Artifact]] = {}
        self._failed: set[str] = set()

    def launch(
        self,
        task: Task,
        container: Mapping[str, Any],
        inputs: Mapping[str, Any],
        artifacts: Mapping[str, vertex.Artifact],
    ) -> None:
        """Create the task's job and, for a launcher, the job that it creates."""
        parent, account = parent_of(self._pipeline), account_of(self._pipeline)
        self._given[task.detail.task_id] = artifacts
        self._failed.discard(task.name)
        script = self._script[task.name]
        if MAIL in container.get("args", []):
            self._mail(inputs)
        if (run := BACKGROUND.get(task.name)) is not None:
            # It calls the service, whose lock this thread has.
            task.work = threading.Thread(target=self._run, args=(run, task, dict(inputs), artifacts), daemon=True)
            task.work.start()
        arguments = container.get("args", [])
        kind = arguments[arguments.index("--type") + 1] if "--payload" in arguments else ""
        launcher = kind in ("CustomJob", "HyperparameterTuningJob")
        own = StepScript(looks=1_000_000) if launcher else script
        task.job = self._jobs.create(
            parent, step_job(container, account), account, self._work(own), of_pipeline=True
        ).name
        if kind == "CustomJob":
            job = custom_job_of(arguments, inputs)
            task.child = self._jobs.create(parent, job, account, self._work(script), of_pipeline=True).name
        elif launcher:
            search = vertex.HyperparameterTuningJob(request_of(arguments, inputs))
            task.child = self._searches.create(parent, search, account, of_pipeline=True).name
        if launcher:
            task.outputs["gcp_resources"] = resources_of(task.child, kind)

    def advance(self, task: Task) -> bool:
        if task.is_busy:
            return False
        if task.name in self._failed:
            self._jobs.end(task.job, failed=True)
            raise StepFailed("The replica workerpool0-0 exited with a non-zero status of 1.")
        service = self._searches if "/hyperparameterTuningJobs/" in task.child else self._jobs
        followed = service.advance(task.child or task.job)
        if followed.state not in ENDED:
            return False
        good = followed.state == vertex.JobState.JOB_STATE_SUCCEEDED
        if task.child:
            self._jobs.end(task.job, failed=not good)
        if not good:
            raise StepFailed(followed.error.message or f"The job {followed.name} was cancelled.")
        return True

    def finish(self, task: Task, inputs: Mapping[str, Any]) -> None:
        try:
            given = self._given[task.detail.task_id]
            task.outputs |= outputs_of(task.name, inputs, given) | self._script[task.name].outputs
            for name in task.component.output_definitions.parameters:
                task.outputs.setdefault(name, "")
        except UserError as error:
            for line in f"{error}\n{ERROR_PREFIX}{json.dumps(error.as_dict())}".splitlines():
                self._jobs.log.write_job(task.job, "workerpool0-0", {"severity": "ERROR", "message": line})
            raise StepFailed("The replica workerpool0-0 exited with a non-zero status of 1.") from None
        work = self._script[task.name].work
        made = dict(work(inputs) if work else artifacts_of(task.name, root_of(self._pipeline), task.outputs))
        if task.name == "collect-model" and inputs.get("place") and inputs["job"]:
            name = json.loads(inputs["job"])["resources"][0]["resourceUri"].partition("/v1/")[2]
            made["model"] = best_of(self._searches.jobs[name])
        for name, (uri, metadata) in made.items():
            task.artifacts[name] = vertex.Artifact(display_name=name, uri=uri, metadata=metadata)

    def _run(
        self,
        run: Callable[[dict[str, Any], Mapping[str, vertex.Artifact]], dict[str, Any]],
        task: Task,
        inputs: dict[str, Any],
        artifacts: Mapping[str, vertex.Artifact],
    ) -> None:
        """Run a component for real; a failed one exits."""
        try:
            task.outputs |= run(inputs, artifacts)
        except SystemExit:
            self._failed.add(task.name)

    def _mail(self, inputs: Mapping[str, Any]) -> None:
        """Send the e-mail of Google's component, which works only as an exit task and for three recipients at most."""
        status = inputs.get("pipeline_task_final_status")
        if not status or not 0 < len(inputs["recipients"]) <= MAX_RECIPIENTS:
            raise ServiceError(400, "The notification email component needs a final status and up to three recipients.")
        self._script.mails.append((list(inputs["recipients"]), status["state"]))

    def _work(self, script: StepScript) -> Work:
        return script.job() if script.job is not None else ScriptedWork(script, self._jobs.log)


def parent_of(pipeline: vertex.PipelineJob) -> str:
    """Return the parent of a pipeline's jobs."""
    return pipeline.name.partition("/pipelineJobs/")[0]


def account_of(pipeline: vertex.PipelineJob) -> str:
    """Return the account of a pipeline's steps."""
    number = pipeline.name.split("/")[1]
    return pipeline.service_account or f"{number}-compute@developer.gserviceaccount.com"


def root_of(pipeline: vertex.PipelineJob) -> str:
    """Return the gs:// URI of a pipeline job's outputs."""
    return f"{pipeline.runtime_config.gcs_output_directory}/{pipeline.name.rpartition('/')[2]}"


def step_job(container: Mapping[str, Any], account: str) -> vertex.CustomJob:
    """Return the job that the service creates for a task's container.

    Raises:
        ServiceError: The container asks for more than a step can have.
    """
    pool = {
        "machine_spec": {"machine_type": step_machine(container.get("resources", {}))},
        "replica_count": 1,
        "container_spec": {"image_uri": container["image"]},
    }
    return vertex.CustomJob(
        display_name="caip_pipelines_task", job_spec={"worker_pool_specs": [pool], "service_account": account}
    )


def step_machine(resources: Mapping[str, Any]) -> str:
    """Return the machine of a step by the limits in its container's spec (CPUs, gigabytes)."""
    cpus, memory = resources.get("cpuLimit", 0), resources.get("memoryLimit", 0)
    if not cpus and not memory:
        return STEP_MACHINE
    if cpus > MAX_CPUS or memory > MAX_MEMORY_GB:
        raise ServiceError(400, f"A step has at most {MAX_CPUS} CPUs and {MAX_MEMORY_GB}G of memory.")
    fitting = [
        machine
        for machine in load().machines
        if machine.family in STEP_FAMILIES and machine.vcpus >= (cpus or 4) and machine.memory_gb >= (memory or 16)
    ]
    return min(fitting, key=lambda machine: (STEP_FAMILIES.index(machine.family), machine.size)).name


def custom_job_of(arguments: list[str], inputs: Mapping[str, Any]) -> vertex.CustomJob:
    """Return a launcher's custom job; see `request_of`."""
    try:
        return vertex.CustomJob(request_of(arguments, inputs))
    except (ValueError, TypeError) as error:
        raise ServiceError(400, f"Failed to parse the custom job: {error}") from None


def request_of(arguments: list[str], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a launcher's request: its payload with values filled in and empty fields removed."""
    payload = arguments[arguments.index("--payload") + 1]

    def fill(match: re.Match[str]) -> str:
        value = whole_numbers(inputs[match[1]])  # a spec's numbers are doubles; JSON has 500, not 500.0
        return json.dumps(value)[1:-1] if isinstance(value, str) else json.dumps(value)

    try:
        return dict(_without_empty(json.loads(PLACEHOLDER.sub(fill, payload), strict=False)))
    except ValueError as error:
        raise ServiceError(400, f"Failed to parse the payload: {error}") from None


def _without_empty(value: Any) -> Any:
    """Remove empty fields, also false and 0, as the launcher does (`recursive_remove_empty`); items of lists remain."""
    if isinstance(value, dict):
        kept = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value


def resources_of(job: str, kind: str = "CustomJob") -> str:
    """Return the launcher's output for the job that it created."""
    location = job.split("/")[3]
    uri = f"https://{location}-aiplatform.googleapis.com/v1/{job}"
    return json.dumps({"resources": [{"resourceType": kind, "resourceUri": uri}]})
