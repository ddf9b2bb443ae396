"""Cloud Build's method that returns the default service account of builds."""

from __future__ import annotations

from typing import Any

from tests.fakes.http_service import HttpService, Request
from tests.fakes.world import World


def add_default_account(service: HttpService, world: World) -> None:
    """Handle cloudbuild v1's getDefaultServiceAccount: in new projects, Compute Engine's default account."""

    @service.route("GET", "/v1/projects/{project}/locations/{location}/defaultServiceAccount")
    def get(request: Request) -> Any:
        project = world.project(request.parts["project"])
        world.require_service(project, "cloudbuild.googleapis.com")
        world.require(request.caller, "cloudbuild.builds.get", f"projects/{project.id}")
        email = f"{project.number}-compute@developer.gserviceaccount.com"
        return {
            "name": request.path.removeprefix("/v1/"),
            "serviceAccountEmail": f"projects/{project.number}/serviceAccounts/{email}",
        }
