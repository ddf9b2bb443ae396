"""Settings of an endpoint, and the deployment that they describe."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from slipway.components.cloud.rules import check_labels
from slipway.components.cloud.settings import AccountEmail
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.trainer.settings import Settings

ALL = 100
# Prefix of the display names of deployed models, and of the ids of endpoints.
DISPLAY_PREFIX = "slipway/"
ID_PREFIX = "slipway-"


class CheckSettings(Settings):
    """What must hold at each step of a rollout; if it does not, the previous model receives all traffic again."""

    errors: float = Field(
        default=0.01,
        ge=0,
        lt=1,
        description="Largest fraction of failed requests. A single failed request is tolerated, except with 0.",
    )
    p50_ms: PositiveFloat | None = Field(
        default=None, description="Longest median latency in milliseconds, as seen by the client; null: not checked."
    )
    p99_ms: PositiveFloat | None = Field(
        default=None,
        description="Longest latency of 99% of the requests in milliseconds. A single slow request is tolerated; null: "
        "not checked.",
    )
    tolerance: PositiveFloat = Field(
        default=0.01,
        description="Largest difference between an answer and what the trained network predicted on the same example.",
    )
    rate: PositiveFloat = Field(default=2, le=100, description="Requests per second that are sent for the checks.")
    answers: PositiveInt = Field(
        default=20, description="Smallest number of answers by the new model on which a step is decided."
    )
    requests: Path | None = Field(
        default=None,
        description='JSON file {"instances": […]} with the instances to send, relative to the working directory; null: '
        "the test examples that are stored with the model.",
    )


class EndpointSettings(Settings):
    """An endpoint on Vertex AI, `configs/endpoints/NAME.yaml`; the file name is the endpoint's name."""

    configuration: Path = Field(
        description="Path of the run configuration with the section vertex (project, region, encryption key), relative "
        "to the working directory."
    )
    set: tuple[str, ...] = Field(default=(), description="Overrides of the configuration, as KEY=VALUE.")
    model: str | None = Field(
        default=None, description="Name of the registered model; null: that of the configuration's runs."
    )
    id: str | None = Field(
        default=None,
        pattern=r"^([a-z][a-z0-9-]{0,61}[a-z0-9]|[0-9]{1,20})$",
        description="Id of an existing endpoint on Vertex AI; null: slipway-NAME, which is created if missing.",
    )
    machine: str = Field(
        default="n1-standard-2",
        description="Machine of a replica: a machine type, or hardware such as l4x1 or t4x1@n1-standard-8; +spot at "
        "the end for Spot VMs.",
    )
    min_replicas: PositiveInt = Field(default=1, le=1000, description="Number of replicas that always run.")
    max_replicas: PositiveInt = Field(
        default=1, le=1000, description="Number of replicas up to which Vertex AI adds some under load."
    )
    canary: tuple[Annotated[int, Field(ge=1, le=ALL)], ...] = Field(
        default=(5, 25, 100),
        min_length=1,
        description="Percentages of the traffic that a new model receives step by step; the last one is 100.",
    )
    hold: float = Field(
        default=10, ge=0, le=1440, description="Shortest time in minutes for which each of these steps is checked."
    )
    check: CheckSettings = Field(default=CheckSettings(), description="What must hold at each step.")
    service_account: AccountEmail | None = Field(
        default=None,
        description="E-mail address of the account that the model's containers run as; null: one without access to the "
        "project.",
    )
    dedicated: bool = Field(
        default=False,
        description="Whether the endpoint has a DNS name and network of its own, with requests of up to 10 MB and no "
        "access through the shared address.",
    )
    request_timeout: PositiveInt | None = Field(
        default=None,
        le=3600,
        description="Seconds after which a prediction request fails, for dedicated endpoints only; null: Vertex AI's "
        "default.",
    )
    labels: dict[str, str] = Field(
        default_factory=dict, description="Labels of the endpoint, besides those of the section vertex."
    )
    timeout: PositiveFloat = Field(
        default=30, description="Minutes to wait for Vertex AI to start or stop a model's machines."
    )
    price_per_hour: PositiveFloat | None = Field(
        default=None,
        description="Price of one replica per hour, in your currency, from which `slipway endpoints list` computes the "
        "cost per day; null: by list prices of Compute Engine, which are lower.",
    )

    @field_validator("canary")
    @classmethod
    def _rising_to_all(cls, canary: tuple[int, ...]) -> tuple[int, ...]:
        if canary[-1] != ALL or any(lower >= higher for lower, higher in pairwise(canary)):
            text = json.dumps(list(canary))
            raise UserError(
                f"canary does not rise to {ALL}: {text}.",
                setting="canary",
                value=text,
                allowed="percentages in ascending order that end with 100",
                nearest=json.dumps(sorted({*canary, ALL})),
            )
        return canary

    @field_validator("labels")
    @classmethod
    def _labels_of_google(cls, labels: dict[str, str]) -> dict[str, str]:
        check_labels(labels, "labels")
        return labels

    @model_validator(mode="after")
    def _range_of_replicas(self) -> EndpointSettings:
        if self.min_replicas > self.max_replicas:
            raise UserError(
                f"min_replicas is {self.min_replicas}, more than max_replicas, {self.max_replicas}.",
                setting="max_replicas",
                value=self.max_replicas,
                allowed=f"at least min_replicas, {self.min_replicas}",
                nearest=str(self.min_replicas),
            )
        return self

    @model_validator(mode="after")
    def _only_of_dedicated(self) -> EndpointSettings:
        if self.request_timeout is not None and not self.dedicated:
            raise UserError(
                "Only a dedicated endpoint can have a request_timeout.",
                setting="request_timeout",
                value=self.request_timeout,
                allowed="null, or dedicated: true",
                nearest="null",
            )
        return self


