"""The image of a run's containers on this machine. As a program (`python -m`), the step build_image of such a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from slipway.components.build_image.build import build_locally, ensure, registry_of
from slipway.components.build_image.settings import ContainerSettings
from slipway.components.step import step
from slipway.core import events
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.images.images import Say, Wanted, wanted_image
from slipway.pipelines.images.platform import WithImages
from slipway.pipelines.platforms.local.containers import docker_client, has_gpus
from slipway.pipelines.runs.record import RunFolder

if TYPE_CHECKING:
    from slipway.pipelines.platforms.base import Context


class LocalImages(WithImages):
    """The images of containers on this machine: one, of all steps."""

    def image_context(self, context: Context) -> str:
        with docker_client():
            image = wanted_steps(context.config, "gpu" if has_gpus() else "cpu", lambda _line: None)
        return image.title

    def builder(self, config: RunConfig) -> str:
        return containers_of(config).builder

    def wanted_images(self, config: RunConfig, say: Say) -> dict[str, Wanted]:
        return {"steps": wanted_steps(config, "cpu", say)}

    def build_images(self, config: RunConfig, log: TextIO, say: Say, builder: str | None) -> dict[str, str]:
        return {"steps": local_image(config, "cpu", log, say, builder)[0]}


def wanted_steps(config: RunConfig, accelerator: str, say: Say) -> Wanted:
    """Return the image of a run's containers, before it is built."""
    settings = containers_of(config)
    return wanted_image(config, "steps", accelerator, settings.base, settings.repository, say)


def containers_of(config: RunConfig) -> ContainerSettings:
    """Return the section `containers`, which has defaults."""
    return config.section(ContainerSettings) or ContainerSettings()


def local_image(
    config: RunConfig, accelerator: str, log: TextIO, say: Say, builder: str | None = None
) -> tuple[str, bool]:
    """Return the image of a run's containers by digest, and whether it already existed.

    Raises:
        UserError: The registry cannot be reached, the builder is not installed, files are not tracked.
        WorkFailed: The build failed.
    """
    settings, image = containers_of(config), wanted_steps(config, accelerator, say)
    builder, registry = builder or settings.builder, registry_of(settings.repository, None)
    built = ensure(image.request, registry, lambda: build_locally(image.request, builder, image.context.archive(), log))
    return built.uri, built.reused


def build_image(folder: RunFolder) -> None:
    """Build the run's image, or find it in the registry, and write its name to the run folder."""
    with step("build_image") as outcome:
        config = load(folder.configuration_file)
        image, outcome.reused = local_image(config, "gpu" if has_gpus() else "cpu", sys.stdout, events.message)
        outcome.outputs = {"image": image}
        folder.image_file.write_text(image)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m slipway.pipelines.images.local")
    parser.add_argument("folder", type=Path)
    build_image(RunFolder(parser.parse_args().folder))
