"""Dataflow: jobs that are created, listed, followed and cancelled; what their workers do is the test's.

With `tests.fakes.beam.dataflow_script`, they run the pipeline that was submitted.

Rules are from the API description of dataflow v1b3 unless another source is named.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.fakes.errors import ServiceError, not_found
from tests.fakes.http_service import HttpService, Request
from tests.fakes.paging import page_of
from tests.fakes.world import Project, World

JOBS = "/v1b3/projects/{project}/locations/{location}/jobs"
# Job.name, Job.labels
NAME = re.compile(r"[a-z]([-a-z0-9]{0,1022}[a-z0-9])?")
LABEL = re.compile(r"[a-z0-9_-]{0,63}")
TERMINAL = {f"JOB_STATE_{name}" for name in ("DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED")}
# "ListJobs always returns summaries now": without labels and environment.
SUMMARY = ("id", "projectId", "location", "name", "type", "currentState", "createTime")
IMPORTANCE = [f"JOB_MESSAGE_{name}" for name in ("DEBUG", "DETAILED", "BASIC", "WARNING", "ERROR")]
FILTERS = ("UNKNOWN", "ALL", "TERMINATED", "ACTIVE")
VIEWS = ("JOB_VIEW_UNKNOWN", "JOB_VIEW_SUMMARY", "JOB_VIEW_ALL", "JOB_VIEW_DESCRIPTION")
START = datetime(2026, 1, 1, tzinfo=UTC)

# What a job does: each step of the iterator is one poll of its state. It ends as DONE when the iterator does.
Script = Callable[["FakeDataflow", dict[str, Any]], Iterator[None]]


class JobFailed(Exception):
    """Raised by a script: the job ends as FAILED, and the text is its error message."""


class FakeDataflow:
    """`jobs` by id in the order of their creation; `script` is what new jobs do once they run.

    `concurrent` is the project's quota of active jobs.
    """

    def __init__(self, service: HttpService, world: World) -> None:
        self._world = world
        self._seconds = itertools.count()
        self._running: dict[str, Iterator[None]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.messages: dict[str, list[dict[str, str]]] = {}
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.metrics: dict[str, list[dict[str, Any]]] = {}
        self.script: Script = lambda _fake, _job: iter(())
        self.concurrent = 25

        @service.route("POST", JOBS)
        def create(request: Request) -> Any:
            project = self._project(request, "dataflow.jobs.create")
            self._check_accounts(request, project)
            with world.lock:
                return self._created(request, project)

        @service.route("GET", JOBS)
        def list_(request: Request) -> Any:
            self._project(request, "dataflow.jobs.list")
            if request.query.get("filter", "UNKNOWN") not in FILTERS:
                raise ServiceError(400, f"Invalid value at 'filter': {request.query['filter']}")
            found = [job for job in self._of(request) if self._is_selected(job, request.query)]
            size, token = int(request.query.get("pageSize", 0)), request.query.get("pageToken", "")
            page, following = page_of(found, size, token, largest=2)
            # "if the project does not have any jobs, … the response body is empty {}"
            jobs = {"jobs": [{name: job[name] for name in SUMMARY} for job in page]} if page else {}
            return {**jobs, **({"nextPageToken": following} if following else {})}

        @service.route("GET", f"{JOBS}/{{job}}")
        def get(request: Request) -> Any:
            self._project(request, "dataflow.jobs.get")
            view = request.query.get("view", "JOB_VIEW_UNKNOWN")
            if view not in VIEWS:
                raise ServiceError(400, f"Invalid value at 'view': {view}")
            job = self._job(request)
            self._go_on(job)
            return {name: job[name] for name in SUMMARY} if view != "JOB_VIEW_ALL" else dict(job)

        @service.route("PUT", f"{JOBS}/{{job}}")
        def update(request: Request) -> Any:
            self._project(request, "dataflow.jobs.cancel")
            job, wanted = self._job(request), request.json.get("requestedState")
            if wanted != "JOB_STATE_CANCELLED":
                raise ServiceError(501, f"The fake cannot request {wanted}.")
            with world.lock:
                # The wording is not known.
                if job["currentState"] in TERMINAL:
                    raise ServiceError(400, f"Job {job['id']} has ended.", reason="FAILED_PRECONDITION")
                # "JOB_STATE_CANCELLING indicates that the job has been explicitly cancelled and is … stopping."
                job["currentState"] = "JOB_STATE_CANCELLING"
                world.writes["dataflow cancel"] += 1
            return dict(job)

        @service.route("GET", f"{JOBS}/{{job}}/messages")
        def list_messages(request: Request) -> Any:
            self._project(request, "dataflow.messages.list")
            identity, since = self._job(request)["id"], request.query.get("startTime", "")
            least = request.query.get("minimumImportance", IMPORTANCE[0])
            if least not in IMPORTANCE:
                raise ServiceError(400, f"Invalid value at 'minimum_importance': {least}")
            found = [
                message
                for message in self.messages[identity]
                if message["time"] >= since
                and IMPORTANCE.index(message["messageImportance"]) >= IMPORTANCE.index(least)
            ]
            page, following = page_of(found, 0, request.query.get("pageToken", ""), largest=2)
            events = [event for event in self.events[identity] if event["time"] >= since]
            answer = {"jobMessages": page, "autoscalingEvents": events}
            return {**answer, **({"nextPageToken": following} if following else {})}

        @service.route("GET", f"{JOBS}/{{job}}/metrics")
        def get_metrics(request: Request) -> Any:
            self._project(request, "dataflow.metrics.get")
            return {"metrics": self.metrics[self._job(request)["id"]]}

    def say(self, job: dict[str, Any], text: str, importance: str = "JOB_MESSAGE_BASIC") -> None:
        """Add a message to a job."""
        message = {"id": str(self._world.number()), "time": self._now(), "messageText": text}
        self.messages[job["id"]].append({**message, "messageImportance": importance})

    def scale(self, job: dict[str, Any], workers: int) -> None:
        """Change a job's number of workers."""
        event = {"time": self._now(), "eventType": "CURRENT_NUM_WORKERS_CHANGED", "currentNumWorkers": str(workers)}
        self.events[job["id"]].append(event)

    def count(self, job: dict[str, Any], name: str, namespace: str, value: int) -> None:
        """Set a counter of a job's workers; it is tentative until the work item has ended.

        Source (read): Beam's DataflowMetrics, which reads origin, namespace and tentative.
        """
        context = {"namespace": namespace, "step": "write"}
        self.metrics[job["id"]] = [
            {"name": {"origin": "dataflow/v1b3", "name": "TotalVcpuTime", "context": {}}, "scalar": 12},
            {"name": {"origin": "user", "name": name, "context": {**context, "tentative": "true"}}, "scalar": value},
            {"name": {"origin": "user", "name": name, "context": context}, "scalar": value // 2},
        ]

    def _project(self, request: Request, permission: str) -> Project:
        project = self._world.project(request.parts["project"])
        for name in ("dataflow.googleapis.com", "compute.googleapis.com"):
            self._world.require_service(project, name)
        self._world.require(request.caller, permission, f"projects/{project.id}")
        return project

    def _check_accounts(self, request: Request, project: Project) -> None:
        world, place = self._world, f"projects/{project.id}"
        default = f"{project.number}-compute@developer.gserviceaccount.com"
        worker = request.json.get("environment", {}).get("serviceAccountEmail") or default
        resource = f"{place}/serviceAccounts/{worker}"
        if worker not in world.accounts or not world.allowed(
            request.caller, "iam.serviceAccounts.actAs", resource, place
        ):
            raise ServiceError(403, f"Current user cannot act as service account {worker}.")
        agent = f"service-{project.number}@dataflow-service-producer-prod.iam.gserviceaccount.com"
        if agent not in world.accounts or not world.allowed(agent, "compute.instances.create", place):
            raise ServiceError(400, f"The Dataflow service account {agent} lacks roles/dataflow.serviceAgent.")
        if not world.allowed(worker, "dataflow.workItems.lease", place):
            raise ServiceError(400, f"The worker service account {worker} lacks roles/dataflow.worker.")

    def _created(self, request: Request, project: Project) -> dict[str, Any]:
        wanted, location = request.json, request.parts["location"]
        name, labels = wanted.get("name", ""), wanted.get("labels", {})
        if not NAME.fullmatch(name):
            raise ServiceError(400, f"Invalid job name: {name}")
        if len(labels) > 64 or not all(LABEL.fullmatch(value) for value in labels.values()):
            raise ServiceError(400, f"Invalid labels: {labels}")
        active = [job for job in self._of(request) if job["currentState"] not in TERMINAL]
        same = next((job for job in active if job["name"] == name), None)
        if same is not None:  # "the attempt returns the existing job"
            return dict(same)
        if len(active) >= self.concurrent:
            # The wording: https://github.com/apache/beam/pull/34381; the status is not known.
            raise ServiceError(
                400,
                "The workflow could not be created. Causes: (8ac844dc41db82af): Dataflow quota error for "
                f"jobs-per-project quota. Project {project.id} is running {len(active)} jobs. Please check the quota "
                "usage via GCP Console.",
            )
        identity = f"2026-01-01_00_00_00-{self._world.number()}"
        job = {
            "type": "JOB_TYPE_BATCH",
            **wanted,
            "id": identity,
            "projectId": project.id,
            "location": location,
            "currentState": "JOB_STATE_PENDING",
            "createTime": self._now(),
        }
        self.jobs[identity] = job
        self.messages[identity], self.events[identity], self.metrics[identity] = [], [], []
        self._running[identity] = self.script(self, job)
        self._world.writes["dataflow job"] += 1
        return dict(job)

    def _of(self, request: Request) -> list[dict[str, Any]]:
        return [job for job in self.jobs.values() if job["location"] == request.parts["location"]]

    def _is_selected(self, job: dict[str, Any], query: Any) -> bool:
        wanted = query.get("filter", "UNKNOWN")
        ended = job["currentState"] in TERMINAL
        kept = {"ACTIVE": not ended, "TERMINATED": ended}.get(wanted, True)
        return kept and query.get("name", job["name"]) == job["name"]

    def _job(self, request: Request) -> dict[str, Any]:
        job = self.jobs.get(request.parts["job"])
        if job is None or job["location"] != request.parts["location"]:
            raise not_found(f"Job {request.parts['job']}")
        return job

    def _go_on(self, job: dict[str, Any]) -> None:
        """Take one step of a job."""
        state = job["currentState"]
        if state == "JOB_STATE_CANCELLING":
            job["currentState"] = "JOB_STATE_CANCELLED"
        elif state == "JOB_STATE_PENDING":
            job["currentState"] = "JOB_STATE_RUNNING"
        elif state == "JOB_STATE_RUNNING":
            try:
                next(self._running[job["id"]])
            except StopIteration:
                job["currentState"] = "JOB_STATE_DONE"
            except JobFailed as error:
                job["currentState"] = "JOB_STATE_FAILED"
                self.say(job, str(error), "JOB_MESSAGE_ERROR")
            except BaseException:  # of the test's own
                job["currentState"] = "JOB_STATE_FAILED"
                raise

    def _now(self) -> str:
        moment = START + timedelta(seconds=next(self._seconds))
        return moment.isoformat().replace("+00:00", "Z")
