"""The operations of `slipway endpoints`, `deploy` and `rollback`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.components.deploy.rollout import Outcome, roll_back, roll_out
from slipway.components.deploy.service import NAME_LABEL, PREVIOUS, ROLLOUT, Endpoints, version_text
from slipway.core.values import JsonObject
from slipway.pipelines.checks import Check, Context
from slipway.pipelines.config.config import RunConfig, vertex_of
from slipway.pipelines.platforms.vertex.endpoints.difference import (
    ENDPOINT_FIELDS,
    MODEL_FIELDS,
    REPLICA_FIELDS,
    differences,
    machine_text,
    serving_model,
)
from slipway.pipelines.platforms.vertex.endpoints.files import FOLDER, EndpointFile, read_all, read_one
from slipway.pipelines.platforms.vertex.platform import VertexPlatform
from slipway.pipelines.platforms.vertex.schedules.difference import Difference
from slipway.pipelines.platforms.vertex.submission import refusals

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import DeployedModel, Endpoint

HOURS = 24
CHAMPION = "champion"
RIGHTS = "aiplatform.endpoints"
Say = Callable[[str], None]


@dataclass
class Result:
    """One endpoint: its resource on Vertex AI (None if absent), its differences from the file and the actions taken."""

    name: str
    endpoint: Endpoint | None = None
    differences: list[Difference] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    note: str = ""
    price: float | None = None

    def lines(self) -> list[str]:
        """Return the output lines of diff and apply."""
        lines = [f"{self.name} ({self.endpoint.name})" if self.endpoint is not None else f"{self.name}: absent"]
        lines += [f"  {text}" for text in self.done or self.differences]
        return [*lines, f"  {self.note}"] if self.note else lines

    def models(self) -> list[JsonObject]:
        """Return the deployed models, those with the most traffic first."""
        if self.endpoint is None:
            return []
        share = dict(self.endpoint.traffic_split)
        ordered = sorted(self.endpoint.deployed_models, key=lambda one: -share.get(one.id, 0))
        return [self._model(self.endpoint, one, share.get(one.id, 0)) for one in ordered]

    def _model(self, endpoint: Endpoint, model: DeployedModel, percent: int) -> JsonObject:
        resources = model.dedicated_resources
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
            "cost_per_day": None if self.price is None else [HOURS * count * self.price for count in (least, most)],
        }

    def as_dict(self) -> JsonObject:
        """Return the result for --json."""
        return {
            "name": self.name,
            "endpoint": None if self.endpoint is None else self.endpoint.name,
            "dns": (self.endpoint.dedicated_endpoint_dns or None) if self.endpoint is not None else None,
            "models": self.models(),
            "differences": [{"field": one.field, "service": one.service, "file": one.file} for one in self.differences],
            "done": self.done,
            "note": self.note or None,
        }


def compare(names: Sequence[str], config: RunConfig | None = None) -> list[Result]:
    """Compare each file with Vertex AI; without names, also list endpoints without a file.

    These are in the projects and regions that the files use, and in the one of `config`, with which no file is needed.
    """
    files = read_all(names) if config is None or any(FOLDER.glob("*.yaml")) else []
    results = [_compared(file) for file in files]
    if names:
        return results
    return results + _without_file(files, [*(file.config for file in files), *([config] if config else [])])


def apply(names: Sequence[str], say: Say) -> list[Result]:
    """Create or change the endpoints to match their files; models are deployed by `deploy`."""
    results = []
    for file in read_all(names):
        check(file, say, deploys=False)
        endpoints = Endpoints(file.connection)
        with refusals(file.config, f"apply the endpoint {file.name}", f"{RIGHTS}.create"):
            created = endpoints.get(file.deployment.endpoint_id) is None
            endpoint = endpoints.ensure(file.deployment)
            found = [] if created else differences(file, endpoint)
            done = ["created"] if created else _changed(endpoints, file, endpoint, found)
            after = _compared(file)
        after.note = after.note or ("" if done else f"unchanged: matches {file.path}")
        results.append(replace(after, differences=found, done=done))
    return results


def delete(results: Sequence[tuple[EndpointFile, Result]], say: Say) -> list[Result]:
    """Delete endpoints with all their deployed models."""
    deleted = []
    for file, result in results:
        until = time.monotonic() + 60 * file.settings.timeout
        with refusals(file.config, f"delete the endpoint {file.name}", f"{RIGHTS}.delete"):
            if result.endpoint is not None:
                say(f"deleting {result.endpoint.name}")
                Endpoints(file.connection).delete(file.deployment.endpoint_id, until)
        deleted.append(Result(file.name, done=["deleted"] if result.endpoint is not None else [], note="file kept"))
    return deleted


def to_delete(name: str) -> tuple[EndpointFile, Result]:
    """Return what `delete` would delete."""
    file = read_one(name)
    return file, _compared(file)


def deploy(name: str | None, version: str, timeout: float | None, say: Say) -> Outcome:
    """Deploy a version of the endpoint's model and roll it out."""
    file = read_one(name)
    if timeout is not None:
        settings = file.settings.model_copy(update={"timeout": timeout})
        file = replace(file, deployment=file.deployment.model_copy(update={"settings": settings}))
    check(file, say)
    endpoints = Endpoints(file.connection)
    with refusals(file.config, f"deploy {file.deployment.model} to {file.name}", f"{RIGHTS}.deploy"):
        found = endpoints.version(file.deployment.model, version)
        return roll_out(endpoints, file.deployment, found, say)


