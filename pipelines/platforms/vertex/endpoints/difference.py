"""Field-by-field differences between an endpoint on Vertex AI and its file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slipway.components.deploy.service import RECORDS
from slipway.pipelines.platforms.vertex.declared import Difference
from slipway.pipelines.platforms.vertex.endpoints.files import EndpointFile

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import DeployedModel, Endpoint

# What `apply` does about a difference: change the endpoint's field, change the replicas of the deployed model, or
# nothing, because Vertex AI cannot change it in a deployed model, or not at all.
ENDPOINT_FIELDS = {"labels": "labels", "request_timeout": "client_connection_config"}
REPLICA_FIELDS = ("min_replicas", "max_replicas")
MODEL_FIELDS = ("machine", "spot", "service_account")
# Labels that are not the file's.


def differences(file: EndpointFile, endpoint: Endpoint) -> list[Difference]:
    """Return the differences of an endpoint, and of the model that has most of its traffic."""
    rows = [*_endpoint_rows(file, endpoint)]
    if (serving := serving_model(endpoint)) is not None:
        rows += _model_rows(file, serving)
    return [Difference(*row) for row in rows if row[1] != row[2]]


def serving_model(endpoint: Endpoint) -> DeployedModel | None:
    """Return the deployed model with the most traffic; None if none has any."""
    share = dict(endpoint.traffic_split)
    serving = [model for model in endpoint.deployed_models if share.get(model.id)]
    return max(serving, key=lambda model: share[model.id], default=None)


def _endpoint_rows(file: EndpointFile, endpoint: Endpoint) -> Iterator[tuple[str, object, object]]:
    """Yield field name, the service's value and the file's value."""
    labels = {name: value for name, value in endpoint.labels.items() if name not in RECORDS}
    yield "labels", _pairs(labels), _pairs(file.deployment.labels)
    timeout = endpoint.client_connection_config.inference_timeout
    yield "request_timeout", int(timeout.total_seconds()) or None if timeout else None, file.settings.request_timeout
    yield "dedicated", endpoint.dedicated_endpoint_enabled, file.settings.dedicated
    yield "encryption_key", endpoint.encryption_spec.kms_key_name or None, file.deployment.encryption_key


def _model_rows(file: EndpointFile, serving: DeployedModel) -> Iterator[tuple[str, object, object]]:
    have = serving.dedicated_resources
    desired = type(have)(file.deployment.resources())
    yield "machine", machine_text(have), machine_text(desired)
    yield "spot", have.spot, file.deployment.spot
    yield "service_account", serving.service_account or None, file.settings.service_account
    yield "min_replicas", have.min_replica_count, file.settings.min_replicas
    yield "max_replicas", have.max_replica_count or have.min_replica_count, file.settings.max_replicas


def machine_text(resources: object) -> str:
    """Return the machine of DedicatedResources: g2-standard-4 with 1 NVIDIA_L4."""
    spec = resources.machine_spec  # type: ignore[attr-defined]
    text = str(spec.machine_type)
    return f"{text} with {spec.accelerator_count} {spec.accelerator_type.name}" if spec.accelerator_count else text


def _pairs(labels: dict[str, str]) -> str | None:
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items())) or None
