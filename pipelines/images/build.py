"""`slipway config build`: build the images of a run, or list what they contain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO, get_args

from slipway.components.build_image import local
from slipway.components.build_image.context import CODE
from slipway.components.build_image.settings import BuildSettings
from slipway.components.step import WorkFailed
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.images.images import Say, Wanted
from slipway.pipelines.images.platform import WithImages

BUILDERS = get_args(BuildSettings.model_fields["builder"].annotation)


def build_images(
    config: RunConfig, platform: WithImages, builder: str | None, *, push: bool, log: TextIO, say: Say
) -> dict[str, str]:
    """Build a run's images and return their URIs by role, with digests if they are pushed.

    Raises:
        UserError: A build failed, or the user has to fix something first.
    """
    if builder is not None and builder not in BUILDERS:
        raise UserError.unknown("builder", builder, BUILDERS, setting="--builder")
    try:
        if push:
            return platform.build_images(config, log, say, builder)
        return _on_this_machine(config, platform, builder, log, say)
    except WorkFailed as error:
        raise UserError(error.message, fix="see the builder's output above") from None


def _on_this_machine(
    config: RunConfig, platform: WithImages, builder: str | None, log: TextIO, say: Say
) -> dict[str, str]:
    """Build without pushing; the images have tags but no digests."""
    chosen = builder or platform.builder(config)
    if chosen == "cloud-build":
        raise UserError(
            "Cloud Build always pushes the images it builds.",
            setting="--no-push",
            value=True,
            fix="--builder docker, or remove --no-push",
        )
    images = platform.wanted_images(config, say)
    for image in images.values():
        request = image.request
        local.build(chosen, image.context.archive(), request.uri, request.arguments, request.labels, log)
    return {role: image.request.uri for role, image in images.items()}


@dataclass(frozen=True)
class Content:
    """What an image contains: the project's files and their sizes in bytes, and those of Slipway."""

    image: str
    project: dict[str, int]
    slipway_files: int
    slipway_bytes: int

    @classmethod
    def of(cls, image: Wanted) -> Content:
        """Return the content of an image that is not built yet."""
        files = image.context.files
        sizes = {name: file.source.stat().st_size for name, file in sorted(files.items())}
        project = {name: size for name, size in sizes.items() if name in image.context.project}
        slipway = sum(sizes.values()) - sum(project.values())
        named = {name.removeprefix(f"{CODE}/"): size for name, size in project.items()}
        return cls(image.request.uri, named, len(files) - len(project), slipway)