def rollback(name: str | None, say: Say) -> Outcome:
    """Return an endpoint's traffic to the previous model."""
    file = read_one(name)
    with refusals(file.config, f"roll back {file.name}", f"{RIGHTS}.update"):
        return roll_back(Endpoints(file.connection), file.deployment.endpoint_id, say)


def check(file: EndpointFile, say: Say, *, deploys: bool = True) -> None:
    """Make the doctor's checks that deploying needs; show the warnings.

    Raises:
        UserError: A check failed.
    """
    from slipway.pipelines.checks import examine_in_parallel
    from slipway.pipelines.platforms.vertex.doctor import endpoints
    from slipway.pipelines.platforms.vertex.doctor import resources as vertex

    context = Context(file.config, VertexPlatform(), rehearsal=False, folder=Path.cwd())
    checks = [
        Check("credentials", vertex.credentials, remote=True),
        Check("project", vertex.project_exists, remote=True),
        Check("APIs", vertex.apis, remote=True),
        Check("endpoint machine", lambda context: endpoints.machine(context, file), remote=True),
    ]
    if deploys:
        checks.append(Check("endpoint quota", lambda context: endpoints.quota(context, file), remote=True))
    for finding in examine_in_parallel(checks, context):
        if finding.error is not None:
            raise finding.error
        if finding.status == "warning":
            say(f"warning: {finding.check}: {finding.found}")


def _compared(file: EndpointFile) -> Result:
    with refusals(file.config, f"read the endpoint {file.name}", f"{RIGHTS}.get"):
        endpoint = Endpoints(file.connection).get(file.deployment.endpoint_id)
    result = Result(file.name, endpoint, price=file.settings.price_per_hour)
    if endpoint is None:
        result.note = f"to create it: slipway endpoints apply {file.name}"
        return result
    result.differences = differences(file, endpoint)
    fields = {one.field for one in result.differences}
    if fields & {*ENDPOINT_FIELDS, *REPLICA_FIELDS}:
        result.note = f"to change it: slipway endpoints apply {file.name}"
    elif fields & set(MODEL_FIELDS):
        result.note = f"to deploy with the file's machine and account: slipway deploy --endpoint {file.name}"
    elif fields:
        result.note = f"Vertex AI cannot change this: slipway endpoints delete {file.name}, then deploy again"
    return result


def _changed(endpoints: Endpoints, file: EndpointFile, endpoint: Endpoint, found: list[Difference]) -> list[str]:
    """Change what Vertex AI can change; return what was done."""
    fields = {one.field for one in found}
    of_endpoint = {ENDPOINT_FIELDS[name] for name in fields & ENDPOINT_FIELDS.keys()}
    endpoints.change(file.deployment, of_endpoint)
    serving = serving_model(endpoint)
    if serving is not None and fields & set(REPLICA_FIELDS):
        endpoints.scale(file.deployment, serving.id)
    return [f"changed {one}" for one in found if one.field in (*ENDPOINT_FIELDS, *REPLICA_FIELDS)]


def _without_file(files: Sequence[EndpointFile], configs: Sequence[RunConfig]) -> list[Result]:
    """Return Slipway's endpoints without a file, in the projects and regions of the configurations."""
    known = {file.deployment.endpoint_id for file in files}
    places = {(vertex_of(config).project, vertex_of(config).region): config for config in configs}
    found = []
    for config in places.values():
        with refusals(config, "list the endpoints", f"{RIGHTS}.list"):
            every = Endpoints(vertex_of(config).connection).all()
        for endpoint in every:
            if endpoint.name.rpartition("/")[2] not in known:
                name = endpoint.labels[NAME_LABEL]
                note = f"no file; to manage it, write {FOLDER}/{name}.yaml"
                found.append(Result(name, endpoint, note=note))
    return found
