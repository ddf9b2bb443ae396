"""A queued resource of the fake TPU API, with its one node."""

from __future__ import annotations

import copy
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.fakes.tpu.catalogue import Slice
from tests.fakes.tpu.hosts import Host
from tests.fakes.world import Project


@dataclass
class Queued:
    """A queued resource with its one node and the node's hosts."""

    name: str
    body: dict[str, Any]
    slice: Slice
    project: Project
    entered: float
    expires: float | None
    node: dict[str, Any] | None = None
    hosts: list[Host] = field(default_factory=list)
    work: Future[None] | None = None
    removed: bool = False

    @property
    def state(self) -> str:
        return str(self.body["state"]["state"])

    @property
    def zone(self) -> str:
        return self.name.split("/")[3]


def node_of(resource: Queued) -> dict[str, Any]:
    """Return a queued resource's node as it is shown: what was asked for, and where its hosts are."""
    spec = resource.body["tpu"]["nodeSpec"][0]
    parent = resource.name.partition("/queuedResources/")[0]
    return {
        **copy.deepcopy(spec["node"]),
        "name": f"{parent}/nodes/{spec['nodeId']}",
        "state": "CREATING",
        "id": spec["nodeId"],
        "acceleratorType": resource.slice.accelerator_type,
        "acceleratorConfig": {"type": resource.slice.generation.type, "topology": resource.slice.topology},
        "apiVersion": "V2",
        "cidrBlock": "10.130.0.0/20",
        "createTime": timestamp(),
        "queuedResource": resource.name,
        "shieldedInstanceConfig": {},
        "schedulingConfig": {"spot": True} if "spot" in resource.body else {},
        "networkEndpoints": [
            {"ipAddress": f"10.130.0.{number + 2}", "port": 8470, "accessConfig": {}}
            for number in range(resource.slice.hosts)
        ],
    }


def timestamp() -> str:
    """Return the time as Google's APIs write it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
