"""Vertex AI's endpoints: create, change their traffic, deploy and undeploy models.

An endpoint's labels record its rollout. They change together with the traffic in one update, so they are never out of
step with it: ROLLOUT is the id of the deployed model that is being rolled out, PREVIOUS that of the one to which
`slipway endpoints rollback` returns, and LEFT that of the one that a rollback has left. Every write reads the endpoint
first and sends its etag.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.operations import StillRunningError, completed
from slipway.components.cloud.retries import (
    LONGEST_WAIT_SECONDS,
    NOT_FOUND,
    existing,
    is_conflict,
    is_transient,
    paced,
    retried,
    status_of,
)
from slipway.components.deploy.settings import ALL, DISPLAY_PREFIX, Deployment
from slipway.components.register_model.vertex.model_registry import RUN_LABEL
from slipway.core.errors import UserError
from slipway.core.values import JsonObject

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import DeployedModel, Endpoint

NAME_LABEL = "slipway-endpoint"
ROLLOUT, PREVIOUS, LEFT = "slipway-rollout", "slipway-previous", "slipway-left"
RECORDS = (NAME_LABEL, ROLLOUT, PREVIOUS, LEFT)
# Fresh reads after a write that was refused because the endpoint had changed, and the first, doubling pause.
ROUNDS, ROUND_SECONDS = 20, 1.0
# Creating, changing and deleting an endpoint without models takes seconds.
ENDPOINT_SECONDS = 300.0
POLL_SECONDS = 5.0
# In which requests that are in progress end before the machines of a model without traffic are stopped.
DRAIN_SECONDS = 30.0


@dataclass(frozen=True)
class Version:
    """A registered version: its resource name with the number, its files, and the run that trained it."""

    name: str
    number: str
    uri: str
    run_id: str

    @property
    def display_name(self) -> str:
        """The deployed model's display name: slipway/digits@3."""
        return DISPLAY_PREFIX + self.name.rpartition("/")[2]


@dataclass(frozen=True)
class Traffic:
    """The traffic of an endpoint in percent by deployed model, and the record of its rollout."""

    split: Mapping[str, int]
    rollout: str = ""
    previous: str = ""
    left: str = ""


