"""This machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slipway.pipelines.platforms.base import Platform, Say

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.platforms.base import Context


class LocalPlatform(Platform):
    """Processes or containers on this machine."""

    name = "local"
    title = "this machine"
    trains_here = True

    def check_hardware(self, context: Context) -> str:
        from slipway.pipelines.hardware import this_machine

        hardware = context.config.training_hardware
        if not hardware.accelerators_per_replica or context.rehearsal:
            return str(hardware)
        return f"{hardware}: {this_machine.check(hardware)}"

    def compile_to(self, path: Path, config: RunConfig, say: Say) -> None:  # noqa: ARG002
        from slipway.pipelines.platforms.local.steps import compile_to

        compile_to(path, config)
