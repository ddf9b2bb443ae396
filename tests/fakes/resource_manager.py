"""Resource Manager: projects and their policies."""

from __future__ import annotations

from typing import Any

from tests.fakes.http_service import HttpService, Request
from tests.fakes.world import World


def add_resource_manager(service: HttpService, world: World) -> None:
    """Answer cloudresourcemanager v3's projects.get."""

    @service.route("GET", "/v3/projects/{project}")
    def get(request: Request) -> Any:
        project = world.project(request.parts["project"])
        world.require(request.caller, "resourcemanager.projects.get", f"projects/{project.id}")
        return {"name": f"projects/{project.number}", "projectId": project.id, "state": "ACTIVE"}
