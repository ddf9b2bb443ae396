"""Secret Manager over HTTP: secrets, the value of their latest version, and their policies."""

from __future__ import annotations

import base64
from typing import Any

from tests.fakes.errors import ServiceError
from tests.fakes.http_service import HttpService, Request
from tests.fakes.policies import add_policy_routes
from tests.fakes.world import World

SERVICE = "secretmanager.googleapis.com"
SECRET = "/v1/projects/{project}/secrets/{secret}"


class FakeSecrets:
    """The values of secrets by full name with the project's id; None for a secret without a version."""

    def __init__(self, service: HttpService, world: World) -> None:
        self._world = world
        self.values: dict[str, str | None] = {}
        add_policy_routes(service, world, SECRET, lambda request, verb: self._name(request, f"secrets.{verb}"))

        @service.route("GET", SECRET)
        def get(request: Request) -> Any:
            return {"name": self._shown(self._name(request, "secrets.get")), "replication": {"automatic": {}}}

        @service.route("GET", f"{SECRET}/versions/{{version}}:access")
        def access(request: Request) -> Any:
            name = self._name(request, "versions.access")
            value = self.values[name]
            if value is None or request.parts["version"] not in ("latest", "1"):
                version = f"{self._shown(name)}/versions/{request.parts['version']}"
                raise ServiceError(404, f"Secret Version [{version}] not found.")
            return {
                "name": f"{self._shown(name)}/versions/1",
                "payload": {"data": base64.b64encode(value.encode()).decode()},
            }

    def _name(self, request: Request, verb: str) -> str:
        """Return the secret's name with the project's id; checks the caller's permission and that it exists."""
        project = self._world.project(request.parts["project"])
        self._world.require_service(project, SERVICE)
        name = f"projects/{project.id}/secrets/{request.parts['secret']}"
        permission = f"secretmanager.{verb}"
        message = f"Permission '{permission}' denied for resource '{name}' (or it may not exist)."
        self._world.require(request.caller, permission, name, f"projects/{project.id}", message=message)
        if name not in self.values:
            raise ServiceError(404, f"Secret [{self._shown(name)}] not found.")
        return name

    def _shown(self, name: str) -> str:
        """Return a secret's name as answers have it, with the project's number."""
        _, project, *rest = name.split("/")
        return "/".join(("projects", str(self._world.project(project).number), *rest))
