"""JobService: custom jobs are validated, queued, run, and end or are cancelled."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from google.cloud import aiplatform_v1 as vertex
from google.protobuf import empty_pb2
from google.rpc import status_pb2

from tests.fakes.errors import ServiceError
from tests.fakes.filters import matcher
from tests.fakes.logging import Log
from tests.fakes.paging import page_of
from tests.fakes.vertex.replicas import Replicas
from tests.fakes.vertex.script import Failure, StepScript
from tests.fakes.vertex.shapes import (
    check_act_as,
    check_display_name,
    check_key,
    check_labels,
    check_network,
    check_object,
    project_of,
    resource_of,
)
from tests.fakes.vertex.work import ScriptedWork, Work
from tests.fakes.vertex.worker_pools import check_quota, check_worker_pools, demand, fill_disks
from tests.fakes.world import Project, World

if TYPE_CHECKING:
    from tests.fakes.vertex.containers import Containers

State = vertex.JobState
ENDED = (State.JOB_STATE_SUCCEEDED, State.JOB_STATE_FAILED, State.JOB_STATE_CANCELLED)
REPOSITORY = re.compile(r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev/(?P<project>[^/]+)/(?P<repository>[^/]+)/.+")


class JobService:
    """Custom jobs by name. A stand-alone job advances when it is polled; a pipeline's job, when the pipeline is."""

    def __init__(self, world: World, region: str, log: Log) -> None:
        self.world = world
        self.region = region
        self.log = log
        self.jobs: dict[str, vertex.CustomJob] = {}
        # The next jobs that are asked for by a call run as this says, or in containers where there are some.
        self.script = StepScript()
        self.containers: Containers | None = None
        self._work: dict[str, Work] = {}
        self._of_pipelines: set[str] = set()

    def methods(self) -> dict[str, tuple[Any, Any]]:
        return {
            "CreateCustomJob": (vertex.CreateCustomJobRequest, self._create),
            "GetCustomJob": (vertex.GetCustomJobRequest, self._get),
            "ListCustomJobs": (vertex.ListCustomJobsRequest, self._list),
            "CancelCustomJob": (vertex.CancelCustomJobRequest, self._cancel),
        }

    def create(
        self, parent: str, job: vertex.CustomJob, caller: str, work: Work, *, of_pipeline: bool = False
    ) -> vertex.CustomJob:
        """Validate a job as the service does, and start its work."""
        project = project_of(self.world, parent, self.region)
        self.world.require(caller, "aiplatform.customJobs.create", f"projects/{project.id}")
        work.check()
        spec = job.job_spec
        check_display_name(job.display_name)
        check_labels(job.labels)
        check_network(spec.network)
        check_key(self.world, project, job.encryption_spec.kms_key_name, self.region)
        check_worker_pools(spec, self.region)
        if spec.base_output_directory.output_uri_prefix:
            check_object(spec.base_output_directory.output_uri_prefix, "base_output_directory")
        if spec.service_account:
            check_act_as(self.world, project, caller, spec.service_account)
        with self.world.lock:
            held = sum((demand(other.job_spec) for other in self.jobs.values() if other.state not in ENDED), Counter())
            made = vertex.CustomJob(job)
            fill_disks(made.job_spec)
            check_quota(self.world, made.job_spec, project.id, self.region, held)
            made.name = f"projects/{project.number}/locations/{self.region}/customJobs/{self.world.number()}"
            made.create_time = made.update_time = datetime.now(UTC)
            made.state = State.JOB_STATE_PENDING
            self.jobs[made.name] = made
            self._work[made.name] = work
            if of_pipeline:
                self._of_pipelines.add(made.name)
            self.world.writes["customJob"] += 1
        return made

    def advance(self, name: str) -> vertex.CustomJob:
        """Advance a job by one poll."""
        with self.world.lock:
            job, work = self.jobs[name], self._work[name]
            if job.state in ENDED:
                return job
            if job.state == State.JOB_STATE_CANCELLING:
                work.stop()
                if not job.start_time or work.look() is not None:
                    self._end(job, State.JOB_STATE_CANCELLED)
                return job
            unfit = self._cannot_pull(job)
            if unfit is not None:
                self._end(job, State.JOB_STATE_FAILED, Failure(unfit, code=7))
                return job
            if job.state == State.JOB_STATE_PENDING:
                job.state, job.start_time = State.JOB_STATE_RUNNING, datetime.now(UTC).replace(microsecond=0)
                work.start(job)
            if (ended := work.look()) is not None:
                state = State.JOB_STATE_FAILED if ended.failure else State.JOB_STATE_SUCCEEDED
                self._end(job, state, ended.failure)
            return job

    def go_on(self) -> None:
        """Advance the jobs created by a call, whether or not they are polled."""
        for name in [name for name in self.jobs if name not in self._of_pipelines]:
            self.advance(name)

    def cancel(self, name: str) -> None:
        with self.world.lock:
            job = self.jobs[name]
            if job.state not in ENDED:
                job.state = State.JOB_STATE_CANCELLING

    def end(self, name: str, *, failed: bool = False, cancelled: bool = False) -> None:
        """End a job that its pipeline ends or cancels."""
        with self.world.lock:
            job = self.jobs[name]
            if job.state not in ENDED:
                self._work[name].stop()
                ended = State.JOB_STATE_FAILED if failed else State.JOB_STATE_SUCCEEDED
                self._end(job, State.JOB_STATE_CANCELLED if cancelled else ended, Failure() if failed else None)

    def lose(self, name: str, replica: str, *, noticed_after: float = 0.0) -> None:
        """Lose the machine of a running replica of a job in containers."""
        work = self._work[name]
        assert isinstance(work, Replicas)
        work.lose(replica, noticed_after=noticed_after)

    def _end(self, job: vertex.CustomJob, state: State, failure: Failure | None = None) -> None:
        job.state = state
        job.update_time = datetime.now(UTC)
        job.end_time = job.update_time.replace(microsecond=0)
        if failure is not None:
            number, identity = job.name.split("/")[1], job.name.rpartition("/")[2]
            message = failure.text(number, identity)
            job.error = status_pb2.Status(code=failure.code, message=message)
            self.log.write_job(job.name, "service", {"severity": "ERROR", "message": message})

    def _cannot_pull(self, job: vertex.CustomJob) -> str | None:
        """Return the message for an image that the service agent may not pull."""
        project = self.world.project(job.name.split("/")[1])
        agent = f"service-{project.number}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"
        for pool in job.job_spec.worker_pool_specs:
            found = REPOSITORY.fullmatch(pool.container_spec.image_uri)
            if found is None:
                continue
            name = f"projects/{found['project']}/locations/{found['location']}/repositories/{found['repository']}"
            above = f"projects/{found['project']}"
            if not self.world.allowed(agent, "artifactregistry.repositories.downloadArtifacts", name, above):
                return f"{agent} does not have permission to access Artifact Registry repository {name}."
        return None

    def _create(self, request: vertex.CreateCustomJobRequest, caller: str) -> vertex.CustomJob:
        work: Work = ScriptedWork(self.script, self.log)
        if self.containers is not None:
            work = self.containers.custom_job()
        return self.create(request.parent, request.custom_job, caller, work)

    def _get(self, request: vertex.GetCustomJobRequest, caller: str) -> vertex.CustomJob:
        job = self._named(request.name, caller, "aiplatform.customJobs.get")
        return job if job.name in self._of_pipelines else self.advance(job.name)

    def _list(self, request: vertex.ListCustomJobsRequest, caller: str) -> vertex.ListCustomJobsResponse:
        project = project_of(self.world, request.parent, self.region)
        self.world.require(caller, "aiplatform.customJobs.list", f"projects/{project.id}")
        passes = matcher(request.filter)
        found = [job for job in reversed(self.jobs.values()) if _in(project, job.name) and passes(_fields(job))]
        page, following = page_of(found, request.page_size, request.page_token)
        return vertex.ListCustomJobsResponse(custom_jobs=page, next_page_token=following)

    def _cancel(self, request: vertex.CancelCustomJobRequest, caller: str) -> Any:
        job = self._named(request.name, caller, "aiplatform.customJobs.cancel")
        if job.state in ENDED:
            raise ServiceError(412, f"CustomJob {job.name} has ended and cannot be cancelled.")
        self.cancel(job.name)
        return empty_pb2.Empty()

    def _named(self, name: str, caller: str, permission: str) -> vertex.CustomJob:
        _, full = resource_of(self.world, self.region, name, "customJobs", caller, permission)
        if full not in self.jobs:
            raise ServiceError(404, f"The CustomJob does not exist: {name}")
        return self.jobs[full]


def _in(project: Project, name: str) -> bool:
    return name.startswith(f"projects/{project.number}/")


def _fields(job: vertex.CustomJob) -> Mapping[str, Any]:
    """Return a job's fields for filters."""
    created = job.create_time.isoformat() if job.create_time else ""
    return {
        "display_name": job.display_name,
        "state": job.state.name,
        "labels": dict(job.labels),
        "create_time": created,
    }
