"""Clients that several tests share: of Vertex AI's endpoints, and of a Kubernetes API server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import aiplatform_v1 as vertex

from slipway.components.cloud.connection import Connection
from tests.fakes.google import NUMBER, PROJECT, REGION, FakeGoogle
from tests.fakes.kubernetes import real
from tests.fakes.ready import BUCKET, SERVING_IMAGE
from tests.fakes.vertex.serving import STAND_IN
from tests.fidelity.kubernetes_client import Clients, Cluster

PARENT = f"projects/{PROJECT}/locations/{REGION}"
ENDPOINT = f"projects/{NUMBER}/locations/{REGION}/endpoints/digits"


class Client:
    """Google's clients of one project."""

    def __init__(self, google: FakeGoogle) -> None:
        self.google = google
        connection = Connection(PROJECT, REGION, google.endpoints)
        self.models = connection.models
        self.endpoints = vertex.EndpointServiceClient(client_options={"api_endpoint": google.endpoints["aiplatform"]})
        self.predictions = vertex.PredictionServiceClient(
            client_options={"api_endpoint": google.endpoints["aiplatform"]}
        )

    def done(self, operation: Any) -> Any:
        """Return an operation when it is done."""
        found = operation.operation
        while not found.done:
            time.sleep(0.02)
            found = self.endpoints.get_operation({"name": found.name})
        return found

    def register(self, *arguments: str, **spec: Any) -> None:
        """Register a version of the model digits, whose server has these arguments."""
        versions = self.google.region.models.models
        model = {
            "display_name": "digits",
            "artifact_uri": f"gs://{BUCKET}/runs/digits-1/model",
            "container_spec": {"image_uri": SERVING_IMAGE, "args": arguments, **spec},
        }
        request: dict[str, Any] = {"parent": PARENT, "model": model}
        request |= {"parent_model": f"{PARENT}/models/digits"} if versions else {"model_id": "digits"}
        self.done(self.models.upload_model(request=request))

    def create(self, identity: str = "digits", **fields: Any) -> Any:
        """Create an endpoint; return the operation."""
        endpoint = {"display_name": "digits", **fields}
        return self.done(
            self.endpoints.create_endpoint(request={"parent": PARENT, "endpoint": endpoint, "endpoint_id": identity})
        )

    def get(self) -> vertex.Endpoint:
        return self.endpoints.get_endpoint(name=ENDPOINT)

    def deploy(self, *arguments: Any, **options: Any) -> Any:
        """Deploy a model as `start_deploying` does; return the operation, done."""
        return self.done(self.start_deploying(*arguments, **options))

    def start_deploying(
        self,
        identity: str = "",
        traffic: dict[str, int] | None = None,
        *,
        model: str = "digits",
        resources: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Any:
        dedicated = {"machine_spec": {"machine_type": "n1-standard-2"}, "min_replica_count": 1, **(resources or {})}
        deployed = {"id": identity, "model": f"{PARENT}/models/{model}", "dedicated_resources": dedicated, **fields}
        return self.endpoints.deploy_model(endpoint=ENDPOINT, deployed_model=deployed, traffic_split=traffic)

    def predict(self, *instances: Any) -> vertex.PredictResponse:
        return self.predictions.predict(endpoint=ENDPOINT, instances=list(instances))


def refused(code: str, sentence: str, call: Callable[..., Any], *arguments: Any, **fields: Any) -> None:
    """Check the code and the message of a refusal."""
    with pytest.raises(GoogleAPICallError) as error:
        call(*arguments, **fields)
    assert error.value.grpc_status_code is not None
    assert (error.value.grpc_status_code.name, sentence in error.value.message) == (code, True), error.value


@pytest.fixture
def client(ready_google: FakeGoogle) -> Client:
    ready_google.region.servers.commands["digits"] = STAND_IN
    return Client(ready_google)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with real.cluster(tmp_path) as server:
        yield server


@pytest.fixture
def admin(cluster: Cluster) -> Clients:
    return Clients(cluster)
