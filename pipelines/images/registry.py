"""Images in a registry of Google Cloud: looked up there or built, and returned by digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TextIO

from slipway.components.build_image.build import ImageRequest, build_locally, ensure, find, registry_of
from slipway.components.build_image.cloud_build import CloudBuildSettings, Source
from slipway.components.cloud.settings import CloudSettings
from slipway.core.errors import UserError
from slipway.core.image_reference import artifact_repository
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.images.images import Say, Wanted, own_content, wanted_image


@dataclass(frozen=True)
class VerifiedBuild:
    """Arguments of the pipeline's step build_image: the trainer's image, its context, and Cloud Build settings."""

    request: ImageRequest
    source: Source
    settings: CloudBuildSettings


def ensured(
    images: Mapping[str, Wanted], settings: CloudSettings, log: TextIO, say: Say, builder: str | None
) -> dict[str, str]:
    """Return images by digest and role, building those that the registry does not have."""
    builder = builder or settings.build.builder
    check_builder(settings, builder)
    registry = registry_of(settings.image_repository, settings.connection)
    uris: dict[str, str] = {}
    for role, image in images.items():
        uri = find(image.request, registry)
        if uri is None:
            if image.based_on:
                image = image.built_on(uris[image.based_on])
            say(f"building {image.request.uri} with {builder}")
            uri = ensure(image.request, registry, partial(_build, settings, image, log, builder)).uri
        say(f"image {uri}")
        uris[role] = uri
    return uris


def trainer_image(config: RunConfig, settings: CloudSettings, log: TextIO, say: Say, builder: str | None = None) -> str:
    """Return the image that trains on Cloud TPU VMs by digest, building it if the registry does not have it.

    Raises:
        UserError: The user can fix it: missing permissions, a missing repository, untracked files.
        WorkFailed: The build failed.
    """
    if configured := config.train.image or settings.image:
        return configured
    return ensured({"trainer": wanted_trainer(config, settings, say)}, settings, log, say, builder)["trainer"]


def known_trainer(config: RunConfig, settings: CloudSettings, say: Say) -> str:
    """Return the image for a spec that is only compiled, by its tag if it is one that a run builds."""
    return config.train.image or settings.image or wanted_trainer(config, settings, say, without_git=True).request.uri


def wanted_trainer(config: RunConfig, settings: CloudSettings, say: Say, *, without_git: bool = False) -> Wanted:
    """Return the trainer's image on Cloud TPU VMs; see `vertex.images.wanted_images` for the arguments and errors."""
    build, content = settings.build, own_content(config, without_git=without_git)
    repository = settings.image_repository
    return wanted_image(config, "trainer", "tpu", build.base, repository, say, build.run_as, content=content)


def check_builder(settings: CloudSettings, builder: str) -> None:
    """Raise UserError if a builder cannot push to the repository."""
    if builder == "cloud-build" and not artifact_repository(settings.image_repository):
        raise UserError(
            "Cloud Build can push only to Artifact Registry.",
            setting=f"{settings.section}.build.repository",
            value=settings.build.repository,
            allowed="the name of an Artifact Registry repository, or another builder",
            nearest="slipway",
            fix="--builder docker",
        )


def cloud_build(settings: CloudSettings) -> CloudBuildSettings:
    """Return the settings of Cloud Build."""
    return CloudBuildSettings(
        project=settings.project,
        region=settings.region,
        endpoints=settings.endpoints,
        bucket=settings.bucket.removeprefix("gs://"),
        service_account=settings.build.service_account,
        build_region=settings.build.region,
        section=settings.section,
    )


def _build(settings: CloudSettings, image: Wanted, log: TextIO, builder: str) -> str | None:
    """Build and push an image; return its digest if the builder reports it."""
    request, archive = image.request, image.context.archive()
    if builder != "cloud-build":
        build_locally(request, builder, archive, log)
        return None
    service = cloud_build(settings).service()
    source = service.upload(archive, _source_name(image))
    return service.build(source, request.uri, request.arguments, request.labels, log)


def _source_name(image: Wanted) -> str:
    return f"{image.request.name}-{image.request.tag}"


def verified(settings: CloudSettings, trainer: Wanted | None, *, upload: bool) -> VerifiedBuild | None:
    """Return the arguments of the step build_image; None if it builds none with Cloud Build and Artifact Registry."""
    if trainer is None or settings.build.builder != "cloud-build" or not artifact_repository(settings.image_repository):
        return None
    parameters = cloud_build(settings)
    service = parameters.service()
    name = _source_name(trainer)
    source = service.upload(trainer.context.archive(), name) if upload else service.uploaded(name)
    return VerifiedBuild(trainer.request, source, parameters) if source else None
