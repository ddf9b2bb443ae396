"""The part of EndpointService that deploys models: DeployModel, UndeployModel and MutateDeployedModel.

The rules are those of the comments in endpoint.proto and endpoint_service.proto, unless a function names another
source.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from google.cloud import aiplatform_v1 as vertex
from google.longrunning import operations_pb2

from tests.fakes.errors import ServiceError, not_found
from tests.fakes.logging import Log
from tests.fakes.vertex.deployment import Deployment
from tests.fakes.vertex.endpoint_checks import (
    DEPLOYED_ID,
    LONGEST_DEPLOYMENT,
    MUTABLE,
    NEW,
    check_deployed_model,
    check_quota,
    check_replicas,
    check_traffic,
    failed_precondition,
)
from tests.fakes.vertex.endpoints import EndpointService
from tests.fakes.vertex.models import ModelService
from tests.fakes.vertex.operations import Operations
from tests.fakes.vertex.serving import Servers
from tests.fakes.vertex.shapes import invalid
from tests.fakes.world import Project

Stage = vertex.DeploymentStage


class DeployedModels:
    """Deploys models on the endpoints of `service`, and undeploys them."""

    def __init__(
        self, service: EndpointService, operations: Operations, models: ModelService, servers: Servers, log: Log
    ) -> None:
        self.world = service.world
        self._service = service
        self._operations, self._models, self._servers, self._log = operations, models, servers, log

    def methods(self) -> dict[str, tuple[Any, Any]]:
        return {
            "DeployModel": (vertex.DeployModelRequest, self._deploy),
            "UndeployModel": (vertex.UndeployModelRequest, self._undeploy),
            "MutateDeployedModel": (vertex.MutateDeployedModelRequest, self._mutate),
        }

    def _deploy(self, request: vertex.DeployModelRequest, caller: str) -> operations_pb2.Operation:
        """Check the request, and start the model's servers in a thread of its own.

        The message of an id that exists is not documented, nor whether several models can be deployed at once: here
        they can.
        """
        with self.world.lock:
            endpoint = self._service.endpoint(request.endpoint, caller, "aiplatform.endpoints.deploy")
            project = self.world.project(endpoint.name.split("/")[1])
            made = vertex.DeployedModel(request.deployed_model)
            made.id = made.id or str(self.world.number())
            if not DEPLOYED_ID.fullmatch(made.id):
                raise invalid(f"Invalid DeployedModel id {made.id!r}: it must have 1 to 10 characters of [0-9].")
            if made.id in self._service.deployments[endpoint.name]:
                raise ServiceError(409, f"DeployedModel {made.id} already exists in Endpoint {endpoint.name}.")
            model = self._models.version(made.model, caller, "aiplatform.models.get")
            check_deployed_model(self.world, project, caller, made, model, self._service.region)
            check_traffic(request.traffic_split, {*self._service.able(endpoint.name), NEW})
            check_quota(self.world, made, project.id, self._service.region, self._service.all())
            made.model, made.model_version_id = model.name, model.version_id
            made.display_name = made.display_name or model.display_name
            resources = made.dedicated_resources
            resources.max_replica_count = resources.max_replica_count or resources.min_replica_count
            identity = endpoint.name.rpartition("/")[2]
            deployment = Deployment(
                self._servers, made, vertex.Model(model), identity, self._hear(project, endpoint.name, made)
            )
            self._service.deployments[endpoint.name][made.id] = deployment
            self._service.starting.add((endpoint.name, made.id))
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
            check_traffic(split, {*self._service.able(endpoint.name), NEW})
            made.create_time = datetime.now(UTC)
            endpoint.deployed_models.append(made)
            self._service.starting.discard((endpoint.name, made.id))
            if split:
                endpoint.traffic_split = {made.id if one == NEW else one: share for one, share in split.items()}
            self._service.changed(endpoint)
            return vertex.DeployModelResponse(deployed_model=made)

        stage(Stage.STARTING_MODEL_SERVER)
        limit = deployment.model.container_spec.deployment_timeout.total_seconds() or LONGEST_DEPLOYMENT
        try:
            deployment.scale(min(limit, self._service.patience))
            with self.world.lock:
                answer = add()
                stage(Stage.SUCCESSFULLY_DEPLOYED)
                self._operations.finish(operation, lambda: answer)
        except ServiceError as error:
            with self.world.lock:
                self._service.starting.discard((endpoint.name, made.id))
                del self._service.deployments[endpoint.name][made.id]
                stage(Stage.FAILED_TO_DEPLOY)
                self._operations.finish(operation, _raising(error))
            deployment.stop()
        except RuntimeError:  # the fake was closed meanwhile
            return

    def _undeploy(self, request: vertex.UndeployModelRequest, caller: str) -> operations_pb2.Operation:
        """Take the traffic from a model at once, and end its servers when they have answered what they have received.

        Without a traffic split, the last model loses its traffic: it "will always end up empty".
        """
        with self.world.lock:
            endpoint = self._service.endpoint(request.endpoint, caller, "aiplatform.endpoints.undeploy")
            identity, split = request.deployed_model_id, dict(request.traffic_split)
            able = self._service.able(endpoint.name)
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
            deployment = self._service.deployments[endpoint.name][identity]
            deployment.leaving = True
            self._service.changed(endpoint)
            operation = self._operations.begin(endpoint.name, vertex.UndeployModelOperationMetadata())
            self.world.writes["deployedModel"] += 1

        def take_down() -> None:
            deployment.stop()
            with self.world.lock:
                endpoint.deployed_models = [one for one in endpoint.deployed_models if one.id != identity]
                del self._service.deployments[endpoint.name][identity]
                self._service.changed(endpoint)
                self._operations.finish(operation.name, vertex.UndeployModelResponse)

        threading.Thread(target=take_down, daemon=True).start()
        return operation

    def _mutate(self, request: vertex.MutateDeployedModelRequest, caller: str) -> operations_pb2.Operation:
        """Change the number of replicas, and the other fields of MUTABLE."""
        with self.world.lock:
            endpoint = self._service.endpoint(request.endpoint, caller, "aiplatform.endpoints.update")
            paths = list(request.update_mask.paths)
            if not paths:
                raise invalid("The update_mask is required.")
            for path in paths:
                if path not in MUTABLE:
                    raise invalid(f"The field {path!r} of DeployedModel cannot be mutated.")
            if request.deployed_model.id not in self._service.able(endpoint.name):
                raise not_found(f"DeployedModel {request.deployed_model.id} of Endpoint {endpoint.name}")
            deployment = self._service.deployments[endpoint.name][request.deployed_model.id]
            old = deployment.message
            wanted = vertex.DeployedModel(old)
            for path in paths:
                parent, _, field = path.rpartition(".")
                source, target = (getattr(one, parent) if parent else one for one in (request.deployed_model, wanted))
                setattr(target, field, getattr(source, field))
            check_replicas(wanted.dedicated_resources)
            project = self.world.project(endpoint.name.split("/")[1])
            others = [one for one in self._service.all() if one is not old]
            check_quota(self.world, wanted, project.id, self._service.region, others)
            operation = self._operations.begin(endpoint.name, vertex.MutateDeployedModelOperationMetadata())

        def scale() -> None:
            deployment.message = wanted
            try:
                deployment.scale(self._service.patience)
            except ServiceError as error:
                deployment.message = old
                self._operations.finish(operation.name, _raising(error))
                return
            except RuntimeError:  # the fake was closed meanwhile
                return
            with self.world.lock:
                endpoint.deployed_models = [wanted if one.id == wanted.id else one for one in endpoint.deployed_models]
                self._service.changed(endpoint)
                response = vertex.MutateDeployedModelResponse(deployed_model=wanted)
                self._operations.finish(operation.name, lambda: response)

        threading.Thread(target=scale, daemon=True).start()
        return operation

    def _hear(self, project: Project, endpoint: str, made: vertex.DeployedModel) -> Callable[[str], None]:
        """Return what writes the output of a model's containers to Cloud Logging.

        Source: https://cloud.google.com/vertex-ai/docs/predictions/online-prediction-logging
        """
        labels = {
            "resource_container": project.id,
            "location": self._service.region,
            "endpoint_id": endpoint.rpartition("/")[2],
        }
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
