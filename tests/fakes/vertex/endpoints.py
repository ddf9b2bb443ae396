"""EndpointService: endpoints, the models that are deployed on them, and their traffic.

The rules are those of the comments in endpoint.proto and endpoint_service.proto, unless a function names another
source.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from google.cloud import aiplatform_v1 as vertex
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from tests.fakes.errors import ServiceError, not_found
from tests.fakes.filters import matcher
from tests.fakes.paging import page_of
from tests.fakes.vertex.deployment import Deployment
from tests.fakes.vertex.endpoint_checks import (
    ENDPOINT_ID,
    UPDATABLE,
    check_endpoint,
    check_inference_timeout,
    check_traffic,
    failed_precondition,
)
from tests.fakes.vertex.operations import Operations
from tests.fakes.vertex.shapes import check_display_name, check_labels, invalid, project_of, resource_of
from tests.fakes.world import World

ORDERS = ("display_name", "create_time", "update_time")


class EndpointService:
    """Endpoints by name.

    Attributes:
        patience: Seconds in which a model's servers must become healthy, if its container has no shorter
            `deployment_timeout`.
        answers: Predictions by endpoint, deployed model and HTTP status.
        dedicated_dns: The address of dedicated endpoints, here the same for all.
    """

    def __init__(self, world: World, region: str, operations: Operations) -> None:
        self.world = world
        self.region = region
        self.endpoints: dict[str, vertex.Endpoint] = {}
        self.patience = 60.0
        self.answers: Counter[tuple[str, str, int]] = Counter()
        self.dedicated_dns = ""
        self.random = random.Random(0)
        self._operations = operations
        # By endpoint and id; those that are being deployed are also in `starting`.
        self.deployments: dict[str, dict[str, Deployment]] = {}
        self.starting: set[tuple[str, str]] = set()
        self._etag = 0

    def methods(self) -> dict[str, tuple[Any, Any]]:
        return {
            "CreateEndpoint": (vertex.CreateEndpointRequest, self._create),
            "GetEndpoint": (vertex.GetEndpointRequest, self._get),
            "ListEndpoints": (vertex.ListEndpointsRequest, self._list),
            "UpdateEndpoint": (vertex.UpdateEndpointRequest, self._update),
            "UpdateEndpointLongRunning": (vertex.UpdateEndpointLongRunningRequest, self._update_long_running),
            "DeleteEndpoint": (vertex.DeleteEndpointRequest, self._delete),
        }

    def deployment(self, endpoint: str, deployed: str) -> Deployment:
        """Return a deployed model by the endpoint's id and its own."""
        name = next(name for name in self.deployments if name.endswith(f"/endpoints/{endpoint}"))
        return self.deployments[name][deployed]

    @contextlib.contextmanager
    def routed(self, name: str, caller: str) -> Iterator[tuple[vertex.Endpoint, Deployment]]:
        """Choose a deployed model for a request by the traffic split; it is not ended before the block is.

        Source of the message: GoogleCloudPlatform/explainable_ai_sdk#3.
        """
        with self.world.lock:
            endpoint = self.endpoint(name, caller, "aiplatform.endpoints.predict")
            if not endpoint.traffic_split:
                raise failed_precondition(f"Endpoint {endpoint.name} doesn't have traffic_split.")
            split = dict(sorted(endpoint.traffic_split.items()))
            (chosen,) = self.random.choices(list(split), list(split.values()))
            deployment = self.deployments[endpoint.name][chosen]
            deployment.begin()
            snapshot = vertex.Endpoint(endpoint)
        try:
            yield snapshot, deployment
        finally:
            deployment.end()

    def _create(self, request: vertex.CreateEndpointRequest, caller: str) -> operations_pb2.Operation:
        project = project_of(self.world, request.parent, self.region)
        self.world.require(caller, "aiplatform.endpoints.create", f"projects/{project.id}")
        check_endpoint(self.world, project, request.endpoint, self.region)
        identity = request.endpoint_id or str(self.world.number())
        if request.endpoint_id and not ENDPOINT_ID.fullmatch(identity):
            raise invalid(
                f"Invalid endpoint_id {identity!r}: it must be a number of up to 9 digits, or begin with a letter, end "
                "with a letter or number, and have up to 63 characters of [a-z0-9-]."
            )
        name = f"projects/{project.number}/locations/{self.region}/endpoints/{identity}"
        if name in self.endpoints:
            raise ServiceError(409, f"Endpoint {name} already exists.")
        made = vertex.Endpoint(request.endpoint)
        made.name, made.deployed_models, made.create_time = name, [], datetime.now(UTC)
        made.dedicated_endpoint_dns = self.dedicated_dns if made.dedicated_endpoint_enabled else ""

        def add() -> vertex.Endpoint:
            if name in self.endpoints:
                raise ServiceError(409, f"Endpoint {name} already exists.")
            self.endpoints[name], self.deployments[name] = made, {}
            return self.changed(made)

        return self._operations.start(name, add, vertex.CreateEndpointOperationMetadata())

    def _get(self, request: vertex.GetEndpointRequest, caller: str) -> vertex.Endpoint:
        self._operations.pass_time()
        with self.world.lock:
            return self._shown(self.endpoint(request.name, caller, "aiplatform.endpoints.get"))

    def _list(self, request: vertex.ListEndpointsRequest, caller: str) -> vertex.ListEndpointsResponse:
        project = project_of(self.world, request.parent, self.region)
        self.world.require(caller, "aiplatform.endpoints.list", f"projects/{project.id}")
        if request.read_mask.paths:
            raise invalid("read_mask is not supported here.")
        self._operations.pass_time()
        passes = matcher(request.filter)
        with self.world.lock:
            prefix = f"projects/{project.number}/"
            found = [one for name, one in self.endpoints.items() if name.startswith(prefix) and passes(_fields(one))]
            for field, descending in reversed(_order(request.order_by)):
                found.sort(key=lambda one: getattr(one, field), reverse=descending)
            page, following = page_of(found, request.page_size, request.page_token)
            return vertex.ListEndpointsResponse(endpoints=[self._shown(one) for one in page], next_page_token=following)

    def _update(self, request: vertex.UpdateEndpointRequest, caller: str) -> vertex.Endpoint:
        """Change the fields of the mask.

        An etag that is not the newest is ABORTED: https://google.aip.dev/154. That only the fields of UPDATABLE can
        change is an assumption: they are those of Endpoint.update in google-cloud-aiplatform.
        """
        new, paths = request.endpoint, list(request.update_mask.paths)
        with self.world.lock:
            endpoint = self.endpoint(new.name, caller, "aiplatform.endpoints.update")
            if not paths:
                raise invalid("The update_mask is required.")
            for path in paths:
                if path not in UPDATABLE:
                    raise invalid(f"The field {path!r} of Endpoint cannot be updated.")
            if new.etag and new.etag != endpoint.etag:
                raise ServiceError(
                    409, f"The etag of endpoint {endpoint.name} has changed. Read it again and retry.", "ABORTED"
                )
            if "display_name" in paths:
                check_display_name(new.display_name)
            if "labels" in paths:
                check_labels(new.labels)
            if "traffic_split" in paths:
                check_traffic(new.traffic_split, self.able(endpoint.name))
            for path in paths:
                setattr(endpoint, path, getattr(new, path))
            return self.changed(endpoint)

    def _update_long_running(
        self, request: vertex.UpdateEndpointLongRunningRequest, caller: str
    ) -> operations_pb2.Operation:
        """Change `client_connection_config`: "Currently we only support updating" this field."""
        with self.world.lock:
            endpoint = self.endpoint(request.endpoint.name, caller, "aiplatform.endpoints.update")
            merged = vertex.Endpoint(endpoint)
            merged.client_connection_config = request.endpoint.client_connection_config
            check_inference_timeout(merged)

            def change() -> vertex.Endpoint:
                endpoint.client_connection_config = request.endpoint.client_connection_config
                return self.changed(endpoint)

            return self._operations.start(endpoint.name, change, vertex.UpdateEndpointOperationMetadata())

    def _delete(self, request: vertex.DeleteEndpointRequest, caller: str) -> operations_pb2.Operation:
        with self.world.lock:
            endpoint = self.endpoint(request.name, caller, "aiplatform.endpoints.delete")
            if deployed := self.deployments[endpoint.name]:
                names = ", ".join(one.message.model for one in deployed.values())
                raise failed_precondition(
                    f"Endpoint {endpoint.name} has one or more deployed or being deployed model(s): {names}."
                )

            def remove() -> empty_pb2.Empty:
                self.endpoints.pop(endpoint.name, None)
                self.deployments.pop(endpoint.name, None)
                self.world.writes["endpoint"] += 1
                return empty_pb2.Empty()

            parent = endpoint.name.partition("/endpoints/")[0]
            return self._operations.start(parent, remove, vertex.DeleteOperationMetadata())

    def endpoint(self, name: str, caller: str, permission: str) -> vertex.Endpoint:
        _, full = resource_of(self.world, self.region, name, "endpoints", caller, permission)
        if full not in self.endpoints:
            raise not_found(f"Endpoint {name}")
        return self.endpoints[full]

    def able(self, name: str) -> set[str]:
        """Return the ids of the deployed models that can have traffic."""
        return {
            identity
            for identity, one in self.deployments[name].items()
            if not one.leaving and (name, identity) not in self.starting
        }

    def all(self) -> list[vertex.DeployedModel]:
        """Return everything that draws on the quota."""
        return [one.message for deployed in self.deployments.values() for one in deployed.values()]

    def changed(self, endpoint: vertex.Endpoint) -> vertex.Endpoint:
        """Give an endpoint its new etag; return a copy."""
        self._etag += 1
        endpoint.etag = f"AMEw9yN{self._etag:08d}"
        endpoint.update_time = datetime.now(UTC)
        self.world.writes["endpoint"] += 1
        return self._shown(endpoint)

    def _shown(self, endpoint: vertex.Endpoint) -> vertex.Endpoint:
        """Return a copy with the status of the deployed models."""
        shown = vertex.Endpoint(endpoint)
        for deployed in shown.deployed_models:
            deployed.status.available_replica_count = self.deployments[endpoint.name][deployed.id].available
        return shown


def _order(text: str) -> list[tuple[str, bool]]:
    """Parse order_by: "display_name, create_time desc"."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        field, _, direction = part.partition(" ")
        if field not in ORDERS or direction.strip() not in ("", "desc"):
            raise invalid(f"Invalid order_by {text!r}.")
        found.append((field, direction.strip() == "desc"))
    return found


def _fields(endpoint: vertex.Endpoint) -> Mapping[str, Any]:
    """Return an endpoint's fields for filters, "both snake_case and camelCase"."""
    return {
        "endpoint": endpoint.name.rpartition("/")[2],
        "display_name": endpoint.display_name,
        "displayName": endpoint.display_name,
        "labels": dict(endpoint.labels),
    }