class DeploySettings(Settings):
    """Deploys each promoted model to an endpoint, after it was registered. Only for runs on Vertex AI."""

    endpoint: str = Field(
        description="Name of the endpoint: its settings are in configs/endpoints/NAME.yaml.", examples=["digits"]
    )


class Deployment(Settings):
    """An endpoint file with everything that deploying needs, resolved.

    Attributes:
        name: The endpoint's name.
        settings: Its file.
        model: The registered model's name.
        machine_spec: A replica's MachineSpec.
        spot: Whether replicas are Spot VMs.
        labels: All labels of the endpoint, without those that record a rollout.
        encryption_key: The Cloud KMS key of the endpoint.
        instances: The content of `check.requests`.
    """

    name: str
    settings: EndpointSettings
    model: str
    machine_spec: JsonObject
    spot: bool = False
    labels: dict[str, str]
    encryption_key: str | None = None
    instances: list[object] | None = None

    @property
    def endpoint_id(self) -> str:
        """The endpoint's id on Vertex AI."""
        return self.settings.id or ID_PREFIX + self.name

    def resources(self) -> JsonObject:
        """Return Vertex AI's DedicatedResources."""
        return {
            "machine_spec": self.machine_spec,
            "min_replica_count": self.settings.min_replicas,
            "max_replica_count": self.settings.max_replicas,
            "spot": self.spot,
        }

    def deployed_id(self, version: str, run_id: str) -> str:
        """Return the id of a deployed model: a repeated deployment has the same one, so that it happens once.

        Args:
            version: The version's resource name.
            run_id: The run that trained it: a model that was deleted and registered again has the same version.
        """
        # Everything that Vertex AI cannot change in a deployed model.
        immutable = [self.endpoint_id, version, run_id, self.machine_spec, self.spot, self.settings.service_account]
        digest = hashlib.sha256(json.dumps(immutable, sort_keys=True).encode()).digest()
        # DeployedModel.id: 1 to 10 digits.
        return str(10**9 + int.from_bytes(digest[:8]) % (9 * 10**9))
