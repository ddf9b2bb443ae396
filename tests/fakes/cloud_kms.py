"""Cloud KMS: keys, their policies and who may use them."""

from __future__ import annotations

from typing import Any

from tests.fakes.errors import ServiceError
from tests.fakes.http_service import HttpService, Request
from tests.fakes.policies import add_permissions_route, add_policy_routes
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

    add_policy_routes(service, world, KEY, lambda request, verb: name_of(request, f"cloudkms.cryptoKeys.{verb}"))
    add_permissions_route(service, world, KEY, lambda request: name_of(request, None))
