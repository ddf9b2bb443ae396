"""Artifact Registry's repositories and their policies, without the images."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.fakes.errors import ServiceError
from tests.fakes.http_service import HttpService, Request
from tests.fakes.policies import add_permissions_route, add_policy_routes
from tests.fakes.world import World

SERVICE = "artifactregistry.googleapis.com"
METADATA = {"@type": "type.googleapis.com/google.devtools.artifactregistry.v1.OperationMetadata"}
PARENT = "/v1/projects/{project}/locations/{location}"
REPOSITORY = f"{PARENT}/repositories/{{repository}}"


class FakeRepositories:
    """Repositories in `world.repositories`, by full name with the project's id."""

    def __init__(self, service: HttpService, world: World) -> None:
        self._world = world
        self._operations: dict[str, dict[str, Any]] = {}
        self.looks = 2
        self._add_repositories(service)
        add_policy_routes(
            service,
            world,
            REPOSITORY,
            lambda request, verb: self._name(request, f"artifactregistry.repositories.{verb}"),
        )
        add_permissions_route(service, world, REPOSITORY, lambda request: self._name(request, None))

    def add(self, name: str, kind: str = "DOCKER") -> dict[str, Any]:
        """Create a repository; return its resource."""
        made = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        reason = "API containerscanning.googleapis.com is not enabled."
        resource = {
            "name": name,
            "format": kind,
            "mode": "STANDARD_REPOSITORY",
            "createTime": made,
            "updateTime": made,
            "satisfiesPzi": True,
            "vulnerabilityScanningConfig": {"enablementState": "SCANNING_DISABLED", "enablementStateReason": reason},
        }
        self._world.repositories[name] = resource
        return resource

    def start(self, parent: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return an operation that does the work after some looks at it."""
        name = f"{parent}/operations/{self._world.number()}"
        self._operations[name] = {"looks": self.looks, "work": work}
        return {"name": name, "metadata": METADATA}

    def _add_repositories(self, service: HttpService) -> None:
        @service.route("POST", f"{PARENT}/repositories")
        def create(request: Request) -> Any:
            project = self._world.project(request.parts["project"])
            self._world.require_service(project, SERVICE)
            self._world.require(request.caller, "artifactregistry.repositories.create", f"projects/{project.id}")
            identifier = request.query["repositoryId"]
            location = request.parts["location"]
            name = f"projects/{project.id}/locations/{location}/repositories/{identifier}"
            if not re.fullmatch(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?|(?:(?:us|eu|asia)\.)?gcr\.io", identifier):
                raise ServiceError(400, f"The repository ID {identifier} is not valid.")
            if request.json.get("format") not in ("DOCKER", "PYTHON", "GENERIC"):
                raise ServiceError(400, "The repository format is required.")
            with self._world.lock:
                if name in self._world.repositories:
                    raise ServiceError(409, f"the repository already exists: {name}")

                def make() -> dict[str, Any]:
                    self._world.writes["repository"] += name not in self._world.repositories
                    return self.add(name, request.json["format"])

                return self.start(f"projects/{project.id}/locations/{location}", make)

        @service.route("GET", f"{PARENT}/operations/{{operation}}")
        def operation(request: Request) -> Any:
            name = request.path.removeprefix("/v1/")
            with self._world.lock:
                pending = self._operations[name]
                pending["looks"] -= 1
                if pending["looks"] > 0:
                    return {"name": name, "metadata": METADATA}
                if "response" not in pending:
                    pending["response"] = pending["work"]()
                return {"name": name, "metadata": METADATA, "done": True, "response": pending["response"]}

        @service.route("GET", REPOSITORY)
        def get(request: Request) -> Any:
            name = self._name(request, "artifactregistry.repositories.get")
            _, project, _, location, _, repository = name.split("/")
            uri = f"{location}-docker.pkg.dev/{project}/{repository}"
            return {**self._world.repositories[name], "registryUri": uri}

    def _name(self, request: Request, permission: str | None) -> str:
        """Return the repository's name with the project's id; checks that it exists and the caller's permission."""
        project = self._world.project(request.parts["project"])
        self._world.require_service(project, SERVICE)
        location, repository = request.parts["location"], request.parts["repository"]
        name = f"projects/{project.id}/locations/{location}/repositories/{repository}"
        if permission:
            message = f"Permission '{permission}' denied on resource '//{SERVICE}/{name}' (or it may not exist)."
            self._world.require(request.caller, permission, name, f"projects/{project.id}", message=message)
        if name not in self._world.repositories:
            raise ServiceError(404, "Requested entity was not found.")
        return name