class Endpoints:
    """The endpoints of one project and region."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def get(self, endpoint_id: str) -> Endpoint | None:
        """Return an endpoint by id, None if it does not exist."""
        return existing(lambda: self.connection.serving.get_endpoint(name=self._name(endpoint_id)))

    def all(self) -> list[Endpoint]:
        """Return Slipway's endpoints by name."""
        client, parent = self.connection.serving, self.connection.parent
        endpoints = retried(lambda: list(client.list_endpoints(parent=parent)))
        return sorted(
            (endpoint for endpoint in endpoints if NAME_LABEL in endpoint.labels),
            key=lambda endpoint: endpoint.labels[NAME_LABEL],
        )

    def version(self, model: str, number_or_alias: str) -> Version:
        """Return a version of a registered model by its number or alias.

        Raises:
            UserError: It does not exist, or nothing can serve it.
        """
        models = self.connection.models
        name = f"{self.connection.parent}/models/{model}"
        registered = existing(lambda: models.get_model(name=f"{name}@{number_or_alias}"))
        if registered is None:
            raise self._no_version(model, name, number_or_alias)
        version = Version(
            f"{registered.name.partition('@')[0]}@{registered.version_id}",
            registered.version_id,
            registered.artifact_uri,
            registered.labels.get(RUN_LABEL, ""),
        )
        if not registered.container_spec.image_uri:
            raise UserError(
                f"Version {version.number} of {model} has no serving container, so it cannot be deployed.",
                setting="--version",
                value=number_or_alias,
                fix="slipway run --target vertex, which registers a version with one",
            )
        return version

    def _no_version(self, model: str, name: str, number_or_alias: str) -> UserError:
        versions = existing(lambda: list(self.connection.models.list_model_versions(name=name)))
        if versions is None:
            return UserError(
                f"The Model Registry in {self.connection.region} has no model {model}.",
                setting="model",
                value=model,
                fix="slipway run --target vertex, which registers one",
            )
        known = [text for version in versions for text in (version.version_id, *version.version_aliases)]
        return UserError.unknown(f"version of {model}", number_or_alias, known, setting="--version")

    def ensure(self, deployment: Deployment) -> Endpoint:
        """Return the endpoint of a deployment, created if it does not exist.

        Raises:
            UserError: The file names the id of an endpoint that does not exist.
        """
        if (existing := self.get(deployment.endpoint_id)) is not None:
            return existing
        if deployment.settings.id:
            raise UserError(
                f"There is no endpoint {deployment.settings.id} in {self.connection.region}.",
                setting="id",
                value=deployment.settings.id,
                fix=f"correct or remove id in configs/endpoints/{deployment.name}.yaml",
            )
        client = self.connection.serving
        request = {
            "parent": self.connection.parent,
            "endpoint_id": deployment.endpoint_id,
            "endpoint": _endpoint(deployment),
        }
        until = time.monotonic() + ENDPOINT_SECONDS
        try:
            completed(client, retried(lambda: client.create_endpoint(request=request).operation), until)
        except Exception as error:
            if not is_conflict(error):  # another command has created it, or a lost response was repeated
                raise
        while (created := self.get(deployment.endpoint_id)) is None:
            if time.monotonic() > until:
                raise StillRunningError(self._name(deployment.endpoint_id))
            time.sleep(paced(POLL_SECONDS))
        return created

    def change(self, deployment: Deployment, fields: set[str]) -> None:
        """Change fields of an endpoint to what its file says: `labels` and `client_connection_config`."""
        client = self.connection.serving
        desired = _endpoint(deployment)
        if "labels" in fields:

            def labels(endpoint: Endpoint) -> JsonObject:
                kept = {name: endpoint.labels[name] for name in RECORDS if name in endpoint.labels}
                return {"labels": {**desired["labels"], **kept}}

            self.write(deployment.endpoint_id, labels)
        if "client_connection_config" in fields:
            request = {
                "endpoint": {
                    "name": self._name(deployment.endpoint_id),
                    "client_connection_config": desired.get("client_connection_config", {}),
                }
            }
            started = retried(lambda: client.update_endpoint_long_running(request=request).operation)
            completed(client, started, time.monotonic() + ENDPOINT_SECONDS)

    def scale(self, deployment: Deployment, deployed: str) -> None:
        """Change the numbers of replicas of a deployed model to those of the file."""
        client, resources = self.connection.serving, deployment.resources()
        counts = ("min_replica_count", "max_replica_count")
        request = {
            "endpoint": self._name(deployment.endpoint_id),
            "deployed_model": {"id": deployed, "dedicated_resources": {name: resources[name] for name in counts}},
            "update_mask": {"paths": [f"dedicated_resources.{name}" for name in counts]},
        }
        started = retried(lambda: client.mutate_deployed_model(request=request).operation)
        completed(client, started, time.monotonic() + 60 * deployment.settings.timeout)

    def deploy(self, deployment: Deployment, version: Version, deployed: str) -> bool:
        """Deploy a version without traffic under the id `deployed`; return False if it is deployed already.

        A repeated call finds what an earlier one has started: an id exists once.

        Raises:
            StillRunningError: It is not deployed within the time of the settings; Vertex AI continues.
        """
        client = self.connection.serving
        request = {
            "endpoint": self._name(deployment.endpoint_id),
            "deployed_model": {
                "id": deployed,
                "model": version.name,
                "display_name": version.display_name,
                "dedicated_resources": deployment.resources(),
                "service_account": deployment.settings.service_account or "",
            },
        }
        until = time.monotonic() + 60 * deployment.settings.timeout
        if self._has(deployment.endpoint_id, deployed):
            return False
        self._repeat(
            lambda: client.deploy_model(request=request).operation,
            lambda: self._has(deployment.endpoint_id, deployed),
            until,
        )
        return True

    def undeploy(self, endpoint_id: str, deployed: str, until: float) -> None:
        """Stop the machines of a deployed model, which has no traffic; does nothing if it is not deployed.

        Raises:
            UserError: Another command has given it traffic.
        """
        client = self.connection.serving
        request = {"endpoint": self._name(endpoint_id), "deployed_model_id": deployed}

        def is_undeployed() -> bool:
            endpoint = self.existing(endpoint_id)
            # Vertex AI would undeploy an endpoint's last model in spite of its traffic.
            if percent := endpoint.traffic_split.get(deployed, 0):
                raise UserError(
                    f"{version_text(endpoint, deployed)} has {percent}% of the traffic again, so it stays deployed: "
                    f"another command or user has changed {endpoint_id}.",
                    fix=SHOW,
                )
            return model_of(endpoint, deployed) is None

        self._repeat(lambda: client.undeploy_model(request=request).operation, is_undeployed, until, ends=NOT_FOUND)

    def _repeat(self, start: Callable[[], Any], done: Callable[[], bool], until: float, ends: int = 0) -> None:
        """Start an operation and wait for it, or for what an earlier or concurrent call has started.

        Args:
            start: Starts the operation and returns it.
            done: Whether the endpoint is as wanted.
            until: The time (of `time.monotonic`) until which to wait.
            ends: The HTTP status with which a call is refused because an earlier one is in progress.

        Raises:
            StillRunningError: It is not done in time; Vertex AI continues.
        """
        refusals = 0
        while not done():
            try:
                operation = start()
            except Exception as error:
                refusals += is_refused(error)
                expected = is_transient(error) or is_outdated(error) or status_of(error) == ends
                if not expected or refusals > ROUNDS:
                    raise
                if time.monotonic() > until:
                    raise StillRunningError(str(error)) from error
                time.sleep(paced(POLL_SECONDS))
            else:
                completed(self.connection.serving, operation, until)

    def move(self, endpoint_id: str, traffic_of: Callable[[Endpoint], Traffic]) -> Endpoint:
        """Change the traffic of an endpoint and the record of its rollout in one update; return the endpoint.

        Args:
            endpoint_id: The endpoint's id.
            traffic_of: Returns the traffic to set, given the endpoint as it is; may raise to stop.
        """

        def fields(endpoint: Endpoint) -> JsonObject:
            traffic = traffic_of(endpoint)
            split = {name: percent for name, percent in traffic.split.items() if percent}
            if split and sum(split.values()) != ALL:
                raise ValueError(f"the traffic does not sum to {ALL}: {split}")
            labels = {name: value for name, value in endpoint.labels.items() if name not in (ROLLOUT, PREVIOUS, LEFT)}
            record = {ROLLOUT: traffic.rollout, PREVIOUS: traffic.previous, LEFT: traffic.left}
            labels |= {name: value for name, value in record.items() if value}
            return {"traffic_split": split, "labels": labels}

        return self.write(endpoint_id, fields)

    def write(self, endpoint_id: str, fields: Callable[[Endpoint], JsonObject]) -> Endpoint:
        """Change fields of an endpoint; after a concurrent change, read it again and repeat.

        Raises:
            UserError: It does not exist, or keeps changing.
        """
        client = self.connection.serving
        reason: BaseException | None = None
        for attempt in range(ROUNDS):
            endpoint = self.existing(endpoint_id)
            changed = fields(endpoint)
            if all(dict(getattr(endpoint, name)) == value for name, value in changed.items()):
                return endpoint
            request = {
                "endpoint": {"name": endpoint.name, "etag": endpoint.etag, **changed},
                "update_mask": {"paths": list(changed)},
            }
            try:
                return client.update_endpoint(request=request)
            except Exception as error:
                # A lost response shows in the next read.
                if not (is_transient(error) or is_outdated(error)):
                    raise
                reason = error
            time.sleep(paced(min(ROUND_SECONDS * 2**attempt, LONGEST_WAIT_SECONDS)))
        raise UserError(
            f"Could not change the endpoint {endpoint_id} in {ROUNDS} attempts: {reason}",
            fix=f"{SHOW}; repeat the command when no other one is working on it",
        )

    def existing(self, endpoint_id: str) -> Endpoint:
        """Return an endpoint by id.

        Raises:
            UserError: It does not exist.
        """
        endpoint = self.get(endpoint_id)
        if endpoint is None:
            raise UserError(
                f"There is no endpoint {endpoint_id} in {self.connection.region}.",
                setting="--endpoint",
                value=endpoint_id,
                fix="slipway deploy, which creates it",
            )
        return endpoint

    def delete(self, endpoint_id: str, until: float) -> None:
        """Stop all traffic, undeploy all models and delete the endpoint; does nothing if it does not exist."""
        client = self.connection.serving
        if self.get(endpoint_id) is None:
            return
        try:
            endpoint = self.move(endpoint_id, lambda _: Traffic({}))
            for deployed in endpoint.deployed_models:
                self.undeploy(endpoint_id, deployed.id, until)
            completed(client, retried(lambda: client.delete_endpoint(name=endpoint.name).operation), until)
        except Exception:
            if self.get(endpoint_id) is not None:  # otherwise another command has deleted it meanwhile
                raise

    def _has(self, endpoint_id: str, deployed: str) -> bool:
        return model_of(self.existing(endpoint_id), deployed) is not None

    def _name(self, endpoint_id: str) -> str:
        return f"{self.connection.parent}/endpoints/{endpoint_id}"


