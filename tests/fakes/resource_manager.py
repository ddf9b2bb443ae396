"""Resource Manager: projects and their policies."""

from __future__ import annotations

from typing import Any

from tests.fakes.http_service import HttpService, Request
from tests.fakes.policies import add_permissions_route, write
from tests.fakes.world import Project, World

SERVICE = "cloudresourcemanager.googleapis.com"


def add_resource_manager(service: HttpService, world: World) -> None:
    """Handle cloudresourcemanager v3's projects.get and the policy methods of projects."""

    def project_of(request: Request, permission: str | None) -> Project:
        project = world.project(request.parts["project"])
        world.require_service(project, SERVICE)
        if permission:
            world.require(request.caller, permission, f"projects/{project.id}")
        return project

    @service.route("GET", "/v3/projects/{project}")
    def get(request: Request) -> Any:
        project = project_of(request, "resourcemanager.projects.get")
        found = {"name": f"projects/{project.number}", "projectId": project.id, "state": "ACTIVE"}
        return {**found, "parent": project.parents[0]} if project.parents else found

    @service.route("POST", "/v3/projects/{project}:getIamPolicy")
    def get_policy(request: Request) -> Any:
        project = project_of(request, "resourcemanager.projects.getIamPolicy")
        version = request.json.get("options", {}).get("requestedPolicyVersion", 1)
        return world.read_policy(f"projects/{project.id}", version)

    @service.route("POST", "/v3/projects/{project}:setIamPolicy")
    def set_policy(request: Request) -> Any:
        project = project_of(request, "resourcemanager.projects.setIamPolicy")
        return write(world, f"projects/{project.id}", request.json)

    add_permissions_route(
        service, world, "/v3/projects/{project}", lambda request: f"projects/{project_of(request, None).id}"
    )
