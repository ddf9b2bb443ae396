"""Cloud KMS: keys, their policies and who may use them."""

from __future__ import annotations

from typing import Any

from tests.fakes.errors import ServiceError
from tests.fakes.http_service import HttpService, Request
from tests.fakes.policies import write
from tests.fakes.world import World

KEY = "/v1/projects/{project}/locations/{location}/keyRings/{ring}/cryptoKeys/{key}"


def add_key(world: World, name: str) -> None:
    """Create a key with an enabled version."""
    version = {"name": f"{name}/cryptoKeyVersions/1", "state": "ENABLED"}
    world.keys[name] = {"name": name, "purpose": "ENCRYPT_DECRYPT", "primary": version}


def add_kms(service: HttpService, world: World) -> None:
    """Handle cloudkms v1's cryptoKeys.get and the policy methods of keys."""

    def name_of(request: Request, permission: str | None) -> str:
        project = world.project(request.parts["project"])
        world.require_service(project, "cloudkms.googleapis.com")
        name = KEY.removeprefix("/v1/").format_map(request.parts)
        if permission:
            message = f"Permission '{permission}' denied on resource '{name}' (or it may not exist)."
            world.require(request.caller, permission, name, f"projects/{project.id}", message=message)
        if name not in world.keys:
            raise ServiceError(404, f"CryptoKey {name} not found.")
        return name

    @service.route("GET", KEY)
    def get(request: Request) -> Any:
        return world.keys[name_of(request, "cloudkms.cryptoKeys.get")]

    @service.route("GET", f"{KEY}:getIamPolicy")
    def get_policy(request: Request) -> Any:
        name = name_of(request, "cloudkms.cryptoKeys.getIamPolicy")
        return world.read_policy(name, int(request.query.get("options.requestedPolicyVersion", 1)))

    @service.route("POST", f"{KEY}:setIamPolicy")
    def set_policy(request: Request) -> Any:
        return write(world, name_of(request, "cloudkms.cryptoKeys.setIamPolicy"), request.json)

    @service.route("POST", f"{KEY}:testIamPermissions")
    def test_permissions(request: Request) -> Any:
        name = name_of(request, None)
        above = f"projects/{name.split('/')[1]}"
        asked = request.json["permissions"]
        return {"permissions": [one for one in asked if world.allowed(request.caller, one, name, above)]}
