"""IAM: service accounts and who may act as them."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.errors import ServiceError
from tests.fakes.http_service import HttpService, Request
from tests.fakes.policies import add_permissions_route, add_policy_routes
from tests.fakes.world import World

ACCOUNT = "/v1/projects/{project}/serviceAccounts/{email}"


class FakeIam:
    """The service. `hidden`: the number of policy writes that do not see a new account yet."""

    def __init__(self, service: HttpService, world: World) -> None:
        self.hidden = 0
        self._world = world
        self._add_accounts(service)
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
            return answer

        @service.route("GET", ACCOUNT)
        def get(request: Request) -> Any:
            account, _ = self._account(request, "iam.serviceAccounts.get")
            return {key: value for key, value in account.items() if key != "hidden"}

    def _account(self, request: Request, permission: str | None) -> tuple[dict[str, Any], str]:
        """Return the account of a request and the key of its policy."""
        email = request.parts["email"]
        project = self._world.project(request.parts["project"])
        self._world.require_service(project, "iam.googleapis.com")
        account = self._world.accounts.get(email)
        if account is None or account.get("projectId") != project.id:
            raise ServiceError(404, f"Unknown service account: {email}.")
        if permission:
            self._world.require(request.caller, permission, account["name"], f"projects/{project.id}")
        return account, account["name"]
