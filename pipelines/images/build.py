"""`slipway build`: build the images of a run, for Vertex AI, Cloud TPU VMs or local containers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO, get_args

from slipway.components.build_image import local
from slipway.components.build_image.build import build_locally, ensure, registry_of
from slipway.components.build_image.context import CODE
from slipway.components.build_image.settings import BuildSettings
from slipway.components.step import WorkFailed
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.images.images import (
    Say,
    Wanted,
    ensure_images,
    trainer_image,
    wanted_image,
    wanted_images,
    wanted_trainer,
)
from slipway.pipelines.platforms.tpu.checks import settings_of

BUILDERS = get_args(BuildSettings.model_fields["builder"].annotation)


def build_images(
    config: RunConfig, target: str, builder: str | None, *, push: bool, log: TextIO, say: Say
) -> dict[str, str]:
    """Build a run's images and return their URIs by role, with digests if they are pushed.

    Raises:
        UserError: A build failed, or the user has to fix something first.
    """
    if builder is not None and builder not in BUILDERS:
        raise UserError.unknown("builder", builder, BUILDERS, setting="--builder")
    try:
        if not push:
            return _on_this_machine(config, target, builder, log, say)
        if target == "local":
            return {"steps": local_image(config, "cpu", log, say, builder)[0]}
        if target == "tpu":
            return {"trainer": trainer_image(config, settings_of(config), log, say, builder)}
        images = ensure_images(config, log, say, builder)
    except WorkFailed as error:
        raise UserError(error.message, fix="see the builder's output above") from None
    return images.by_role()


@dataclass(frozen=True)
class Content:
    """What an image contains: the project's files and their sizes in bytes, and those of Slipway."""

    image: str
    project: dict[str, int]
    slipway_files: int
    slipway_bytes: int


def image_contents(config: RunConfig, target: str, say: Say) -> list[Content]:
    """Return what each image of a run contains, without building it; see `build_images` for the arguments."""
    return [_content(image) for image in _wanted(config, target, say).values()]


def _content(image: Wanted) -> Content:
    files = image.context.files
    sizes = {name: file.source.stat().st_size for name, file in sorted(files.items())}
    project = {name: size for name, size in sizes.items() if name in image.context.project}
    slipway = sum(sizes.values()) - sum(project.values())
    named = {name.removeprefix(f"{CODE}/"): size for name, size in project.items()}
    return Content(image.request.uri, named, len(files) - len(project), slipway)


def _wanted(config: RunConfig, target: str, say: Say) -> dict[str, Wanted]:
    """Return the images of a run by role."""
    if target == "local":
        settings = config.containers
        return {"steps": wanted_image(config, "steps", "cpu", settings.base, settings.repository, say)}
    if target == "tpu":
        return {"trainer": wanted_trainer(config, settings_of(config), say)}
    return wanted_images(config, say)


def local_image(
    config: RunConfig, accelerator: str, log: TextIO, say: Say, builder: str | None = None
) -> tuple[str, bool]:
    """Return the image for `--runner docker` by digest, and whether it already existed.

    Raises:
        UserError: The registry cannot be reached, the builder is not installed, files are not tracked.
        WorkFailed: The build failed.
    """
    settings = config.containers
    image = wanted_image(config, "steps", accelerator, settings.base, settings.repository, say)
    build = build_locally(builder or settings.builder, image.context.archive, log)
    built = ensure(image.request, registry_of(settings.repository, None), build)
    return built.uri, built.reused


def _on_this_machine(config: RunConfig, target: str, builder: str | None, log: TextIO, say: Say) -> dict[str, str]:
    """Build without pushing; the images have tags but no digests."""
    chosen = builder or _configured_builder(config, target)
    if chosen == "cloud-build":
        raise UserError(
            "Cloud Build always pushes the images it builds.",
            setting="--no-push",
            value=True,
            fix="--builder docker, or remove --no-push",
        )
    images = _wanted(config, target, say)
    for image in images.values():
        request = image.request
        local.build(chosen, image.context.archive(), request.uri, request.arguments, request.labels, log)
    return {role: image.request.uri for role, image in images.items()}


def _configured_builder(config: RunConfig, target: str) -> str:
    if target == "tpu":
        return settings_of(config).build.builder
    if target == "local" or config.vertex is None:
        return config.containers.builder
    return config.vertex.build.builder
