"""This machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from slipway.pipelines.platforms.base import Platform, Say
from slipway.pipelines.platforms.capabilities import WithImages

if TYPE_CHECKING:
    from slipway.pipelines.checks import Context
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.images.images import Wanted


class LocalPlatform(Platform, WithImages):
    """Processes or containers on this machine."""

    name = "local"
    title = "this machine"
    trains_here = True

    def check_hardware(self, context: Context) -> str:
        from slipway.pipelines.hardware import this_machine

        hardware = context.config.parsed_hardware
        if not hardware.accelerators_per_replica or context.rehearsal:
            return str(hardware)
        return f"{hardware}: {this_machine.check(hardware)}"

    def image_context(self, context: Context) -> str:
        from slipway.pipelines.checks import NotApplicableError

        if context.runner != "docker":
            raise NotApplicableError("no image is built")
        from slipway.pipelines.platforms.local.containers import docker_client, has_gpus, wanted_steps

        with docker_client():
            image = wanted_steps(context.config, "gpu" if has_gpus() else "cpu", lambda _line: None)
        return image.title

    def builder(self, config: RunConfig) -> str:
        return config.containers.builder

    def wanted_images(self, config: RunConfig, say: Say) -> dict[str, Wanted]:
        from slipway.pipelines.platforms.local.containers import wanted_steps

        return {"steps": wanted_steps(config, "cpu", say)}

    def build_images(self, config: RunConfig, log: TextIO, say: Say, builder: str | None) -> dict[str, str]:
        from slipway.pipelines.platforms.local.containers import local_image

        return {"steps": local_image(config, "cpu", log, say, builder)[0]}

    def compile_to(self, path: Path, config: RunConfig, say: Say) -> None:  # noqa: ARG002
        from slipway.pipelines.platforms.local.steps import compile_to

        compile_to(path, config)
