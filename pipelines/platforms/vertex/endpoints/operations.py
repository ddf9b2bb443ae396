"""The operations of `slipway endpoints` and `slipway deploy`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, TextIO

from slipway.components.deploy.rollout import Outcome, roll_back, roll_out
from slipway.components.deploy.service import NAME_LABEL, PREVIOUS, ROLLOUT, Endpoints, version_text
from slipway.components.deploy.settings import EndpointSettings
from slipway.core.values import JsonObject
from slipway.pipelines.checks import examine_in_parallel, refuse
from slipway.pipelines.platforms.base import Check, Context
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.platforms.vertex.declared import Declared, Difference, Result, Say, number_of
from slipway.pipelines.platforms.vertex.endpoints.difference import (
    ENDPOINT_FIELDS,
    MODEL_FIELDS,
    REPLICA_FIELDS,
    differences,
    machine_text,
    serving_model,
)
from slipway.pipelines.platforms.vertex.endpoints.files import FILES, EndpointFile
from slipway.pipelines.platforms.vertex.endpoints.machines import list_price
from slipway.pipelines.platforms.vertex.settings import vertex_of
from slipway.pipelines.platforms.vertex.submission import refusals
from slipway.pipelines.runs.running import Running

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import DeployedModel, Endpoint

HOURS = 24
RIGHTS = "aiplatform.endpoints"


@dataclass
class EndpointResult(Result):
    """One endpoint."""

    kind = "endpoint"

    def models(self) -> list[JsonObject]:
        """Return the deployed models, those with the most traffic first."""
        return [self._model(self.resource, model, percent) for model, percent in self.deployed]

    @property
    def deployed(self) -> list[tuple[DeployedModel, int]]:
        """The same as Vertex AI has them, each with its percentage of the traffic."""
        if self.resource is None:
            return []
        share = dict(self.resource.traffic_split)
        models = [(model, share.get(model.id, 0)) for model in self.resource.deployed_models]
        return sorted(models, key=lambda pair: -pair[1])

    def _model(self, endpoint: Endpoint, model: DeployedModel, percent: int) -> JsonObject:
        resources, price = model.dedicated_resources, self.file and self.file.settings.price_per_hour
        listed = list_price(resources, vertex_of(self.config).region)
        least = resources.min_replica_count
        most = resources.max_replica_count or least
        role = "rollout" if endpoint.labels.get(ROLLOUT) == model.id else ""
        role = "previous" if endpoint.labels.get(PREVIOUS) == model.id else role
        return {
            "id": model.id,
            "version": version_text(endpoint, model.id),
            "model": model.model,
            "traffic": percent,
            "role": role,
            "machine": machine_text(resources) + (" (Spot)" if resources.spot else ""),
            "min_replicas": least,
            "max_replicas": most,
            "replicas": model.status.available_replica_count,
            "machine_hours_per_day": [HOURS * least, HOURS * most],
            "cost_per_day": None if price is None else [HOURS * count * price for count in (least, most)],
            "at_least_per_day": None if listed is None else [HOURS * count * listed for count in (least, most)],
        }

    def loss(self) -> list[str]:
        """Return lines about what is deleted with it."""
        return [f"{self.name}: {model['version']} with {model['traffic']}% of the traffic" for model in self.models()]

    def as_dict(self) -> JsonObject:
        """Return the result for --json."""
        dns = None if self.resource is None else self.resource.dedicated_endpoint_dns
        return {**super().as_dict(), "dns": dns or None, "models": self.models()}


class DeclaredEndpoints(Declared[EndpointFile, EndpointResult]):
    """Endpoints of one project and region; `deploy` deploys their models."""

    files = FILES
    result = EndpointResult
    command = "slipway endpoints"
    rights = RIGHTS
    reads = "get"

    def all(self) -> list[tuple[str, str, Endpoint]]:
        return [
            (number_of(endpoint), endpoint.labels[NAME_LABEL], endpoint)
            for endpoint in Endpoints(self.connection).all()
        ]

    def find(self, key: str) -> list[Endpoint]:
        return [endpoint] if (endpoint := Endpoints(self.connection).get(key)) else []

    def desired(self, file: EndpointFile, log: TextIO | None, say: Say) -> EndpointFile:
        if log is not None:
            check(file, say, deploys=False)
        return file

    def differences(self, want: EndpointFile, have: Endpoint) -> list[Difference]:
        return differences(want, have)

    def create(self, want: EndpointFile) -> str:
        Endpoints(self.connection).ensure(want.deployment)
        return "created"

    def change(self, want: EndpointFile, have: Endpoint, left: list[Difference]) -> list[str]:
        endpoints, fields = Endpoints(self.connection), {difference.field for difference in left}
        endpoints.change(want.deployment, {ENDPOINT_FIELDS[name] for name in fields & ENDPOINT_FIELDS.keys()})
        serving = serving_model(have)
        if serving is not None and fields & set(REPLICA_FIELDS):
            endpoints.scale(want.deployment, serving.id)
        return [
            f"changed {difference}" for difference in left if difference.field in (*ENDPOINT_FIELDS, *REPLICA_FIELDS)
        ]

    def delete(self, resource: Endpoint, file: EndpointFile | None) -> None:
        minutes = file.settings.timeout if file else EndpointSettings.model_fields["timeout"].default
        Endpoints(self.connection).delete(number_of(resource), time.monotonic() + 60 * minutes)

    def advice(self, name: str, have: Endpoint, left: list[Difference]) -> str:  # noqa: ARG002
        fields = {difference.field for difference in left}
        if fields & {*ENDPOINT_FIELDS, *REPLICA_FIELDS}:
            return f"to change it: {self.command} apply {name}"
        if fields & set(MODEL_FIELDS):
            return f"to deploy with the file's machine and account: slipway deploy --endpoint {name}"
        return f"Vertex AI cannot change this: {self.command} delete {name}, then deploy again"


def deploy(name: str | None, version: str, timeout: float | None, say: Say) -> Outcome:
    """Deploy a version of the endpoint's model and roll it out."""
    file = FILES.read_one(name)
    if timeout is not None:
        settings = file.settings.model_copy(update={"timeout": timeout})
        file = replace(file, deployment=file.deployment.model_copy(update={"settings": settings}))
    check(file, say, deploys=True)
    endpoints = Endpoints(file.connection)
    with refusals(file.config, f"deploy {file.deployment.model} to {file.name}", f"{RIGHTS}.deploy"):
        model_version = endpoints.version(file.deployment.model, version)
        return roll_out(endpoints, file.deployment, model_version, say)


