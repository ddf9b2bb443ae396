"""IAM: service accounts and who may act as them."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.errors import REASONS, ServiceError
from tests.fakes.http_service import HttpService, Request
from tests.fakes.policies import add_permissions_route, add_policy_routes
from tests.fakes.roles import PERMISSIONS
from tests.fakes.world import World

ACCOUNT = "/v1/projects/{project}/serviceAccounts/{email}"


class FakeIam:
    """The service. `hidden`: the number of policy writes that do not see a new account yet.

    `flicker`: whether the first calls after an account's creation see it; servers learn of it one by one.
    """

    def __init__(self, service: HttpService, world: World) -> None:
        self.hidden = 0
        self.flicker: tuple[bool, ...] = (True, False, True, False)
        self._new: dict[str, list[bool]] = {}
        self._world = world
        service.error_body = _error_body
        self._add_accounts(service)
        self._add_roles(service)
        add_policy_routes(
            service,
            world,
            ACCOUNT,
            lambda request, verb: self._account(request, f"iam.serviceAccounts.{verb}")[1],
            read_with="POST",
        )
        add_permissions_route(service, world, ACCOUNT, lambda request: self._account(request, None)[1])

    def add_account(self, email: str) -> dict[str, Any]:
        """Create an account in an existing project; return its resource."""
        return self._world.add_account(self._world.project(email.partition("@")[2].partition(".")[0]), email)

    def _add_accounts(self, service: HttpService) -> None:
        @service.route("POST", "/v1/projects/{project}/serviceAccounts")
        def create(request: Request) -> Any:
            project = self._world.project(request.parts["project"])
            self._world.require_service(project, "iam.googleapis.com")
            self._world.require(request.caller, "iam.serviceAccounts.create", f"projects/{project.id}")
            name = request.json["accountId"]
            if not re.fullmatch(r"[a-z](?:[-a-z0-9]{4,28}[a-z0-9])", name):
                raise ServiceError(400, f"Account ID {name!r} must be 6 to 30 lower-case letters, digits and hyphens.")
            email = f"{name}@{project.id}.iam.gserviceaccount.com"
            with self._world.lock:
                if email in self._world.accounts:
                    raise ServiceError(
                        409, f"Service account {name} already exists within project projects/{project.id}."
                    )
                account = self.add_account(email)
                self._world.writes["account"] += 1
                answer = dict(account)
                account["hidden"] = self.hidden
                self._new[email] = list(self.flicker)
            return answer

        @service.route("GET", ACCOUNT)
        def get(request: Request) -> Any:
            account, _ = self._account(request, "iam.serviceAccounts.get")
            return {key: value for key, value in account.items() if key != "hidden"}

    def _add_roles(self, service: HttpService) -> None:
        @service.route("POST", "/v1/projects/{project}/roles")
        def create(request: Request) -> Any:
            name, role = self._role(request, "create", request.json["roleId"]), request.json["role"]
            known = frozenset().union(*PERMISSIONS.values())
            if unknown := sorted({*role["includedPermissions"]} - known):
                raise ServiceError(400, f"Permission {unknown[0]} is not valid.")
            if name in self._world.roles:
                raise ServiceError(409, f"A role named {request.json['roleId']} in {request.parts['project']} exists.")
            self._world.roles[name] = frozenset(role["includedPermissions"])
            self._world.writes["role"] += 1
            return {**role, "name": name}

        @service.route("GET", "/v1/projects/{project}/roles/{role}")
        def get(request: Request) -> Any:
            name = self._role(request, "get", request.parts["role"])
            if name not in self._world.roles:
                raise ServiceError(404, f"The role named {name} was not found.")
            return {"name": name, "includedPermissions": sorted(self._world.roles[name])}

    def _role(self, request: Request, verb: str, role: str) -> str:
        project = self._world.project(request.parts["project"])
        self._world.require_service(project, "iam.googleapis.com")
        self._world.require(request.caller, f"iam.roles.{verb}", f"projects/{project.id}")
        return f"projects/{project.id}/roles/{role}"

    def _account(self, request: Request, permission: str | None) -> tuple[dict[str, Any], str]:
        """Return the account of a request and the key of its policy."""
        email = request.parts["email"]
        project = self._world.project(request.parts["project"])
        self._world.require_service(project, "iam.googleapis.com")
        account = self._world.accounts.get(email)
        if account is None or account.get("projectId") != project.id:
            raise ServiceError(404, "Unknown service account")
        if permission:
            self._world.require(request.caller, permission, account["name"], f"projects/{project.id}")
        with self._world.lock:
            seen = self._new.get(email)
            if seen and not seen.pop(0):
                raise ServiceError(404, f"Service account {account['name']} does not exist.")
        return account, account["name"]


def _error_body(error: ServiceError) -> dict[str, object]:
    """Return the body of an error, which has a list of errors beside google.rpc's name."""
    body = error.as_older_json({**REASONS, 409: "alreadyExists"})["error"]
    return {"error": {**body, "status": error.reason}}
