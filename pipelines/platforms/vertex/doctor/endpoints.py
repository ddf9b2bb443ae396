"""Checks of an endpoint to which a model is deployed."""

from __future__ import annotations

from slipway.components.deploy.service import Endpoints
from slipway.components.deploy.settings import DeploySettings
from slipway.core.errors import UserError
from slipway.pipelines.platforms.base import Context, NotApplicableError
from slipway.pipelines.platforms.vertex.doctor.project import Project
from slipway.pipelines.platforms.vertex.doctor.quotas import PAGE, UNLIMITED
from slipway.pipelines.platforms.vertex.endpoints.files import FILES, EndpointFile
from slipway.pipelines.platforms.vertex.settings import VertexSettings, vertex_of


def deployment(context: Context) -> str:
    """The endpoint file of the section `deploy` exists and is of the run's project, region and model."""
    file = _file(context)
    ours, endpoint_settings = context.config.section(VertexSettings), vertex_of(file.config)
    place = f"{endpoint_settings.project} in {endpoint_settings.region}"
    if ours is not None and (ours.project, ours.region) != (endpoint_settings.project, endpoint_settings.region):
        raise UserError(
            f"The endpoint {file.name} is in {place}, the run in {ours.project} in {ours.region}.",
            setting="deploy.endpoint",
            value=file.name,
            fix=f"correct configuration or set in {file.path}",
        )
    if file.deployment.model != context.config.model_name:
        raise UserError(
            f"The endpoint {file.name} serves the model {file.deployment.model}; the run registers "
            f"{context.config.model_name}.",
            setting="deploy.endpoint",
            value=file.name,
            fix=f"model: {context.config.model_name} in {file.path}",
        )
    return f"{file.name}: {file.settings.machine}, {place}"


def machine(context: Context, file: EndpointFile | None = None) -> str:
    """The region has the machine of the endpoint's replicas."""
    file = file or _file(context)
    regions, region = file.machine.regions, file.connection.region
    if regions is not None and region not in regions:
        raise UserError(
            f"{region} has no {file.settings.machine}.",
            setting="machine",
            value=file.settings.machine,
            allowed=f"the regions {', '.join(regions)}",
            fix=f"another machine in {file.path}, or vertex.region={regions[0]} in its configuration",
        )
    return f"{file.settings.machine} in {region}"


def quota(context: Context, file: EndpointFile | None = None) -> str:
    """The quota in the region is enough for the replicas of the endpoint's two models during a rollout."""
    file = file or _file(context)
    region, project = file.connection.region, context.shared(Project)
    endpoint = Endpoints(file.connection).get(file.deployment.endpoint_id)
    models = 2 if endpoint is not None and endpoint.deployed_models else 1
    listed = 0
    for metric, amount in file.machine.quotas.items():
        # Vertex AI reserves the quota of all replicas that may be added.
        needed = models * file.settings.max_replicas * amount
        limits = project.limits(metric)
        if limits is None:
            continue
        listed += 1
        limit = limits.get(region, limits.get("", 0))
        if limit not in (UNLIMITED, None) and limit < needed:
            raise UserError(
                f"The quota in {region} is too small: for {models} deployed model{'s'[: models - 1]} of up to "
                f"{file.settings.max_replicas} replicas, Vertex AI reserves {needed:,} of {metric}; the limit is "
                f"{limit:,}.",
                setting="max_replicas",
                value=file.settings.max_replicas,
                fix=f"fewer or smaller replicas in {file.path}, or request more in {region} at "
                f"{PAGE.format(project=file.connection.project)}",
            )
    if not listed:
        raise NotApplicableError(f"the project lists none of {', '.join(file.machine.quotas)}")
    return f"enough for {models} x {file.settings.max_replicas} replicas in {region}"


def _file(context: Context) -> EndpointFile:
    """Return the endpoint file of the run's section `deploy`."""
    settings = context.config.section(DeploySettings)
    if settings is None:
        raise NotApplicableError("the run deploys nothing")
    return FILES.read_one(settings.endpoint, context.folder / FILES.folder)
