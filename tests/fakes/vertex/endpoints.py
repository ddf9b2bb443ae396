"""EndpointService: endpoints, the models that are deployed on them, and their traffic.

The rules are those of the comments in endpoint.proto and endpoint_service.proto, unless a function names another
source.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from google.cloud import aiplatform_v1 as vertex
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from tests.fakes.errors import ServiceError, not_found
from tests.fakes.filters import matcher
from tests.fakes.logging import Log
from tests.fakes.paging import page_of
from tests.fakes.vertex.deployment import Deployment
from tests.fakes.vertex.endpoint_checks import (
    DEPLOYED_ID,
    ENDPOINT_ID,
    LONGEST_DEPLOYMENT,
    MUTABLE,
    NEW,
    UPDATABLE,
    check_deployed_model,
    check_endpoint,
    check_inference_timeout,
    check_quota,
    check_replicas,
    check_traffic,
    failed_precondition,
)
from tests.fakes.vertex.models import ModelService
from tests.fakes.vertex.operations import Operations
from tests.fakes.vertex.serving import Servers
from tests.fakes.vertex.shapes import check_display_name, check_labels, invalid, project_of
from tests.fakes.world import Project, World

Stage = vertex.DeploymentStage
ORDERS = ("display_name", "create_time", "update_time")


class EndpointService:
    """Endpoints by name.

    Attributes:
        patience: Seconds in which a model's servers must become healthy, if its container has no shorter
            `deployment_timeout`.
        answers: Predictions by endpoint, deployed model and HTTP status.
        dedicated_dns: The address of dedicated endpoints, here the same for all.
    """

    def __init__(
        self, world: World, region: str, operations: Operations, models: ModelService, servers: Servers, log: Log
    ) -> None:
        self.world = world
        self.region = region
        self.endpoints: dict[str, vertex.Endpoint] = {}
        self.patience = 60.0
        self.answers: Counter[tuple[str, str, int]] = Counter()
        self.dedicated_dns = ""
        self.random = random.Random(0)
        self._operations, self._models, self._servers, self._log = operations, models, servers, log
        # By endpoint and id; one that is being deployed is in both, one that is being undeployed in the first.
        self._deployments: dict[str, dict[str, Deployment]] = {}
        self._starting: set[tuple[str, str]] = set()
        self._etag = 0

    def methods(self) -> dict[str, tuple[Any, Any]]:
        return {
            "CreateEndpoint": (vertex.CreateEndpointRequest, self._create),
            "GetEndpoint": (vertex.GetEndpointRequest, self._get),
            "ListEndpoints": (vertex.ListEndpointsRequest, self._list),
            "UpdateEndpoint": (vertex.UpdateEndpointRequest, self._update),
            "UpdateEndpointLongRunning": (vertex.UpdateEndpointLongRunningRequest, self._update_long_running),
            "DeleteEndpoint": (vertex.DeleteEndpointRequest, self._delete),
            "DeployModel": (vertex.DeployModelRequest, self._deploy),
            "UndeployModel": (vertex.UndeployModelRequest, self._undeploy),
            "MutateDeployedModel": (vertex.MutateDeployedModelRequest, self._mutate),
        }

    def deployment(self, endpoint: str, deployed: str) -> Deployment:
        """Return a deployed model by the endpoint's id and its own."""
        name = next(name for name in self._deployments if name.endswith(f"/endpoints/{endpoint}"))
        return self._deployments[name][deployed]

    @contextlib.contextmanager
    def routed(self, name: str, caller: str) -> Iterator[tuple[vertex.Endpoint, Deployment]]:
        """Choose a deployed model for a request by the traffic split; it is not ended before the block is.

        Source of the message: GoogleCloudPlatform/explainable_ai_sdk#3.
        """
        with self.world.lock:
            endpoint = self._endpoint(name, caller, "aiplatform.endpoints.predict")
            if not endpoint.traffic_split:
                raise failed_precondition(f"Endpoint {endpoint.name} doesn't have traffic_split.")
            split = dict(sorted(endpoint.traffic_split.items()))
            (chosen,) = self.random.choices(list(split), list(split.values()))
            deployment = self._deployments[endpoint.name][chosen]
            deployment.begin()
            snapshot = vertex.Endpoint(endpoint)
        try:
            yield snapshot, deployment
        finally:
            deployment.end()

    # Endpoints

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
            self.endpoints[name], self._deployments[name] = made, {}
            return self._changed(made)

        return self._operations.start(name, add, vertex.CreateEndpointOperationMetadata())

    def _get(self, request: vertex.GetEndpointRequest, caller: str) -> vertex.Endpoint:
        self._operations.pass_time()
        with self.world.lock:
            return self._shown(self._endpoint(request.name, caller, "aiplatform.endpoints.get"))

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
            endpoint = self._endpoint(new.name, caller, "aiplatform.endpoints.update")
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
                check_traffic(new.traffic_split, self._able(endpoint.name))
            for path in paths:
                setattr(endpoint, path, getattr(new, path))
            return self._changed(endpoint)

    def _update_long_running(
        self, request: vertex.UpdateEndpointLongRunningRequest, caller: str
    ) -> operations_pb2.Operation:
        """Change `client_connection_config`: "Currently we only support updating" this field."""
        with self.world.lock:
            endpoint = self._endpoint(request.endpoint.name, caller, "aiplatform.endpoints.update")
            merged = vertex.Endpoint(endpoint)
            merged.client_connection_config = request.endpoint.client_connection_config
            check_inference_timeout(merged)

            def change() -> vertex.Endpoint:
                endpoint.client_connection_config = request.endpoint.client_connection_config
                return self._changed(endpoint)

            return self._operations.start(endpoint.name, change, vertex.UpdateEndpointOperationMetadata())

    def _delete(self, request: vertex.DeleteEndpointRequest, caller: str) -> operations_pb2.Operation:
        with self.world.lock:
            endpoint = self._endpoint(request.name, caller, "aiplatform.endpoints.delete")
            if deployed := self._deployments[endpoint.name]:
                names = ", ".join(one.message.model for one in deployed.values())
                raise failed_precondition(
                    f"Endpoint {endpoint.name} has one or more deployed or being deployed model(s): {names}."
                )

            def remove() -> empty_pb2.Empty:
                self.endpoints.pop(endpoint.name, None)
                self._deployments.pop(endpoint.name, None)
                self.world.writes["endpoint"] += 1
                return empty_pb2.Empty()

            return self._operations.start(endpoint.name, remove, vertex.DeleteOperationMetadata())

    # Deployed models

    def _deploy(self, request: vertex.DeployModelRequest, caller: str) -> operations_pb2.Operation:
        """Check the request, and start the model's servers in a thread of its own.

        The message of an id that exists is not documented, nor whether several models can be deployed at once: here
        they can.
        """
        with self.world.lock:
            endpoint = self._endpoint(request.endpoint, caller, "aiplatform.endpoints.deploy")
            project = self.world.project(endpoint.name.split("/")[1])
            made = vertex.DeployedModel(request.deployed_model)
            made.id = made.id or str(self.world.number())
            if not DEPLOYED_ID.fullmatch(made.id):
                raise invalid(f"Invalid DeployedModel id {made.id!r}: it must have 1 to 10 characters of [0-9].")
            if made.id in self._deployments[endpoint.name]:
                raise ServiceError(409, f"DeployedModel {made.id} already exists in Endpoint {endpoint.name}.")
            model = self._models.version(made.model, caller, "aiplatform.models.get")
            check_deployed_model(self.world, project, caller, made, model, self.region)
            check_traffic(request.traffic_split, {*self._able(endpoint.name), NEW})
            check_quota(self.world, made, project.id, self.region, self._all())
            made.model, made.model_version_id = model.name, model.version_id
            made.display_name = made.display_name or model.display_name
            resources = made.dedicated_resources
            resources.max_replica_count = resources.max_replica_count or resources.min_replica_count
            identity = endpoint.name.rpartition("/")[2]
            deployment = Deployment(
                self._servers, made, vertex.Model(model), identity, self._hear(project, endpoint.name, made)
            )
            self._deployments[endpoint.name][made.id] = deployment
            self._starting.add((endpoint.name, made.id))
            metadata = vertex.DeployModelOperationMetadata(deployment_stage=Stage.STARTING_DEPLOYMENT)
            operation = self._operations.begin(endpoint.name, metadata)
            self.world.writes["deployedModel"] += 1
        arguments = (operation.name, metadata, endpoint, deployment, dict(request.traffic_split))
        threading.Thread(target=self._bring_up, args=arguments, daemon=True).start()
        return operation

    def _bring_up(
        self,
        operation: str,
        metadata: vertex.DeployModelOperationMetadata,
        endpoint: vertex.Endpoint,
        deployment: Deployment,
        split: Mapping[str, int],
    ) -> None:
        """Start the servers of a deployed model, then add it to the endpoint with its traffic."""
        made = deployment.message

        def stage(stage: Stage) -> None:
            metadata.deployment_stage = stage
            self._operations.update(operation, metadata)

        def add() -> vertex.DeployModelResponse:
            check_traffic(split, {*self._able(endpoint.name), NEW})
            made.create_time = datetime.now(UTC)
            endpoint.deployed_models.append(made)
            self._starting.discard((endpoint.name, made.id))
            if split:
                endpoint.traffic_split = {made.id if one == NEW else one: share for one, share in split.items()}
            self._changed(endpoint)
            metadata.deployment_stage = Stage.SUCCESSFULLY_DEPLOYED
            return vertex.DeployModelResponse(deployed_model=made)

        stage(Stage.STARTING_MODEL_SERVER)
        limit = deployment.model.container_spec.deployment_timeout.total_seconds() or LONGEST_DEPLOYMENT
        failed: ServiceError | None = None
        try:
            deployment.scale(min(limit, self.patience))
        except ServiceError as error:
            failed = error
        except RuntimeError:  # the fake was closed meanwhile
            return
        with self.world.lock:
            if failed is None:
                try:
                    answer = add()
                except ServiceError as error:
                    failed = error
            if failed is None:
                self._operations.update(operation, metadata)
                self._operations.finish(operation, lambda: answer)
                return
            self._starting.discard((endpoint.name, made.id))
            del self._deployments[endpoint.name][made.id]
            stage(Stage.FAILED_TO_DEPLOY)
            self._operations.finish(operation, _raising(failed))
        deployment.stop()

    def _undeploy(self, request: vertex.UndeployModelRequest, caller: str) -> operations_pb2.Operation:
        """Take the traffic from a model at once, and end its servers when they have answered what they have received.

        Without a traffic split, the last model loses its traffic: it "will always end up empty".
        """
        with self.world.lock:
            endpoint = self._endpoint(request.endpoint, caller, "aiplatform.endpoints.undeploy")
            identity, split = request.deployed_model_id, dict(request.traffic_split)
            able = self._able(endpoint.name)
            if identity not in able:
                raise not_found(f"DeployedModel {identity} of Endpoint {endpoint.name}")
            check_traffic(split, able)
            if len(able) == 1:
                split = {}
            elif not split:
                split = dict(endpoint.traffic_split)
            if split.get(identity, 0):
                raise failed_precondition(
                    f"DeployedModel {identity} of Endpoint {endpoint.name} has {split[identity]}% of the traffic and "
                    "cannot be undeployed. Provide a traffic_split that unassigns its traffic."
                )
            split.pop(identity, None)
            endpoint.traffic_split = split
            deployment = self._deployments[endpoint.name][identity]
            deployment.leaving = True
            self._changed(endpoint)
            operation = self._operations.begin(endpoint.name, vertex.UndeployModelOperationMetadata())
            self.world.writes["deployedModel"] += 1

        def take_down() -> None:
            deployment.stop()
            with self.world.lock:
                endpoint.deployed_models = [one for one in endpoint.deployed_models if one.id != identity]
                del self._deployments[endpoint.name][identity]
                self._changed(endpoint)
                self._operations.finish(operation.name, vertex.UndeployModelResponse)

        threading.Thread(target=take_down, daemon=True).start()
        return operation

    def _mutate(self, request: vertex.MutateDeployedModelRequest, caller: str) -> operations_pb2.Operation:
        """Change the number of replicas, and the other fields of MUTABLE."""
        with self.world.lock:
            endpoint = self._endpoint(request.endpoint, caller, "aiplatform.endpoints.update")
            paths = list(request.update_mask.paths)
            if not paths:
                raise invalid("The update_mask is required.")
            for path in paths:
                if path not in MUTABLE:
                    raise invalid(f"The field {path!r} of DeployedModel cannot be mutated.")
            if request.deployed_model.id not in self._able(endpoint.name):
                raise not_found(f"DeployedModel {request.deployed_model.id} of Endpoint {endpoint.name}")
            deployment = self._deployments[endpoint.name][request.deployed_model.id]
            old = deployment.message
            wanted = vertex.DeployedModel(old)
            for path in paths:
                parent, _, field = path.rpartition(".")
                source, target = (getattr(one, parent) if parent else one for one in (request.deployed_model, wanted))
                setattr(target, field, getattr(source, field))
            check_replicas(wanted.dedicated_resources)
            project = self.world.project(endpoint.name.split("/")[1])
            others = [one for one in self._all() if one is not old]
            check_quota(self.world, wanted, project.id, self.region, others)
            operation = self._operations.begin(endpoint.name, vertex.MutateDeployedModelOperationMetadata())

        def scale() -> None:
            deployment.message = wanted
            failed: ServiceError | None = None
            try:
                deployment.scale(self.patience)
            except ServiceError as error:
                deployment.message, failed = old, error
            except RuntimeError:  # the fake was closed meanwhile
                return
            with self.world.lock:
                if failed is not None:
                    self._operations.finish(operation.name, _raising(failed))
                    return
                endpoint.deployed_models = [wanted if one.id == wanted.id else one for one in endpoint.deployed_models]
                self._changed(endpoint)
                response = vertex.MutateDeployedModelResponse(deployed_model=wanted)
                self._operations.finish(operation.name, lambda: response)

        threading.Thread(target=scale, daemon=True).start()
        return operation

    def _endpoint(self, name: str, caller: str, permission: str) -> vertex.Endpoint:
        parent, _, identity = name.rpartition("/endpoints/")
        project = project_of(self.world, parent, self.region)
        self.world.require(caller, permission, f"projects/{project.id}")
        full = f"projects/{project.number}/locations/{self.region}/endpoints/{identity}"
        if full not in self.endpoints:
            raise not_found(f"Endpoint {name}")
        return self.endpoints[full]

    def _able(self, name: str) -> set[str]:
        """Return the ids of the deployed models that can have traffic."""
        return {
            identity
            for identity, one in self._deployments[name].items()
            if not one.leaving and (name, identity) not in self._starting
        }

    def _all(self) -> list[vertex.DeployedModel]:
        """Return everything that draws on the quota."""
        return [one.message for deployed in self._deployments.values() for one in deployed.values()]

    def _changed(self, endpoint: vertex.Endpoint) -> vertex.Endpoint:
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
            deployed.status.available_replica_count = self._deployments[endpoint.name][deployed.id].available
        return shown

    def _hear(self, project: Project, endpoint: str, made: vertex.DeployedModel) -> Callable[[str], None]:
        """Return what writes the output of a model's containers to Cloud Logging.

        Source: https://cloud.google.com/vertex-ai/docs/predictions/online-prediction-logging
        """
        labels = {"resource_container": project.id, "location": self.region, "endpoint_id": endpoint.rpartition("/")[2]}
        resource = {"type": "aiplatform.googleapis.com/Endpoint", "labels": labels}

        def write(line: str) -> None:
            if made.disable_container_logging:
                return
            entry: dict[str, Any] = {"message": line}
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    entry = {name: found[name] for name in ("severity", "message") if name in found} or entry
            entry["labels"] = {"deployed_model_id": made.id, "model_id": made.model.rpartition("/")[2]}
            self._log.write(project.id, "aiplatform.googleapis.com%2Fprediction_container", resource, entry)

        return write


def _raising(error: ServiceError) -> Callable[[], Any]:
    def work() -> Any:
        raise error

    return work


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