SHOW = "slipway endpoints show"


def model_of(endpoint: Endpoint, deployed: str) -> DeployedModel | None:
    """Return the deployed model with an id, None if there is none."""
    return next((model for model in endpoint.deployed_models if model.id == deployed), None)


def version_text(endpoint: Endpoint, deployed: str) -> str:
    """Return what a deployed model is called in messages: digits@3."""
    model: Any = model_of(endpoint, deployed)
    if model is None:
        return f"deployed model {deployed}"
    return str(model.display_name).removeprefix(DISPLAY_PREFIX) or deployed


def is_outdated(error: BaseException) -> bool:
    """Return whether a write was refused because the endpoint has changed or is being changed."""
    return is_conflict(error) or is_refused(error)


def is_refused(error: BaseException) -> bool:
    """Return whether a call failed with FAILED_PRECONDITION, whose HTTP status is that of any invalid call."""
    return getattr(getattr(error, "grpc_status_code", None), "name", "") == "FAILED_PRECONDITION"


def _endpoint(deployment: Deployment) -> JsonObject:
    endpoint: JsonObject = {
        "display_name": deployment.name,
        "labels": {**deployment.labels, NAME_LABEL: deployment.name},
        "dedicated_endpoint_enabled": deployment.settings.dedicated,
    }
    if deployment.settings.request_timeout:
        endpoint["client_connection_config"] = {"inference_timeout": {"seconds": deployment.settings.request_timeout}}
    if deployment.encryption_key:
        endpoint["encryption_spec"] = {"kms_key_name": deployment.encryption_key}
    return endpoint