def rollback(name: str | None, say: Say, since: datetime | None = None, leaves: str | None = None) -> Outcome:
    """Return an endpoint's traffic from a version to the previous one; see `roll_back`."""
    file = FILES.read_one(name)
    with refusals(file.config, f"roll back {file.name}", f"{RIGHTS}.update"):
        return roll_back(Endpoints(file.connection), file.key, say, since, leaves)


def check(file: EndpointFile, say: Say, *, deploys: bool) -> None:
    """Make the doctor's checks that deploying needs; show the warnings.

    Raises:
        UserError: A check failed.
    """
    from slipway.pipelines.platforms.vertex.doctor import ENDPOINTS, endpoints
    from slipway.pipelines.platforms.vertex.doctor import resources as vertex

    checks = [
        Check("credentials", vertex.credentials, remote=True),
        Check("project", vertex.project_exists, remote=True),
        Check("APIs", vertex.apis, remote=True),
        Check("endpoint machine", partial(endpoints.machine, file=file), remote=True),
    ]
    if deploys:
        quota = partial(endpoints.quota, file=file)
        checks.append(Check("endpoint quota", quota, remote=True, imports=(ENDPOINTS,)))
    for warning in refuse(examine_in_parallel(checks, Context(file.config, platform_of("vertex")))):
        say(f"warning: {warning.check}: {warning.found}")


def serving() -> Iterator[Running]:
    """Yield the models that are deployed to the endpoints of the files.

    Raises:
        UserError: Vertex AI cannot be asked.
    """
    for result in DeclaredEndpoints.observe():
        region = vertex_of(result.config).region
        for summary, (model, _) in zip(result.models(), result.deployed, strict=True):
            price = list_price(model.dedicated_resources, region)
            yield Running(
                run_id=f"{result.name}: {summary['version']}",
                target="vertex",
                hardware=summary["machine"],
                region=region,
                steps=[],
                seconds=round((datetime.now(UTC) - model.create_time).total_seconds(), 1),
                per_hour=None if price is None else price * summary["replicas"],
                worst_case=0.0,
            )
