"""PipelineService: pipeline jobs are validated on creation and advance each time they are polled."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from google.cloud import aiplatform_v1 as vertex
from google.protobuf import empty_pb2

from tests.fakes.errors import ServiceError
from tests.fakes.filters import matcher
from tests.fakes.paging import page_of
from tests.fakes.vertex.cache import Cache
from tests.fakes.vertex.execution import PIPELINE_ENDED, Execution
from tests.fakes.vertex.jobs import JobService
from tests.fakes.vertex.metadata import MetadataService
from tests.fakes.vertex.pipeline_checks import check_pipeline_job, specification_of
from tests.fakes.vertex.pipeline_features import check_features
from tests.fakes.vertex.script import Script
from tests.fakes.vertex.shapes import project_of, resource_of
from tests.fakes.vertex.steps import ScriptedSteps, Steps
from tests.fakes.vertex.tuning import TuningService
from tests.fakes.world import World

if TYPE_CHECKING:
    from tests.fakes.vertex.containers import Containers

State = vertex.PipelineState
BILLING_LABEL = "vertex-ai-pipelines-run-billing-id"


class PipelineService:
    """Pipeline jobs by name. Without `containers`, `script` controls the jobs that are created from now on."""

    def __init__(
        self, world: World, region: str, jobs: JobService, searches: TuningService, metadata: MetadataService
    ) -> None:
        self.world = world
        self.region = region
        self.jobs: dict[str, vertex.PipelineJob] = {}
        self.script = Script()
        self.containers: Containers | None = None
        self._executions: dict[str, Execution] = {}
        self._custom_jobs = jobs
        self._searches = searches
        self._metadata = metadata
        self._cache = Cache()

    def methods(self) -> dict[str, tuple[Any, Any]]:
        return {
            "CreatePipelineJob": (vertex.CreatePipelineJobRequest, self._create),
            "GetPipelineJob": (vertex.GetPipelineJobRequest, self._get),
            "ListPipelineJobs": (vertex.ListPipelineJobsRequest, self._list),
            "CancelPipelineJob": (vertex.CancelPipelineJobRequest, self._cancel),
        }

    def create(
        self, parent: str, job: vertex.PipelineJob, job_id: str, caller: str, schedule: str = ""
    ) -> vertex.PipelineJob:
        """Validate a job as CreatePipelineJob does and start it; `schedule` is the resource name of its schedule.

        Raises:
            ServiceError: The service would reject it.
        """
        project = project_of(self.world, parent, self.region)
        check_pipeline_job(self.world, project, job, job_id, caller)
        check_features(specification_of(job))
        with self.world.lock:
            identity = job_id or f"{job.display_name.lower()}-{self.world.number()}"
            name = f"projects/{project.number}/locations/{self.region}/pipelineJobs/{identity}"
            if name in self.jobs:
                raise ServiceError(409, f"Requested entity already exists: PipelineJob {name}.")
            made = vertex.PipelineJob(job)
            made.name = name
            made.schedule_name = schedule
            made.service_account = job.service_account or f"{project.number}-compute@developer.gserviceaccount.com"
            made.create_time = made.update_time = datetime.now(UTC)
            made.state = State.PIPELINE_STATE_PENDING
            made.labels[BILLING_LABEL] = f"6{self.world.number():017}"
            self.jobs[name] = made
            steps: Steps = ScriptedSteps(made, self._custom_jobs, self._searches, self.script)
            if self.containers is not None:
                steps = self.containers.steps(made, self._custom_jobs)
            self._executions[name] = Execution(made, self._custom_jobs, self._metadata, steps, self._cache)
            self.world.writes["pipelineJob"] += 1
        return made

    def run_to_end(self, name: str, looks: int = 100) -> vertex.PipelineJob:
        """Let a job go its way until it has ended."""
        for _ in range(looks):
            self._give_way(name)
            with self.world.lock:
                self._executions[name].look()
                if self.jobs[name].state in PIPELINE_ENDED:
                    return self.jobs[name]
        raise AssertionError(f"{name} has not ended after {looks} looks: {self.jobs[name].state.name}")

    def go_on(self) -> None:
        """Advance all jobs by one time step."""
        with self.world.lock:
            for execution in self._executions.values():
                execution.look()

    def _create(self, request: vertex.CreatePipelineJobRequest, caller: str) -> vertex.PipelineJob:
        return self.create(request.parent, request.pipeline_job, request.pipeline_job_id, caller)

    def _get(self, request: vertex.GetPipelineJobRequest, caller: str) -> vertex.PipelineJob:
        job = self._named(request.name, caller, "aiplatform.pipelineJobs.get")
        self._give_way(job.name)
        with self.world.lock:
            self._executions[job.name].look()
            return vertex.PipelineJob(job)

    def _list(self, request: vertex.ListPipelineJobsRequest, caller: str) -> vertex.ListPipelineJobsResponse:
        project = project_of(self.world, request.parent, self.region)
        self.world.require(caller, "aiplatform.pipelineJobs.list", f"projects/{project.id}")
        passes = matcher(request.filter)
        mine = [job for name, job in self.jobs.items() if name.startswith(f"projects/{project.number}/")]
        found = [job for job in reversed(mine) if passes(_fields(job))]
        page, following = page_of(found, request.page_size, request.page_token)
        return vertex.ListPipelineJobsResponse(pipeline_jobs=page, next_page_token=following)

    def _cancel(self, request: vertex.CancelPipelineJobRequest, caller: str) -> Any:
        job = self._named(request.name, caller, "aiplatform.pipelineJobs.cancel")
        with self.world.lock:
            if job.state in PIPELINE_ENDED:
                raise ServiceError(412, f"PipelineJob {job.name} has ended and cannot be cancelled.")
            job.state = State.PIPELINE_STATE_CANCELLING
        return empty_pb2.Empty()

    def _give_way(self, name: str) -> None:
        """Let a task of a job that calls this service itself have the lock."""
        if self._executions[name].is_busy:
            time.sleep(0.02)

    def _named(self, name: str, caller: str, permission: str) -> vertex.PipelineJob:
        _, full = resource_of(self.world, self.region, name, "pipelineJobs", caller, permission)
        if full not in self.jobs:
            raise ServiceError(404, "The PipelineJob does not exist.")
        return self.jobs[full]


def _fields(job: vertex.PipelineJob) -> Mapping[str, Any]:
    """Return a job's fields for filters."""
    return {
        "display_name": job.display_name,
        "pipeline_name": job.pipeline_spec["pipelineInfo"]["name"],
        "state": job.state.name,
        "labels": dict(job.labels),
        "schedule_name": job.schedule_name,
        "service_account": job.service_account,
        "create_time": job.create_time.isoformat(),
        "update_time": job.update_time.isoformat(),
    }
