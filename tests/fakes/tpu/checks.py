"""What the TPU API refuses: bodies that its discovery document does not describe, and requests against its rules."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import googleapiclient

from tests.fakes.errors import ServiceError
from tests.fakes.tpu.catalogue import ZONES, Slice, slice_of
from tests.fakes.vertex.shapes import check_labels, invalid
from tests.fakes.world import Project, World

IDENTITY = re.compile(r"[A-Za-z0-9_.~+%-]+")
ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z]")
DURATION = re.compile(r"(\d+(?:\.\d+)?)s")
TYPES = {"string": str, "boolean": bool, "integer": int, "number": (int, float), "object": dict, "array": list}


@functools.cache
def discovery() -> dict[str, Any]:
    """Return the discovery document of the TPU API v2, as Google's client ships it."""
    folder = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
    return json.loads((folder / "tpu.v2.json").read_text())


def check_body(body: Any, schema: dict[str, Any], path: str) -> None:
    """Check a message against its schema: unknown fields, types and enum values."""
    schema = discovery()["schemas"][schema["$ref"]] if "$ref" in schema else schema
    kind = schema.get("type", "any")
    if kind == "any":
        return
    if not isinstance(body, TYPES[kind]) or (kind == "integer" and isinstance(body, bool)):
        raise invalid(f"Invalid value at '{path}' ({kind}), {body!r}")
    if "enum" in schema and body not in schema["enum"]:
        raise invalid(f"Invalid value at '{path}', \"{body}\"")
    if kind == "array":
        for number, each in enumerate(body):
            check_body(each, schema["items"], f"{path}[{number}]")
    elif kind == "object" and "additionalProperties" in schema:
        for name, each in body.items():
            check_body(each, schema["additionalProperties"], f"{path}[{name}]")
    elif kind == "object":
        for name, each in body.items():
            if name not in schema.get("properties", {}):
                raise invalid(f"Invalid JSON payload received. Unknown name \"{name}\" at '{path}': Cannot find field.")
            check_body(each, schema["properties"][name], f"{path}.{name}")


def check_zone(zone: str, forbidden: Collection[str]) -> None:
    """Refuse a zone that the project may not use, or that has no TPUs."""
    if zone in forbidden or not ZONE.fullmatch(zone):
        text = f"Permission denied on 'locations/{zone}' (or it may not exist)."
        raise ServiceError(403, text, info="LOCATION_POLICY_VIOLATED")
    if zone not in ZONES:
        raise invalid(f'Cloud TPU received a bad request. The requested zone "{zone}" is not supported. [EID: 0x5e6b]')


def check_request(world: World, project: Project, zone: str, identity: str, body: dict[str, Any], caller: str) -> Slice:
    """Check the request of a queued resource with one node; return the node's slice."""
    check_body(body, {"$ref": "QueuedResource"}, "queued_resource")
    if not IDENTITY.fullmatch(identity):
        raise invalid(f"Invalid queued_resource_id {identity!r}: it must match ^[A-Za-z0-9_.~+%-]+$.")
    if "spot" in body and "guaranteed" in body:
        raise invalid("Invalid value at 'queued_resource' (oneof), oneof field 'tier' is already set.")
    limits = [name for name in body.get("queueingPolicy", {}) if name.startswith(("validUntil", "validInterval"))]
    if len(limits) > 1:
        raise invalid("Invalid value at 'queued_resource.queueing_policy' (oneof): start timing constraints conflict.")
    valid_for(body)
    specs = body.get("tpu", {}).get("nodeSpec", [])
    if len(specs) != 1:
        raise invalid("A queued resource must have exactly one node spec.")
    return _check_spec(world, project, zone, specs[0], caller)


def valid_for(body: dict[str, Any]) -> float | None:
    """Return after how many seconds a request expires; None if it does not."""
    text = body.get("queueingPolicy", {}).get("validUntilDuration")
    if text is None:
        return None
    match = DURATION.fullmatch(text)
    if not match:
        raise invalid(f"Invalid value at 'queued_resource.queueing_policy.valid_until_duration', \"{text}\"")
    return float(match[1])


def _check_spec(world: World, project: Project, zone: str, spec: dict[str, Any], caller: str) -> Slice:
    parents = {f"projects/{name}/locations/{zone}" for name in (project.id, project.number)}
    if spec.get("parent") not in parents:
        raise invalid(f"The node spec's parent {spec.get('parent')!r} is not the queued resource's.")
    if ("nodeId" in spec) == ("multisliceParams" in spec):
        raise invalid("Exactly one of node_id and multislice_params must be set.")
    if "multisliceParams" in spec:
        raise ServiceError(400, "This fake provisions no multislice environments.", "UNIMPLEMENTED")
    if not IDENTITY.fullmatch(spec["nodeId"]):
        raise invalid(f"Invalid node_id {spec['nodeId']!r}: it must match ^[A-Za-z0-9_.~+%-]+$.")
    node = spec.get("node", {})
    if ("acceleratorType" in node) == ("acceleratorConfig" in node):
        raise invalid("Exactly one of accelerator_type and accelerator_config must be set.")
    if "networkConfig" in node and "networkConfigs" in node:
        raise invalid("network_config and network_configs are mutually exclusive.")
    check_labels(node.get("labels", {}))
    found = slice_of(node.get("acceleratorType", ""), node.get("acceleratorConfig", {}))
    if found is None or zone not in found.generation.zones:
        name = node.get("acceleratorType") or node["acceleratorConfig"]
        raise invalid(
            "Cloud TPU received a bad request. The requested accelerator configuration for accelerator type, "
            f'"{name}", could not be found in the zonal accelerator configurations for "{zone}".; the accelerator '
            f"{name} was not found in zone {zone} [EID: 0x5e6c]"
        )
    if node.get("runtimeVersion") not in found.generation.runtimes:
        raise invalid(
            f"The runtime version {node.get('runtimeVersion')!r} is not compatible with {found.accelerator_type}."
        )
    _check_account(world, project, node, caller)
    return found


def _check_account(world: World, project: Project, node: dict[str, Any], caller: str) -> None:
    """The caller needs actAs on the account that the VMs run as, which has to exist."""
    email = account_of(project, node)
    resource = f"projects/{project.id}/serviceAccounts/{email}"
    if email not in world.accounts:
        raise invalid(f"The service account {email} does not exist.")
    world.require(
        caller,
        "iam.serviceAccounts.actAs",
        resource,
        f"projects/{project.id}",
        message=f"The user does not have access to service account '{email}'. Ask a project owner to grant you the "
        "iam.serviceAccountUser role on the service account.",
    )


def account_of(project: Project, node: dict[str, Any]) -> str:
    """Return the e-mail of the account that a node's VMs run as: by default Compute Engine's."""
    default = f"{project.number}-compute@developer.gserviceaccount.com"
    return str(node.get("serviceAccount", {}).get("email") or default)
