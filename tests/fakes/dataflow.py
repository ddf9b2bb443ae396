"""Dataflow: what it checks when a job is created. No job runs."""

from __future__ import annotations

from typing import Any

from tests.fakes.errors import ServiceError
from tests.fakes.http_service import HttpService, Request
from tests.fakes.world import World


def add_dataflow(service: HttpService, world: World) -> None:
    """Handle dataflow v1b3's projects.locations.jobs.create."""

    @service.route("POST", "/v1b3/projects/{project}/locations/{location}/jobs")
    def create(request: Request) -> Any:
        project = world.project(request.parts["project"])
        place = f"projects/{project.id}"
        for name in ("dataflow.googleapis.com", "compute.googleapis.com"):
            world.require_service(project, name)
        world.require(request.caller, "dataflow.jobs.create", place)
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
        return {"id": f"job-{world.number()}", "projectId": project.id, "currentState": "JOB_STATE_PENDING"}
