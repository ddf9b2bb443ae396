"""Reading and writing of IAM policies in the world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fakes.errors import ServiceError
from tests.fakes.http_service import HttpService, Request
from tests.fakes.world import World

MANAGED = ".iam.gserviceaccount.com"


def check_members(world: World, resource: str, policy: dict[str, Any]) -> None:
    """Reject new members that do not exist, or that are too new to be visible everywhere."""
    known = {member for binding in world.policy(resource)["bindings"] for member in binding.get("members", [])}
    for binding in policy.get("bindings", []):
        for member in set(binding.get("members", [])) - known:
            kind, _, email = member.partition(":")
            if kind in ("principal", "principalSet") and email.startswith("//iam.googleapis.com/"):
                continue
            if kind not in ("user", "group", "domain", "serviceAccount", "projectOwner", "projectEditor"):
                raise ServiceError(400, f"The member {member} is of an unknown type.")
            if kind == "serviceAccount" and email.endswith(MANAGED):
                account = world.accounts.get(email)
                if account is None or account.get("hidden", 0) > 0:
                    if account:
                        account["hidden"] -= 1
                    raise ServiceError(400, f"Service account {email} does not exist.")


def write(world: World, resource: str, body: dict[str, Any]) -> dict[str, Any]:
    """setIamPolicy of Resource Manager, IAM and Artifact Registry: {"policy": …}."""
    with world.lock:
        check_members(world, resource, body["policy"])
        return world.set_policy(resource, body["policy"])


def add_policy_routes(
    service: HttpService, world: World, path: str, name_of: Callable[[Request, str], str], *, read_with: str = "GET"
) -> None:
    """Add getIamPolicy and setIamPolicy of the resources at `path`.

    `name_of` returns a resource's name, after checking that it exists and that the caller has a permission, which is
    passed without its prefix (getIamPolicy).
    """

    @service.route(read_with, f"{path}:getIamPolicy")
    def get_policy(request: Request) -> Any:
        name = name_of(request, "getIamPolicy")
        return world.read_policy(name, int(request.query.get("options.requestedPolicyVersion", 1)))

    @service.route("POST", f"{path}:setIamPolicy")
    def set_policy(request: Request) -> Any:
        return write(world, name_of(request, "setIamPolicy"), request.json)


def add_permissions_route(service: HttpService, world: World, path: str, name_of: Callable[[Request], str]) -> None:
    """Add testIamPermissions of the resources at `path`.

    `name_of` returns a resource's name, projects/PROJECT/…, after checking that it exists; no permission is needed.
    """

    @service.route("POST", f"{path}:testIamPermissions")
    def test_permissions(request: Request) -> Any:
        name = name_of(request)
        above = "/".join(name.split("/")[:2])
        asked = request.json["permissions"]
        return {"permissions": [one for one in asked if world.allowed(request.caller, one, name, above)]}
